"""Dishonest clients for experiments: they train like the others, and what they send is replaced on its way.

The attackers of a run are drawn once by its seed, know every honest upload of the round, and send as many entries as
they would have sent honestly. Honest code does not know of them; accuracy is that of the honest clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
    "none",
    "sign-flip",
    "scaling",
    "gaussian",
    "alie",
    "ipm",
    "min-max",
    "support",
    "spread",
    "turncoat",
    "hedged",
    "veteran",
    "adaptive",
    "label-flip",
    "backdoor",
]
USUAL: Final = {"sign-flip": 5.0, "scaling": 50.0, "gaussian": 10.0, "alie": 1.0, "ipm": 1.0}  # strengths
OWN: Final = {"sign-flip": -1.0, "scaling": -1.0, "backdoor": 1.0}  # multiples of the attacker's own upload: the sign
SPREAD = 8  # attackers who push on parts of the entries share so many times the entries of one
HEDGE = 3.15  # hedged: how much of this round's mean goes with the push; `majority` weighs them 3 to 1
PAST = "adversary.past"  # sums of honest means, in the server's memory
FADED: Final = (0.9, 0.97)  # how much a round leaves of the recent one and of the long one
REMEMBERING: Final = ("turncoat", "hedged", "veteran", "adaptive")  # kinds that know them


class Adversary(Section):
    """Who lies, and how."""

    kind: Kind = "none"
    """none; on the client's own gradient sign-flip (times -5), scaling (times -50), gaussian (noise of ten times the
    honest median norm on random entries); with knowledge of the honest uploads alie (mean - z std), ipm (-mean),
    min-max (as far along -std as honest uploads lie apart), support (all on the largest entries of minus the mean, at
    the honest median norm), spread (the same push on random parts of eight times as many entries), turncoat (such a
    push against the honest means of past rounds, without what this round's mean would show of it), hedged (against the
    past means, and three times as much along this round's), veteran (against those of a longer past, without what this
    round's and the last ones' would show of it), adaptive (knows the server's rule and what it remembers too, tries all
    these and other spreads on it, and sends what turns the update furthest from the honest means of this and past
    rounds); label-flip (trains on label c - 1 - y); backdoor (trains on pictures with a white square that have the
    label `target`, so that honest clients take marked pictures for it: the column attack_success)."""
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
    past: Floats  # (2, size) the faded sums of the honest means of past rounds, recent and long

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
        """mean - c std with the largest c at which it is no farther from an upload than two of those are.

        |u_n - mean + c std|^2 = A_n + 2 c B_n + c^2 S is a parabola for every n, and at c = 0 it is small enough: the
        mean of some points is no farther from any of them than the farthest two are from each other.
        """
        rows = torch.from_numpy(self.rows).double()  # torch, as in `robust.inner_products`
        products, mean, std = rows @ rows.T, torch.from_numpy(self.mean), torch.from_numpy(self.std)
        squares = products.diagonal()
        apart = float((squares[:, None] + squares - 2 * products).max())
        near = squares - 2 * (rows @ mean) + mean @ mean  # A
        along = rows @ std - mean @ std  # B
        spread = float(std @ std)  # S
        if spread == 0:
            return self.mean
        roots = torch.sqrt((along.square() + spread * (apart - near)).clamp(min=0)) - along
        return np.asarray(self.mean - max(0.0, float(roots.min()) / spread) * self.std)

    @cached_property
    def turned(self) -> Floats:
        """Minus the recent past, but with a little of the mean in place of what is along it."""
        return self._against(self.past[0], self.mean)

    @cached_property
    def hedged(self) -> Floats:
        """The mean's direction, weighted, minus that of the recent past."""
        return np.asarray(HEDGE * unit(self.mean) - unit(self.past[0])) if self.past.any() else -self.mean

    @cached_property
    def veteran(self) -> Floats:
        """Minus the long past, but with a little of the mean and of the recent past in place of what is along them."""
        return self._against(self.past[1], self.mean, self.past[0])

    def _against(self, past: Floats, *shown: Floats) -> Floats:
        if not past.any():
            return -self.mean
        basis = np.linalg.qr(np.stack(shown, axis=1))[0]
        push = unit(basis @ (basis.T @ past) - past)
        return np.asarray(push + 0.05 * sum(unit(vector) for vector in shown))


