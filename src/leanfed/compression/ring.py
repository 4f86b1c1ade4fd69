"""Whole numbers modulo 2^bits, of which masked sums are made: a grid for values, and numbers packed into bytes.

A value v in [-c, c] becomes the nearest multiple of the grid's step 2 c / 2^F, counted in steps. Sums of whole numbers
are exact in any order, and addition modulo 2^64 followed by the last `bits` bits is addition modulo 2^bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from leanfed.compression.frame import FrameError
from leanfed.compression.values import NotFiniteError
from leanfed.records import Floats, Ints

Ring = NDArray[np.uint64]
CHUNK: Final = 1 << 16  # values packed at a time; a multiple of 8, so that every chunk ends with a whole byte


@dataclass(frozen=True)
class Grid:
    """F-bit whole numbers for values of at most `reach`, a power of two.

    >>> grid = Grid(value_bits=16, reach=8.0)
    >>> grid.step, grid.rounded(np.array([1.0, -0.0002, 9.0]))
    (0.000244140625, (array([ 4096,    -1, 32767]), 1))
    """

    value_bits: int  # F
    reach: float  # c

    @classmethod
    def of(cls, value_bits: int, reach: float) -> Grid:
        """The grid whose reach is the next power of two: its steps are float64 numbers, and so are its sums."""
        return cls(value_bits, 2.0 ** float(np.ceil(np.log2(reach))))

    @property
    def step(self) -> float:
        """2 c / 2^F."""
        return self.reach / (1 << (self.value_bits - 1))

    def rounded(self, values: Floats) -> tuple[Ints, int]:
        """The values in steps, each off by half a step at most, and how many were cut to +-(c - step)."""
        steps = np.rint(np.asarray(values, dtype=np.float64) / self.step)
        if not np.isfinite(steps).all():
            raise NotFiniteError("Values that are not finite cannot be summed under masks.")
        most = (1 << (self.value_bits - 1)) - 1
        cut = int(np.count_nonzero(np.abs(steps) > most))
        return np.clip(steps, -most, most).astype(np.int64), cut

    def values(self, totals: Ints) -> Floats:
        """Sums of steps as numbers; exact below 2^53 steps."""
        return totals.astype(np.float64) * self.step


def wrapped(numbers: Ints | Ring, bits: int) -> Ring:
    """Numbers modulo 2^bits.

    >>> wrapped(np.array([-1, 5]), 4).tolist()
    [15, 5]
    """
    return numbers.astype(np.uint64) & np.uint64((1 << bits) - 1)


def centred(numbers: Ring, bits: int) -> Ints:
    """The numbers in [-2^(bits - 1), 2^(bits - 1)) that are the same modulo 2^bits.

    >>> centred(np.array([15, 5], dtype=np.uint64), 4).tolist()
    [-1, 5]
    """
    found = wrapped(numbers, bits).astype(np.int64)
    return np.where(found >= 1 << (bits - 1), found - (1 << bits), found)


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of `count` packed numbers."""
    return -(-count * bits // 8)


def packed(numbers: Ring, bits: int) -> bytes:
    """`bits` bits of each number, lowest first, without gaps; the last byte is filled up with zeros."""
    pieces = []
    for start in range(0, len(numbers), CHUNK):
        rows = np.ascontiguousarray(numbers[start : start + CHUNK], dtype="<u8").view(np.uint8).reshape(-1, 8)
        single = np.unpackbits(rows, axis=1, count=bits, bitorder="little")
        pieces.append(np.packbits(single.reshape(-1), bitorder="little").tobytes())
    return b"".join(pieces)


def unpacked(content: bytes, count: int, bits: int) -> Ring:
    """The inverse of `packed`; refuses any other length."""
    if len(content) != packed_bytes(count, bits):
        raise FrameError(f"Frame refused: {len(content)} bytes where {count} numbers of {bits} bits are expected.")
    found, whole = np.empty(count, dtype=np.uint64), np.frombuffer(content, np.uint8)
    for start in range(0, count, CHUNK):
        some = min(CHUNK, count - start)
        part = whole[start * bits // 8 :]
        single = np.unpackbits(part[: packed_bytes(some, bits)], count=some * bits, bitorder="little")
        wide = np.zeros((some, 64), dtype=np.uint8)
        wide[:, :bits] = single.reshape(some, bits)
        found[start : start + some] = np.packbits(wide, axis=1, bitorder="little").view("<u8").reshape(-1)
    return found
