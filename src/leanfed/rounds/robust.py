"""Aggregation rules that some dishonest clients cannot bend; registered on import.

All but the coordinate-wise two are weighted sums of the uploads u_n, with weights that depend on the uploads' inner
products alone, which sparse uploads give cheaply. Every upload's weight is recorded, so that a client that is always
cut down is seen.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.uploads import Listed, Upload
from leanfed.compression import exact
from leanfed.records import Floats
from leanfed.rounds.aggregation import AGGREGATIONS, Aggregation

VALUES: Final = 1 << 22  # of the columns that are made dense at a time: 32 MB
Share = Annotated[float, Field(ge=0, lt=0.5)]
Matrix = NDArray[np.float64]


def inner_products(size: int, uploads: Sequence[Upload]) -> Matrix:
    """(n, n) products u_i . u_j in float64.

    >>> inner_products(3, [Upload(3, torch.tensor([1.0, 2.0, 0.0])), Upload(3, torch.tensor([3.0]), torch.tensor([1]))])
    array([[5., 6.],
           [6., 9.]])
    """
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
        total = gamma.sum()
        even = gamma / total if total > 0 else np.full(len(gamma), 1.0 / len(gamma))
        return self.weights(np.diag(squares(uploads)) if self.alone else inner_products(size, uploads), even)

    @override
    def combine(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Tensor:
        total = exact.zeros(size)
        Listed(uploads).add_to(total, self.weigh(size, gamma, uploads))
        return total.to(torch.float32)

    @override
    def misfit(self, algorithm: Algorithm) -> str | None:
        return "masks are votes, whose length says nothing" if algorithm.upload_form == "mask" else None


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
    """As clip, then each upload is divided by how many look like it, sum over j of max(0, cos(u_n, u_j))^2.

    Honest sparse uploads point apart; attackers that agree on one direction count as one.
    """

    name: Literal["clip-dedupe"] = "clip-dedupe"

    @override
    def weights(self, products: Matrix, gamma: Floats) -> Floats:
        lengths = np.sqrt(products.diagonal())
        scale = np.maximum(np.outer(lengths, lengths), 1e-300)
        copies = np.maximum(np.square(np.maximum(products / scale, 0.0)).sum(axis=1), 1.0)
        return np.asarray(shrinking(lengths) * (gamma / copies) / (gamma / copies).sum())


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
