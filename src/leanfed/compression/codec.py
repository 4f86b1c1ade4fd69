"""Encode updates as bytes, and decode them without trusting their sender.

A sparse, dense, mask or bits update becomes one frame (see `frame`). Decoding trusts nothing: sizes are checked against
the caller's limit before anything is allocated, and what comes out is sorted, in range and finite, or a `FrameError`
says why not.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leanfed.compression.frame import LARGEST_SIZE, FrameError, bitmap_bytes, seal, unseal
from leanfed.compression.levels import Range
from leanfed.compression.positions import Mode, Positions, decode_positions, encode_positions
from leanfed.compression.values import BITS, MASK, Floats, dtype_coded, dtype_named, pack_values, unpack_values

__all__ = [
    "FrameError",
    "SparseUpdate",
    "decode",
    "decode_bits",
    "decode_mask",
    "encode",
    "encode_bits",
    "encode_mask",
    "holds_bits",
]

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, eq=False)
class SparseUpdate:
    """A vector of `size` entries of which some are given; the others are zero."""

    size: int
    positions: Positions | None  # strictly increasing; None when every entry is given
    values: Floats
    dtype: str = "float32"  # of the values on the wire

    def dense(self) -> Floats:
        """The whole vector, with zeros for absent entries."""
        if self.positions is None:
            return self.values.copy()
        vector = np.zeros(self.size, dtype=np.float32)
        vector[self.positions] = self.values
        return vector


def encode(
    size: int,
    positions: ArrayLike | None,
    values: ArrayLike,
    dtype: str = "float32",
    scale: Range | None = None,
    *,
    known: bool = False,
) -> bytes:
    """Write the given entries of a vector of `size` as a frame; without positions, `values` is the whole vector.

    Values of a coded type must have been rounded (`values.rounded`) and come with their scale. Positions that the
    receiver has (`known`) are left out.

    If every entry is given, the frame is dense. Sending zeros for a few absent entries could make a frame shorter, but
    only by some bytes (and one more per 360,000 entries, for 16-bit values), and would lose which entries were sent.

    >>> update = decode(encode(6, [1, 4], [0.5, -2.0]), max_size=6)
    >>> update.positions.tolist(), update.values.tolist()
    ([1, 4], [0.5, -2.0])
    """
    value_type, size = dtype_named(dtype), operator.index(size)
    numbers = _checked_values(values)
    places = None if positions is None else _checked_positions(size, positions)
    _check_counts(size, size if places is None else len(places), len(numbers))
    if known and places is not None:
        mode, section = Mode.KNOWN, b""
    else:
        mode, section = (Mode.ALL, b"") if places is None else encode_positions(size, places)
    return seal(value_type.code, mode, size, len(numbers), section, pack_values(numbers, dtype, scale))


def decode(frame: Bytes, *, max_size: int, known: ArrayLike | None = None) -> SparseUpdate:
    """Read a frame of at most `max_size` entries; memory use is a small multiple of that, whatever the header says.

    `known` positions are those of a frame that was written without them.

    >>> decode(encode(6, [1, 4], [0.5, -2.0], known=True), max_size=6, known=[1, 4]).dense().tolist()
    [0.0, 0.5, 0.0, 0.0, -2.0, 0.0]
    """
    header, positions, values = unseal(frame, max_size=max_size)
    dtype = dtype_coded(header.value_type)
    numbers = unpack_values(values, dtype, header.count)
    here = None if known is None else _checked_positions(header.size, known)
    places = decode_positions(header.position_mode, header.size, header.count, positions, here)
    return SparseUpdate(header.size, places, numbers, dtype)


def encode_mask(mask: ArrayLike) -> bytes:
    """Write a vector of booleans as a frame: at most one bit per entry.

    >>> decode_mask(encode_mask([True, False, True]), max_size=3).tolist()
    [True, False, True]
    """
    flags = np.asarray(mask)
    if flags.ndim != 1 or flags.dtype != np.bool_:
        raise FrameError(f"A mask is a vector of booleans, not {flags.ndim}-dimensional {flags.dtype}.")
    _check_counts(len(flags), 0, 0)
    mode, section = encode_positions(len(flags), np.flatnonzero(flags).astype(np.int32))
    return seal(MASK, mode, len(flags), int(np.count_nonzero(flags)), section, b"")


def encode_bits(size: int, positions: ArrayLike, bits: ArrayLike) -> bytes:
    """Write booleans at some positions of a vector of `size`: the positions, then one bit for each.

    >>> size, places, bits = decode_bits(encode_bits(9, [1, 2, 7], [True, False, True]), max_size=9)
    >>> size, places.tolist(), bits.tolist()
    (9, [1, 2, 7], [True, False, True])
    """
    places, flags = _checked_positions(operator.index(size), positions), np.asarray(bits)
    if flags.ndim != 1 or flags.dtype != np.bool_:
        raise FrameError(f"Bits are a vector of booleans, not {flags.ndim}-dimensional {flags.dtype}.")
    _check_counts(size, len(places), len(flags))
    mode, section = encode_positions(size, places)
    return seal(BITS, mode, size, len(places), section, np.packbits(flags, bitorder="little").tobytes())


def decode_bits(frame: Bytes, *, max_size: int) -> tuple[int, Positions | None, NDArray[np.bool_]]:
    """(size, positions, bits) of a frame of `encode_bits`; positions are None if every entry is given."""
    header, positions, values = unseal(frame, max_size=max_size)
    if header.value_type != BITS:
        raise FrameError("Frame refused: it carries values or a mask, but bits were expected.")
    if len(values) != bitmap_bytes(header.count):
        raise FrameError(f"Frame refused: {len(values)} bytes cannot be {header.count} bits.")
    places = decode_positions(header.position_mode, header.size, header.count, positions)
    bits = np.unpackbits(np.frombuffer(values, np.uint8), bitorder="little")
    if bits[header.count :].any():
        raise FrameError("Frame refused: bits are set behind its last one.")
    return header.size, places, bits[: header.count].astype(np.bool_)


def holds_bits(frame: Bytes, *, max_size: int) -> bool:
    """Whether a frame was written by `encode_bits`."""
    return unseal(frame, max_size=max_size)[0].value_type == BITS


def decode_mask(frame: Bytes, *, max_size: int) -> NDArray[np.bool_]:
    """Read a mask of at most `max_size` entries."""
    header, positions, values = unseal(frame, max_size=max_size)
    if header.value_type != MASK or len(values):
        raise FrameError("Frame refused: it carries values, but a mask was expected.")
    places = decode_positions(header.position_mode, header.size, header.count, positions)
    mask = np.zeros(header.size, dtype=np.bool_)
    mask[slice(None) if places is None else places] = True
    return mask


def _checked_values(values: ArrayLike) -> Floats:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
        numbers = np.ascontiguousarray(values, dtype=np.float32)
    if numbers.ndim != 1:
        raise FrameError(f"Values are a vector, not {numbers.ndim}-dimensional. Flatten them first.")
    if not np.isfinite(numbers).all():
        at = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise FrameError(
            f"Value {at} is {numbers[at]}, but must be finite. Skip this update or lower the learning rate."
        )
    return numbers


def _checked_positions(size: int, positions: ArrayLike) -> Positions:
    places = np.asarray(positions)
    if places.ndim != 1 or (places.size and not np.issubdtype(places.dtype, np.integer)):
        raise FrameError(f"Positions are a vector of integers, not {places.ndim}-dimensional {places.dtype}.")
    if places.size and not (places[0] >= 0 and places[-1] < size and bool((places[1:] > places[:-1]).all())):
        raise FrameError(f"Positions must increase strictly within 0 to {size - 1}. Sort them and drop repeats.")
    return places.astype(np.int32)


def _check_counts(size: int, places: int, numbers: int) -> None:
    if not 0 <= size <= LARGEST_SIZE:
        raise FrameError(f"A vector of {size} entries cannot be sent; 0 to {LARGEST_SIZE} can.")
    if places != numbers:
        raise FrameError(f"{numbers} values for {places} positions. Give one value for each.")
