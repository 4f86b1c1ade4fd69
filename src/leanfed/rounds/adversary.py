"""Dishonest clients for experiments: they train like the others, and what they send is replaced on its way.

The attackers of a run are drawn once by its seed, know every honest upload of the round, and send as many entries as
they would have sent honestly. Honest code does not know of them; accuracy is that of the honest clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from leanfed.algorithms.uploads import Upload
from leanfed.compression.selection import drawn
from leanfed.records import Floats, Ints, Section
from leanfed.rounds.exchange import Answers
from leanfed.streams import stream
from leanfed.tasks.task import Task

Kind = Literal["none", "sign-flip", "scaling", "gaussian", "alie", "ipm", "min-max", "support", "spread", "label-flip"]
USUAL: Final = {"sign-flip": 5.0, "scaling": 50.0, "gaussian": 10.0, "alie": 1.0, "ipm": 1.0}  # strengths
SPREAD = 8  # attackers of the kind spread share so many times the entries of one


class Adversary(Section):
    """Who lies, and how."""

    kind: Kind = "none"
    """none; on the client's own gradient sign-flip (times -5), scaling (times -50), gaussian (noise of ten times the
    honest median norm on random entries); with knowledge of the honest uploads alie (mean - z std), ipm (-mean),
    min-max (as far along -std as honest uploads lie apart), support (all on the largest entries of minus the mean, at
    the honest median norm), spread (the same push on random parts of eight times as many entries); label-flip (trains
    on label c - 1 - y)."""
    share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the clients that lie."""
    strength: float | None = Field(default=None, gt=0, le=1e6)
    """Factor of sign-flip, scaling, gaussian, alie (z) and ipm; None: the usual one."""

    def liars(self, clients: int, seed: int) -> frozenset[int]:
        """The clients that lie, the same in every round."""
        if self.kind == "none":
            return frozenset()
        return frozenset(stream(seed, "adversary").choice(clients, round(self.share * clients), replace=False).tolist())

    @property
    def factor(self) -> float:
        """The strength, or the usual one of the kind."""
        return USUAL.get(self.kind, 1.0) if self.strength is None else self.strength


def flipped(task: Task, liars: frozenset[int]) -> Task:
    """The task with every training label y of these clients replaced by c - 1 - y."""
    labels = np.array(task.train.labels)
    for client in liars:
        rows = task.partition.train[client]
        labels[rows] = task.classes - 1 - labels[rows]
    return replace(task, train=replace(task.train, labels=labels))


@dataclass(frozen=True)
class Scene:
    """A round as attackers see it."""

    honest: NDArray[np.float32]  # (honest, size)
    own: Upload  # what the attacker would send
    entries: int  # how many values it may send
    factor: float
    rng: np.random.Generator

    @property
    def mean(self) -> Floats:
        """Of the honest uploads."""
        return np.asarray(self.honest.mean(axis=0, dtype=np.float64))

    @property
    def std(self) -> Floats:
        """Of the honest uploads, entry by entry."""
        return np.asarray(self.honest.std(axis=0, dtype=np.float64))

    @property
    def norm(self) -> float:
        """Median of the honest uploads' norms."""
        return float(np.median(np.linalg.norm(self.honest, axis=1)))


def largest(vector: Floats, count: int) -> Ints:
    """Positions of the largest magnitudes, increasing; lower positions first among equals."""
    return np.sort(np.argsort(-np.abs(vector), kind="stable")[:count])


def at_norm(vector: Floats, places: Ints, norm: float) -> tuple[Ints, Floats]:
    """The entries of a vector at these places, scaled to a norm."""
    values = vector[places]
    length = float(np.linalg.norm(values))
    return places, values * (norm / length if length > 0 else 0.0)


def _gaussian(scene: Scene) -> tuple[Ints, Floats]:
    places = drawn(scene.own.size, scene.entries, scene.rng)
    return at_norm(
        _placed(scene.own.size, places, scene.rng.standard_normal(len(places))), places, scene.factor * scene.norm
    )