def unit(vector: Floats) -> Floats:
    """A vector at length one; zero stays zero."""
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-300))


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
    sizes = np.abs(vector)
    if not 0 < count < len(sizes):
        return np.arange(min(count, len(sizes)))
    least = np.partition(sizes, -count)[-count]
    taken = sizes > least
    taken[np.flatnonzero(sizes == least)[: count - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


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


def _spread(scene: Scene, times: int = SPREAD) -> tuple[Ints, Floats]:
    return _in_parts(scene, -scene.honest.mean, times)


def _in_parts(scene: Scene, push: Floats, times: int = SPREAD) -> tuple[Ints, Floats]:
    """A random part of the largest entries of a push, of which there are so many times what one attacker sends."""
    candidates = largest(push, min(times * scene.entries, len(push)))
    places = np.sort(scene.rng.choice(candidates, min(scene.entries, len(candidates)), replace=False))
    return at_norm(push, places, scene.honest.norm)


def _support(scene: Scene) -> tuple[Ints, Floats]:
    push = -scene.honest.mean
    return at_norm(push, largest(push, scene.entries), scene.honest.norm)


Lie = Callable[[Scene], tuple[Ints, Floats]]
ATTACKS: Final[dict[str, Lie]] = {
    "gaussian": _gaussian,
    "alie": lambda scene: _cut(scene.honest.mean - scene.factor * scene.honest.std, scene),
    "ipm": lambda scene: _cut(-scene.factor * scene.honest.mean, scene),
    "min-max": lambda scene: _cut(scene.honest.far, scene),
    "support": _support,
    "spread": _spread,
    "turncoat": lambda scene: _in_parts(scene, scene.honest.turned),
    "hedged": lambda scene: _in_parts(scene, scene.honest.hedged),
    "veteran": lambda scene: _in_parts(scene, scene.honest.veteran),
}


# What adaptive attackers try: n of them that send one direction weigh as one on a rule that looks for copies, n without
# any overlap weigh n but are sqrt(n) long together; the worst lies between.
TRIED: Final[tuple[Lie, ...]] = (
    *(partial(_spread, times=times) for times in (2, 4, SPREAD, 16)),
    *(ATTACKS[kind] for kind in ("support", "alie", "ipm", "min-max", "turncoat", "hedged", "veteran")),
)


@dataclass(frozen=True)
class Scheme:
    """The attackers of a run, and what they know beside the honest uploads of a round."""

    adversary: Adversary
    liars: frozenset[int]
    rule: Callable[[Sequence[Upload]], Tensor]  # what the server would make of the round's uploads
    past: Tensor | None = None  # (2, size) what the last round left of the honest means


def tampered(
    scheme: Scheme, answers: Answers, participants: Sequence[int], seed: int, number: int
) -> tuple[Answers, Mapping[str, Tensor]]:
    """The answers of a round with the uploads of its dishonest participants replaced, and what is to be remembered."""
    adversary, uploads = scheme.adversary, list(answers.uploads)
    lying = {place: client for place, client in enumerate(participants) if client in scheme.liars}
    if adversary.kind in OWN:
        for place in lying:
            own = uploads[place]
            uploads[place] = replace(own, values=own.values * (OWN[adversary.kind] * adversary.factor))
        return replace(answers, uploads=tuple(uploads)), {}
    honest = [upload.dense().numpy() for place, upload in enumerate(uploads) if place not in lying]
    if not honest:
        return answers, {}
    rows = np.stack(honest)
    past = np.zeros((len(FADED), rows.shape[1])) if scheme.past is None else scheme.past.numpy()
    common = next((upload.positions for upload in uploads if upload.common), None)
    crowd = Crowd(rows, past) if common is None else Crowd(rows[:, common.numpy()], past[:, common.numpy()])

    def with_lies(attack: Lie) -> tuple[Upload, ...]:
        told = list(uploads)
        for place, client in lying.items():
            told[place] = _lie(attack, adversary.factor, crowd, uploads[place], stream(seed, "attack", number, client))
        return tuple(told)

    if adversary.kind not in REMEMBERING:
        return replace(answers, uploads=with_lies(ATTACKS[adversary.kind])), {}
    after = torch.from_numpy(np.array(FADED)[:, None] * past + rows.mean(axis=0, dtype=np.float64))
    if adversary.kind != "adaptive":
        sent = with_lies(ATTACKS[adversary.kind])
    else:
        sent = min(map(with_lies, TRIED), key=lambda told: float(scheme.rule(told).double() @ after[0]))
    return replace(answers, uploads=sent), {PAST: after}


def _lie(attack: Lie, factor: float, honest: Crowd, own: Upload, rng: np.random.Generator) -> Upload:
    """What an attacker sends in place of its own upload; where all send the same entries, it can only fill those."""
    meant = Upload(own.entries, own.values) if own.common else own
    lie = _upload(meant, *attack(Scene(honest, meant, own.entries, factor, rng)))
    return replace(own, values=lie.values) if own.common else lie


def _upload(own: Upload, places: Ints, values: Floats) -> Upload:
    """An upload of the same form as the attacker's own."""
    sent: Tensor = torch.from_numpy(np.asarray(values)).to(torch.float32)
    positions = torch.from_numpy(np.asarray(places, dtype=np.int64))
    if own.positions is not None:
        return Upload(own.size, sent, positions)
    return Upload(own.size, torch.zeros(own.size).index_copy_(0, positions, sent))
