"""Rows of weight matrices as units of structured masks: which rows a client holds, and the entries within them.

A row belongs to one output of a linear layer or one output channel of a convolution. Vectors of masks are laid out as
[entries of the shared matrices | one flag per row], so that sums over clients hold what a mean over the owners needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from leanfed.records import Floats, Ints, kept_counts
from leanfed.tasks.split import Split

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class RowStructure:
    """The rows of a split's shared matrices; all but those of the last matrix can be pruned."""

    counts: tuple[int, ...]  # rows of each matrix
    widths: tuple[int, ...]  # entries of a row of each
    of_entry: Tensor  # (entries,) the row of every shared entry
    of_private: Tensor  # (d_private,) the row that a bias belongs to; `rows` for parameters of no row

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(self.counts)

    @property
    def entries(self) -> int:
        """d_shared."""
        return len(self.of_entry)

    @property
    def size(self) -> int:
        """Length of a vector [entries | flags]."""
        return self.entries + self.rows

    @property
    def prunable(self) -> int:
        """Entries of the matrices whose rows can be pruned: of all but the last, where a row is a class."""
        return sum(count * width for count, width in zip(self.counts[:-1], self.widths[:-1], strict=True))

    def parts(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """(..., size) -> entries and flags."""
        return vectors[..., : self.entries], vectors[..., self.entries :]

    def held_entries(self, flags: Tensor) -> Tensor:
        """(..., rows) -> (..., entries): every entry has its row's value."""
        return flags[..., self.of_entry.to(flags.device)]

    def held_private(self, flags: Tensor) -> Tensor:
        """(..., rows) -> (..., d_private): a bias has its row's value, all else is one."""
        return functional.pad(flags, (0, 1), value=1.0)[..., self.of_private.to(flags.device)]

    def kept_rows(self, r: Floats) -> Ints:
        """(n, matrices) rows of each matrix at keep rates r: rounded down, but never none."""
        kept = np.maximum(1, kept_counts(np.asarray(r)[:, np.newaxis], np.array(self.counts)))
        return np.concatenate([kept[:, :-1], np.full((len(kept), 1), self.counts[-1])], axis=1)

    def sent(self, r: Floats) -> Ints:
        """(n,) bits that clients send: those of the entries in their rows, and every row's flag."""
        return np.asarray(self.kept_rows(r) @ np.array(self.widths) + self.rows)

    def best_rows(self, scores: Tensor, r: float) -> Tensor:
        """(rows,) flags of the rows with the largest mean scores in each matrix; ties to lower rows."""
        flags, kept = [], self.kept_rows(np.array([r]))[0].tolist()
        sizes = [count * width for count, width in zip(self.counts, self.widths, strict=True)]
        for part, count, number in zip(torch.split(scores, sizes), self.counts, kept, strict=True):
            order = torch.argsort(part.view(count, -1).mean(1), descending=True, stable=True)
            flags.append(torch.zeros(count).index_fill_(0, order[:number], 1.0))
        return torch.cat(flags)


def structure_of(split: Split) -> RowStructure:
    """The rows of a split's shared matrices, and the biases in its private part that belong to them."""
    return _structure(_hashable(split.shared), _hashable(split.private))


def _hashable(shapes: Mapping[str, torch.Size]) -> Shapes:
    return tuple((name, tuple(shape)) for name, shape in shapes.items())


@lru_cache(maxsize=8)
def _structure(shared: Shapes, private: Shapes) -> RowStructure:
    counts = tuple(shape[0] for _, shape in shared)
    widths = tuple(math.prod(shape[1:]) for _, shape in shared)
    first = dict(zip((name.rpartition(".")[0] for name, _ in shared), np.cumsum((0, *counts)), strict=False))
    biases = []
    for name, shape in private:
        layer, _, kind = name.rpartition(".")
        own = kind == "bias" and layer in first
        biases.append(first[layer] + np.arange(*shape) if own else np.full(math.prod(shape), sum(counts)))
    of_entry = np.repeat(np.arange(sum(counts)), np.repeat(widths, counts))
    of_private = np.concatenate([np.empty(0, dtype=np.int64), *biases])
    return RowStructure(counts, widths, torch.from_numpy(of_entry), torch.from_numpy(of_private))