def _placed(size: int, places: Ints, values: Floats) -> Floats:
    whole = np.zeros(size)
    whole[places] = values
    return whole


def _cut(vector: Floats, scene: Scene) -> tuple[Ints, Floats]:
    places = largest(vector, scene.entries)
    return places, vector[places]


def _min_max(scene: Scene) -> tuple[Ints, Floats]:
    """mean - c std with the largest c at which it is no farther from an honest upload than two of those are."""
    mean, std = scene.mean, scene.std
    squares = np.square(scene.honest, dtype=np.float64).sum(axis=1)
    products = scene.honest.astype(np.float64) @ scene.honest.T.astype(np.float64)
    apart = math.sqrt(max(0.0, float((squares[:, None] + squares - 2 * products).max())))
    low, high = 0.0, 1e3
    for _ in range(40):
        middle = (low + high) / 2
        far = float(np.linalg.norm(scene.honest - (mean - middle * std), axis=1).max())
        low, high = (middle, high) if far <= apart else (low, middle)
    return _cut(mean - low * std, scene)


def _spread(scene: Scene) -> tuple[Ints, Floats]:
    push = -scene.mean
    candidates = largest(push, min(SPREAD * scene.entries, len(push)))
    places = np.sort(scene.rng.choice(candidates, min(scene.entries, len(candidates)), replace=False))
    return at_norm(push, places, scene.norm)


ATTACKS: Final[dict[str, Callable[[Scene], tuple[Ints, Floats]]]] = {
    "gaussian": _gaussian,
    "alie": lambda scene: _cut(scene.mean - scene.factor * scene.std, scene),
    "ipm": lambda scene: _cut(-scene.factor * scene.mean, scene),
    "min-max": _min_max,
    "support": lambda scene: at_norm(-scene.mean, largest(scene.mean, scene.entries), scene.norm),
    "spread": _spread,
}


def tampered(
    adversary: Adversary, answers: Answers, participants: Sequence[int], liars: frozenset[int], seed: int, number: int
) -> Answers:
    """The answers of a round with the uploads of its dishonest participants replaced."""
    uploads = list(answers.uploads)
    honest = [
        upload.dense().numpy() for upload, client in zip(uploads, participants, strict=True) if client not in liars
    ]
    for place, client in enumerate(participants):
        if client not in liars:
            continue
        own = uploads[place]
        if adversary.kind in ("sign-flip", "scaling"):
            uploads[place] = replace(own, values=own.values * -adversary.factor)
        elif adversary.kind in ATTACKS and honest:
            rng = stream(seed, "attack", number, client)
            uploads[place] = _lie(adversary, np.stack(honest), own, rng)
    return replace(answers, uploads=tuple(uploads))


def _lie(adversary: Adversary, honest: NDArray[np.float32], own: Upload, rng: np.random.Generator) -> Upload:
    """What an attacker sends in place of its own upload; where all send the same entries, it can only fill those."""
    if own.common and own.positions is not None:
        inner = Upload(own.entries, own.values)
        scene = Scene(honest[:, own.positions.numpy()], inner, own.entries, adversary.factor, rng)
        return replace(own, values=_upload(inner, *ATTACKS[adversary.kind](scene)).values)
    return _upload(own, *ATTACKS[adversary.kind](Scene(honest, own, own.entries, adversary.factor, rng)))


def _upload(own: Upload, places: Ints, values: Floats) -> Upload:
    """An upload of the same form as the attacker's own."""
    sent: Tensor = torch.from_numpy(np.asarray(values)).to(torch.float32)
    positions = torch.from_numpy(np.asarray(places, dtype=np.int64))
    if own.positions is not None:
        return Upload(own.size, sent, positions)
    return Upload(own.size, torch.zeros(own.size).index_copy_(0, positions, sent))
