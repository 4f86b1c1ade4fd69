"""Uploads of clients: added up with weights in one pass, or read client by client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.contract import Cohort
from leanfed.compression import exact
from leanfed.compression.levels import Range
from leanfed.compression.picks import Chosen, Picks, Positions, places
from leanfed.compression.selection import common, drawn
from leanfed.compression.sparsify import RESIDUAL, Sparsification
from leanfed.records import Floats, Ints, kept_counts
from leanfed.streams import stream
from leanfed.tasks.transfer import returned


@dataclass(frozen=True)
class Upload:
    """One client's upload: values at increasing positions of the shared vector, or all of it (positions None)."""

    size: int  # length of the shared vector
    values: Tensor  # (entries,) float32, or bool for a mask
    positions: Tensor | None = None  # (entries,) int64
    scale: Range | None = None  # of coded values
    common: bool = False  # whether the receiver knows the positions, which then do not travel
    within: Tensor | None = None  # (size,) places of a narrower client's vector in the server's, which knows them

    @property
    def entries(self) -> int:
        """How many values are sent."""
        return len(self.values)

    @property
    def places(self) -> Tensor | None:
        """(entries,) where the values belong in the server's vector; None: they are all of it."""
        if self.within is None or self.positions is None:
            return self.positions if self.within is None else self.within
        return self.within[self.positions.to(self.within.device)]

    def dense(self) -> Tensor:
        """The whole vector (size,) in float32, with zeros for entries that were not sent.

        >>> Upload(3, torch.tensor([5.0]), torch.tensor([1])).dense().tolist()
        [0.0, 5.0, 0.0]
        """
        values = self.values.to(torch.float32)
        if self.positions is None:
            return values
        return torch.zeros(self.size, device=values.device).index_copy_(0, self.positions, values)

    def cpu(self) -> Upload:
        """The upload in the processor's memory."""
        positions = None if self.positions is None else self.positions.cpu()
        return replace(self, values=self.values.cpu(), positions=positions)


class Uploads(Protocol):
    """The uploads of C clients.

    They may be views of the learner's buffers: sum or iterate over them before the learner computes again. Every
    `Upload` from an iteration owns its values.
    """

    @property
    def entries(self) -> Ints:
        """(C,) number of values that each client sends."""
        ...

    def largest(self) -> Floats:
        """(C,) a bound of the magnitudes that each client sends; NaN where one is no number."""
        ...

    def add_to(self, total: Tensor, gamma: Floats) -> None:
        """total (size,) += sum of gamma_n x upload_n, exactly, without a copy of any client's upload.

        `total` is a sum of `compression.exact`: its bits do not depend on the order of the clients.
        """
        ...

    def __iter__(self) -> Iterator[Upload]:
        """Client by client, for the codec, a fleet, or an aggregation rule that needs single uploads."""
        ...


@final
@dataclass(frozen=True)
class Dense:
    """Whole vectors, or their entries under a mask.

    >>> both = Dense(torch.tensor([[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]]), size=2)
    >>> total = exact.zeros(2); both.add_to(total, np.array([0.25, 0.75])); total.tolist()
    [2.5, 3.5]
    """

    rows: Tensor  # (C, size or more) float32, or bool
    size: int
    mask: Tensor | None = None  # (1 or C, size): the entries to send; rows are zero elsewhere
    counts: Ints | None = None  # (C,) how many these are, where that is known without asking a device

    @property
    def entries(self) -> Ints:
        """(C,)."""
        if self.mask is None:
            return np.full(len(self.rows), self.size, dtype=np.int64)
        if self.counts is not None:
            return self.counts
        return np.broadcast_to(self.mask.count_nonzero(1).cpu().numpy(), len(self.rows)).copy()

    def largest(self) -> Floats:
        """(C,)."""
        return exact.largest(self.rows[:, : self.size])

    def add_to(self, total: Tensor, gamma: Floats) -> None:
        """gamma @ rows."""
        exact.add_rows(total, self.rows.to(torch.float32), gamma)

    def __iter__(self) -> Iterator[Upload]:
        for row in range(len(self.rows)):
            values = self.rows[row, : self.size]
            if self.mask is None:
                yield Upload(self.size, values.clone())
            else:
                mask = self.mask[row if len(self.mask) > 1 else 0]
                known = self.counts is not None
                positions = places(mask, int(self.entries[row])) if known else torch.nonzero(mask).flatten()
                yield Upload(self.size, values[positions], positions)


