"""Dishonest clients for experiments: they train like the others, and what they send is replaced on its way.

The attackers of a run are drawn once by its seed, know every honest upload of the round, and send as many entries as
they would have sent honestly. Honest code does not know of them; accuracy is that of the honest clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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

Kind = Literal[
    "none", "sign-flip", "scaling", "gaussian", "alie", "ipm", "min-max", "support", "spread", "label-flip", "backdoor"
]
USUAL: Final = {"sign-flip": 5.0, "scaling": 50.0, "gaussian": 10.0, "alie": 1.0, "ipm": 1.0}  # strengths
OWN: Final = {"sign-flip": -1.0, "scaling": -1.0, "backdoor": 1.0}  # multiples of the attacker's own upload: the sign
SPREAD = 8  # attackers of the kind spread share so many times the entries of one


class Adversary(Section):
    """Who lies, and how."""

    kind: Kind = "none"
    """none; on the client's own gradient sign-flip (times -5), scaling (times -50), gaussian (noise of ten times the
    honest median norm on random entries); with knowledge of the honest uploads alie (mean - z std), ipm (-mean),
    min-max (as far along -std as honest uploads lie apart), support (all on the largest entries of minus the mean, at
    the honest median norm), spread (the same push on random parts of eight times as many entries); label-flip (trains
    on label c - 1 - y); backdoor (trains on pictures with a white square that have the label `target`, so that honest
    clients take marked pictures for it: the column attack_success)."""
    share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the clients that lie."""
    strength: float | None = Field(default=None, gt=0, le=1e6)
    """Factor of sign-flip, scaling, gaussian, alie (z) and ipm; None: the usual one. backdoor: what its uploads are
    multiplied by; None: by nothing."""
    target: int = Field(default=0, ge=0)
    """backdoor: the label that marked pictures are to be given."""
    square: int = Field(default=4, ge=1, le=1_000)
    """backdoor: pixels of a side of the white square in the lower right corner."""
    poisoned: float = Field(default=0.5, gt=0, le=1)
    """backdoor: the share of an attacker's samples that carry the square and the target's label."""

    def liars(self, clients: int, seed: int) -> frozenset[int]:
        """The clients that lie, the same in every round."""
        if self.kind == "none":
            return frozenset()
        return frozenset(stream(seed, "adversary").choice(clients, round(self.share * clients), replace=False).tolist())

    @property
    def tampers(self) -> bool:
        """Whether uploads are changed, and not only what is trained on."""
        return self.kind not in ("none", "label-flip") and (self.kind != "backdoor" or self.factor != 1.0)

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
class Crowd:
    """The honest uploads of a round, which all its attackers know; what they make of them is computed once."""

    rows: NDArray[np.float32]  # (honest, size)

    @cached_property
    def mean(self) -> Floats:
        """Of every entry."""
        return np.asarray(self.rows.mean(axis=0, dtype=np.float64))

    @cached_property
    def std(self) -> Floats:
        """Of every entry."""
        return np.asarray(self.rows.std(axis=0, dtype=np.float64))

    @cached_property
    def norm(self) -> float:
        """Median of the uploads' norms."""
        return float(np.median(np.linalg.norm(self.rows, axis=1)))

    @cached_property
    def far(self) -> Floats:
        """mean - c std with the largest c at which it is no farther from an upload than two of those are."""
        squares = np.square(self.rows, dtype=np.float64).sum(axis=1)
        products = self.rows.astype(np.float64) @ self.rows.T.astype(np.float64)
        apart = math.sqrt(max(0.0, float((squares[:, None] + squares - 2 * products).max())))
        low, high = 0.0, 1e3
        for _ in range(40):
            middle = (low + high) / 2
            distance = float(np.linalg.norm(self.rows - (self.mean - middle * self.std), axis=1).max())
            low, high = (middle, high) if distance <= apart else (low, middle)
        return np.asarray(self.mean - low * self.std)


@dataclass(frozen=True)
class Scene:
    """A round as one attacker sees it."""

    honest: Crowd
    own: Upload  # what the attacker would send
    entries: int  # how many values it may send
    factor: float
    rng: np.random.Generator


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
        _placed(scene.own.size, places, scene.rng.standard_normal(len(places))),
        places,
        scene.factor * scene.honest.norm,
    )


def _placed(size: int, places: Ints, values: Floats) -> Floats:
    whole = np.zeros(size)
    whole[places] = values
    return whole


def _cut(vector: Floats, scene: Scene) -> tuple[Ints, Floats]:
    places = largest(vector, scene.entries)
    return places, vector[places]


def _spread(scene: Scene) -> tuple[Ints, Floats]:
    push = -scene.honest.mean
    candidates = largest(push, min(SPREAD * scene.entries, len(push)))
    places = np.sort(scene.rng.choice(candidates, min(scene.entries, len(candidates)), replace=False))
    return at_norm(push, places, scene.honest.norm)


def _support(scene: Scene) -> tuple[Ints, Floats]:
    push = -scene.honest.mean
    return at_norm(push, largest(push, scene.entries), scene.honest.norm)


ATTACKS: Final[dict[str, Callable[[Scene], tuple[Ints, Floats]]]] = {
    "gaussian": _gaussian,
    "alie": lambda scene: _cut(scene.honest.mean - scene.factor * scene.honest.std, scene),
    "ipm": lambda scene: _cut(-scene.factor * scene.honest.mean, scene),
    "min-max": lambda scene: _cut(scene.honest.far, scene),
    "support": _support,
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
    common = next((upload.positions for upload in uploads if upload.common), None)
    crowd = _crowd(honest, common) if honest and adversary.kind in ATTACKS else None
    for place, client in enumerate(participants):
        if client not in liars:
            continue
        own = uploads[place]
        if adversary.kind in OWN:
            uploads[place] = replace(own, values=own.values * (OWN[adversary.kind] * adversary.factor))
        elif crowd is not None:
            uploads[place] = _lie(adversary, crowd, own, stream(seed, "attack", number, client))
    return replace(answers, uploads=tuple(uploads))


def _crowd(honest: Sequence[NDArray[np.float32]], common: Tensor | None) -> Crowd:
    """The honest uploads, at the entries that all send where there are such."""
    rows = np.stack(honest)
    return Crowd(rows if common is None else rows[:, common.numpy()])


def _lie(adversary: Adversary, honest: Crowd, own: Upload, rng: np.random.Generator) -> Upload:
    """What an attacker sends in place of its own upload; where all send the same entries, it can only fill those."""
    meant = Upload(own.entries, own.values) if own.common else own
    lie = _upload(meant, *ATTACKS[adversary.kind](Scene(honest, meant, own.entries, adversary.factor, rng)))
    return replace(own, values=lie.values) if own.common else lie


def _upload(own: Upload, places: Ints, values: Floats) -> Upload:
    """An upload of the same form as the attacker's own."""
    sent: Tensor = torch.from_numpy(np.asarray(values)).to(torch.float32)
    positions = torch.from_numpy(np.asarray(places, dtype=np.int64))
    if own.positions is not None:
        return Upload(own.size, sent, positions)
    return Upload(own.size, torch.zeros(own.size).index_copy_(0, positions, sent))
