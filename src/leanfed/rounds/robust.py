"""Aggregation rules that some dishonest clients cannot bend; registered on import.

All but the coordinate-wise two are weighted sums of the uploads u_n, with weights that depend on the uploads' inner
products alone, which sparse uploads give cheaply. Every upload's weight is recorded, so that a client that is always
cut down is seen.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.uploads import Upload
from leanfed.records import Floats
from leanfed.rounds.aggregation import AGGREGATIONS, Aggregation, Combined, weighted_sum

VALUES: Final = 1 << 22  # of the columns that are made dense at a time: 32 MB
FEW: Final = 400  # sparse uploads up to which a sparse product is faster than one of dense columns (k = 0.05)
Share = Annotated[float, Field(ge=0, lt=0.5)]
Matrix = NDArray[np.float64]


def inner_products(size: int, uploads: Sequence[Upload]) -> Matrix:
    """(n, n) products u_i . u_j in float64.

    >>> inner_products(3, [Upload(3, torch.tensor([1.0, 2.0, 0.0])), Upload(3, torch.tensor([3.0]), torch.tensor([1]))])
    array([[5., 6.],
           [6., 9.]])
    """
    if len(uploads) <= FEW and all(upload.positions is not None for upload in uploads):
        return _sparse_products(size, uploads)
    # By torch, whose threads the run's settings rule: NumPy's wait for each other where several runs share the cores.
    products = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    columns = max(1, min(size, VALUES // max(1, len(uploads))))
    block = torch.empty(len(uploads), columns, dtype=torch.float64)
    for start in range(0, size, columns):
        end = min(start + columns, size)
        block.zero_()
        for row, upload in zip(block, uploads, strict=True):
            if upload.positions is None:
                row[: end - start] = upload.values[start:end]
            else:
                first, last = np.searchsorted(upload.positions.numpy(), (start, end))
                row[upload.positions[first:last] - start] = upload.values[first:last].double()
        products += block @ block.T
    return products.numpy()


def _sparse_products(size: int, uploads: Sequence[Upload]) -> Matrix:
    from scipy.sparse import csr_array  # a small node has no SciPy, and aggregates nothing

    ends = np.cumsum([0, *(upload.entries for upload in uploads)])
    values = torch.cat([upload.values for upload in uploads]).double().numpy()
    columns = torch.cat([upload.positions for upload in uploads if upload.positions is not None]).numpy()
    rows = csr_array((values, columns, ends), shape=(len(uploads), size))
    return np.asarray((rows @ rows.T).toarray())


def squares(uploads: Sequence[Upload]) -> Floats:
    """(n,) products u_i . u_i in float64."""
    return np.array([float(np.square(upload.values.numpy(), dtype=np.float64).sum()) for upload in uploads])


class Weighing(Aggregation):
    """A rule that gives every upload a weight: the update is the weighted sum."""

    alone: ClassVar[bool] = False  # whether only the lengths of uploads are looked at, the diagonal of their products

    @abstractmethod
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        """(n,) weights from the uploads' inner products and gamma, which sums to one."""

    @override
    def weigh(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Floats:
        products = np.diag(squares(uploads)) if self.alone else inner_products(size, uploads)
        return self.weights(products, normalised(gamma))

    @override
    def combine(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Tensor:
        return weighted_sum(size, self.weigh(size, gamma, uploads), uploads)

    @override
    def misfit(self, algorithm: Algorithm) -> str | None:
        return "masks are votes, whose length says nothing" if algorithm.upload_form == "mask" else None


def normalised(gamma: Floats) -> Floats:
    """gamma over its sum; even weights where that is zero."""
    total = gamma.sum()
    return np.asarray(gamma / total if total > 0 else np.full(len(gamma), 1.0 / len(gamma)))


def shrinking(lengths: Floats) -> Floats:
    """min(1, m / length) with m the median length of those that sent something."""
    sent = lengths > 0
    if not sent.any():
        return np.ones_like(lengths)
    return np.minimum(1.0, np.divide(np.median(lengths[sent]), lengths, out=np.ones_like(lengths), where=sent))


@final
@AGGREGATIONS.register("clip")
class Clip(Weighing):
    """Uploads longer than the round's median are cut to it: undoes scaling and sign flips, costs nothing without."""

    name: Literal["clip"] = "clip"
    alone = True

    @override
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        return gamma * shrinking(np.sqrt(products.diagonal()))


@final
@AGGREGATIONS.register("clip-dedupe")
class ClipDedupe(Weighing):
    """As clip, then each upload is divided by how many look like it, sum over j of max(0, cos(u_n, u_j))^power.

    Honest sparse uploads point apart; attackers that agree on one direction count as one.
    """

    name: Literal["clip-dedupe"] = "clip-dedupe"
    power: float = Field(default=2.0, ge=1.0, le=16.0)
    """Of the cosine: a higher one spares honest clients that resemble each other, and attackers that differ."""

    @override
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        return shrinking(np.sqrt(products.diagonal())) * deduped(products, gamma, self.power)


def deduped(products: Matrix, gamma: Floats, power: float) -> Floats:
    """(n,) gamma_n over the number of uploads that look like u_n, scaled to a sum of one."""
    lengths = np.sqrt(products.diagonal())
    scale = np.maximum(np.outer(lengths, lengths), 1e-300)
    return normalised(gamma / np.maximum((np.maximum(products / scale, 0.0) ** power).sum(axis=1), 1.0))


@final
@AGGREGATIONS.register("majority")
class Majority(Weighing):
    """clip-dedupe among the clients that have agreed with most of the others so far.

    Client n agrees with the update v(S) of a set S of clients by cos(u_n, v(S) without its own part). S is everybody in
    good standing, s_n >= 0, or all where these are fewer than half; if more of S agree with the update of those who do
    not agree with v(S), that takes its place: attackers who outweigh the others are outnumbered all the same. If more
    of S are against it than for it either way, the update is v(S) and no standing changes. Else s_n becomes

        past s_n + cos(u_n, v(S) without its own part) + course cos(u_n, V),

    and the update is v of all in good standing then. V is the sum of the updates so far, faded by `past` each round,
    and begun anew when most of S work against it: one round of bad luck does not shut an honest client out, and who
    turns back what the others have learned is seen.
    """

    name: Literal["majority"] = "majority"
    power: float = Field(default=2.0, ge=1.0, le=16.0)
    """Of the cosine, as in clip-dedupe."""
    past: float = Field(default=0.9, ge=0.0, le=1.0)
    """How much of a client's standing, and of the sum of updates, is kept from round to round."""
    course: float = Field(default=3.0, ge=0.0, le=100.0)
    """How much agreement with past updates counts beside that with the round's: who works against them has to work so
    many times as much along the present ones."""

    @override
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        nothing = np.zeros(len(gamma))
        return self.judged(products, gamma, nothing, nothing)[0]

    @override
    def judge(
        self,
        size: int,
        gamma: Floats,
        uploads: Sequence[Upload],
        clients: Sequence[int],
        memory: Mapping[str, Tensor],
    ) -> Combined:
        course = memory.get("course", torch.zeros(size, dtype=torch.float64))
        standing = torch.zeros(max(clients, default=-1) + 1, dtype=torch.float64)
        if "standing" in memory:
            known = memory["standing"]
            standing = torch.cat([known, standing[len(known) :]])
        rows, products = list(clients), inner_products(size, uploads)
        along = cosines(uploads, np.sqrt(products.diagonal()), course.numpy())
        weights, after, kept = self.judged(products, normalised(gamma), standing[rows].numpy(), along)
        update = weighted_sum(size, weights, uploads)
        if after is None:
            return Combined(update, weights, {"standing": standing, "course": course})
        standing = standing.index_copy(0, torch.tensor(rows, dtype=torch.int64), torch.from_numpy(after))
        course = update.double() + (self.past * course if kept else 0.0)
        return Combined(update, weights, {"standing": standing, "course": course})

    def judged(
        self, products: Matrix, gamma: Floats, standing: Floats, along: Floats
    ) -> tuple[Floats, Floats | None, bool]:
        """From the standing before the round and (n,) cos(u_n, V).

        (n,) weights; the standing after the round, None if no majority was found; whether the course is still theirs.
        """
        trusted = standing >= 0
        if 2 * np.count_nonzero(trusted) < len(gamma):
            trusted = np.ones(len(gamma), dtype=bool)

        def majority(agreed: Floats) -> float:  # by heads: those for it less those against it
            return float(np.sign(agreed[trusted]).sum())

        agreed = self._agreement(products, gamma, trusted)
        others = trusted & (agreed < 0)
        if others.any():
            agreed = max(agreed, self._agreement(products, gamma, others), key=majority)
        if majority(agreed) < 0:
            return self._update(products, gamma, trusted), None, True
        kept = majority(along) >= 0
        after = self.past * standing + agreed + (self.course * along if kept else 0.0)
        good = after >= 0
        return self._update(products, gamma, good if good.any() else trusted), after, kept

    def _update(self, products: Matrix, gamma: Floats, some: NDArray[np.bool_]) -> Floats:
        """(n,) the weights of v(S); zero outside S."""
        weights = np.zeros_like(gamma)
        weights[some] = deduped(products[np.ix_(some, some)], gamma[some], self.power)
        return weights * shrinking(np.sqrt(products.diagonal()))

    def _agreement(self, products: Matrix, gamma: Floats, some: NDArray[np.bool_]) -> Floats:
        """(n,) cos(u_n, v(S) - w_n u_n); 0 where either is zero."""
        weights, squares = self._update(products, gamma, some), products.diagonal()
        along = products @ weights
        rest = weights @ along - 2.0 * weights * along + weights**2 * squares
        scale = np.sqrt(squares * np.maximum(rest, 0.0))
        return np.divide(along - weights * squares, scale, out=np.zeros_like(along), where=scale > 0)


def cosines(uploads: Sequence[Upload], lengths: Floats, vector: Floats) -> Floats:
    """(n,) cos(u_n, vector), from the uploads' lengths; 0 where either is zero."""
    products = np.zeros(len(uploads))
    for place, upload in enumerate(uploads):
        there = vector if upload.positions is None else vector[upload.positions.numpy()]
        products[place] = np.sum(upload.values.numpy() * there, dtype=np.float64)
    scale = lengths * math.sqrt(np.square(vector).sum())
    return np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)


@final
@AGGREGATIONS.register("geometric-median")
class GeometricMedian(Weighing):
    """The point with the least weighted sum of distances to the uploads, by Weiszfeld's iteration from their mean."""

    name: Literal["geometric-median"] = "geometric-median"
    iterations: int = Field(default=8, ge=1, le=1_000)
    """Steps of the iteration."""

    @override
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        weights = gamma
        for _ in range(self.iterations):
            distance = distances_to(products, weights)
            floor = 1e-6 * max(float(np.median(distance)), 1e-30)  # at an upload the iteration would stay for ever
            pull = gamma / np.maximum(distance, floor)
            weights = pull / pull.sum()
        return weights


@final
@AGGREGATIONS.register("centred-clip")
class CentredClip(Weighing):
    """v + sum of gamma_n (u_n - v) min(1, m / |u_n - v|), m the median distance, from v = 0.

    After Karimireddy et al. (2021), who begin from the last round's update.
    """

    name: Literal["centred-clip"] = "centred-clip"
    iterations: int = Field(default=3, ge=1, le=1_000)
    """How often v moves."""

    @override
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        weights = np.zeros_like(gamma)
        for _ in range(self.iterations):
            pull = gamma * shrinking(distances_to(products, weights))
            weights = weights * (1.0 - pull.sum()) + pull
        return weights


@final
@AGGREGATIONS.register("multi-krum")
class MultiKrum(Weighing):
    """The mean of the uploads nearest to their neighbours (Blanchard et al. 2017), first averaged in buckets.

    Attackers that agree are each other's nearest neighbours: against those it is worse than the mean.
    """

    name: Literal["multi-krum"] = "multi-krum"
    liars: Share = 0.2
    """The share of dishonest clients that it is made for."""
    bucket: int = Field(default=1, ge=1, le=1_000)
    """Uploads averaged before they are compared (Karimireddy et al. 2022); neighbours in the plan share a bucket."""

    @override
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        found, some = np.zeros(len(gamma)), np.flatnonzero(gamma > 0.0)
        if some.size:
            found[some] = self._nearest(products[np.ix_(some, some)], gamma[some])
        return found

    def _nearest(self, products: Matrix, gamma: Floats) -> Floats:
        """The weights of uploads that count."""
        count = len(gamma)
        owner = np.arange(count) // self.bucket
        means = np.zeros((owner[-1] + 1, count))
        means[owner, np.arange(count)] = gamma
        means /= means.sum(axis=1, keepdims=True)
        inner = means @ products @ means.T
        squares = inner.diagonal()[:, None] + inner.diagonal() - 2.0 * inner
        buckets, liars = len(means), min(round(self.liars * len(means) * self.bucket), (len(means) - 1) // 2)
        near = np.sort(squares, axis=1)[:, 1 : max(2, buckets - liars - 1)]
        kept = np.argsort(near.sum(axis=1), kind="stable")[: buckets - liars]
        share = np.bincount(owner, gamma)[kept]
        return np.asarray((share / share.sum()) @ means[kept])


class CoordinateWise(Aggregation):
    """A rule that looks at every entry by itself, and so needs uploads that hold the same entries."""

    instead: ClassVar[str] = (
        "more than half of the clients send no value for nearly every entry, so it would never move"
    )

    @override
    def misfit(self, algorithm: Algorithm) -> str | None:
        return None if algorithm.upload_form in ("dense", "common") else self.instead


@final
@AGGREGATIONS.register("median")
class Median(CoordinateWise):
    """The median of every entry (Yin et al. 2018); for whole gradients only."""

    name: Literal["median"] = "median"

    @override
    def combine(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Tensor:
        return torch.from_numpy(np.median(np.stack([upload.dense().numpy() for upload in uploads]), axis=0))


@final
@AGGREGATIONS.register("trimmed-mean")
class TrimmedMean(CoordinateWise):
    """The mean of every entry without its lowest and highest values (Yin et al. 2018); for whole gradients only."""

    name: Literal["trimmed-mean"] = "trimmed-mean"
    liars: Share = 0.2
    """The share that is cut off at either end."""

    @override
    def combine(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Tensor:
        rows = np.sort(np.stack([upload.dense().numpy() for upload in uploads]).astype(np.float64), axis=0)
        cut = min(round(self.liars * len(rows)), (len(rows) - 1) // 2)
        return torch.from_numpy(rows[cut : len(rows) - cut].mean(axis=0).astype(np.float32))


def distances_to(products: Matrix, weights: Floats) -> Floats:
    """|u_n - sum of w_j u_j| of every upload."""
    along = products @ weights
    return np.asarray(np.sqrt(np.maximum(products.diagonal() - 2.0 * along + weights @ along, 0.0)))