@final
@dataclass(frozen=True)
class Sparse:
    """Chosen entries of each row; `scale` makes the expectation of a random choice the whole row."""

    rows: Tensor  # (C, size or more)
    size: int
    chosen: Chosen
    entries: Ints  # (C,)
    scale: Floats | None = None  # (C,)
    common: bool = False  # whether all rows have the same entries, which the server knows

    def largest(self) -> Floats:
        """(C,) of the whole rows, whose largest entry is the first that top-k chooses."""
        found = exact.largest(self.rows[:, : self.size])
        return found if self.scale is None else np.asarray(found * self.scale)

    def add_to(self, total: Tensor, gamma: Floats) -> None:
        """In one pass over the rows."""
        self.chosen.add_to(total, gamma if self.scale is None else gamma * self.scale)

    def __iter__(self) -> Iterator[Upload]:
        for row, count in enumerate(self.entries.tolist()):
            positions = self.chosen.positions(row)
            values = self.rows[row, positions]
            if self.scale is not None:
                values = values * float(np.float32(self.scale[row]))
            every = count == self.size
            yield Upload(self.size, values, None if every else positions, common=self.common and not every)


@final
@dataclass(frozen=True)
class Listed:
    """Uploads that own their values: received from a fleet, or copied from a learner's buffers."""

    uploads: Sequence[Upload]
    bounds: Tensor | None = None  # (C,) `largest`, where it was asked for in advance

    @property
    def entries(self) -> Ints:
        """(C,)."""
        return np.array([upload.entries for upload in self.uploads], dtype=np.int64)

    def bounded(self) -> Listed:
        """With `largest` on its way from the uploads' device: nobody waits for it later."""
        found = [exact.magnitudes(upload.values.unsqueeze(0)) for upload in self.uploads]
        return replace(self, bounds=returned(torch.cat(found)))

    def largest(self) -> Floats:
        """(C,)."""
        if self.bounds is not None:
            return np.asarray(self.bounds.numpy(), dtype=np.float64)
        return np.array([exact.largest(upload.values.unsqueeze(0))[0] for upload in self.uploads])

    def add_to(self, total: Tensor, gamma: Floats) -> None:
        """One after another."""
        for upload, weight in zip(self.uploads, gamma.tolist(), strict=True):
            into = upload.places
            if into is None:
                exact.add_row(total, upload.values.to(torch.float32), weight)
            else:
                exact.add_at(total, into.to(total.device), upload.values, weight)

    def __iter__(self) -> Iterator[Upload]:
        return iter(self.uploads)


def sparsified(
    gradient: Tensor, size: int, cohort: Cohort, picks: Picks, settings: Sparsification
) -> tuple[Uploads, dict[str, Tensor]]:
    """Eq. (5) for every client: the uploads from a gradient (C, size or more), and the memory of error feedback.

    With error feedback the memory is added to the first `size` columns of `gradient`, in place.
    """
    counts = kept_counts(cohort.k, size)
    if settings.select != "random" and not settings.error_feedback and (counts == size).all():
        return Dense(gradient, size), {}
    if settings.error_feedback:
        gradient[:, :size].add_(cohort.memory[RESIDUAL])
    if settings.select == "common":
        return _common(gradient, counts, size, cohort, settings)
    by_size = settings.select == "topk"
    chosen = picks.largest(gradient, counts, size) if by_size else _drawn(gradient, counts, size, cohort)
    scale = np.divide(size, counts, out=np.ones(len(counts)), where=counts > 0) if settings.rescales else None
    memory = {RESIDUAL: chosen.rest()} if settings.error_feedback else {}
    return Sparse(gradient, size, chosen, counts, scale), memory


def _drawn(gradient: Tensor, counts: Ints, size: int, cohort: Cohort) -> Positions:
    """Entries drawn at random for each client in this round."""
    pairs = zip(cohort.clients, counts.tolist(), strict=True)
    places = [drawn(size, count, stream(cohort.seed, "sparsify", cohort.round, client)) for client, count in pairs]
    return Positions(gradient, size, [torch.from_numpy(row).to(gradient.device) for row in places])


def _common(
    gradient: Tensor, counts: Ints, size: int, cohort: Cohort, settings: Sparsification
) -> tuple[Uploads, dict[str, Tensor]]:
    """The same entries of every client, times d / n in place where that is asked for."""
    count = int(counts[0])
    places = torch.from_numpy(common(size, count, cohort.seed, cohort.round)).to(gradient.device)
    if settings.rescales and count:
        gradient[:, places] *= size / count
    chosen = Positions(gradient, size, [places] * len(counts))
    memory = {RESIDUAL: chosen.rest()} if settings.error_feedback else {}
    return Sparse(gradient, size, chosen, counts, common=True), memory
