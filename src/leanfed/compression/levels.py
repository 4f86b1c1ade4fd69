"""Coded values: a sign and one of a few magnitudes on a logarithmic scale, rounded so that the mean stays.

With b bits a value has a sign and a level of b - 1 bits. Level 0 is zero, level i = 1 ... n with n = 2^(b-1) - 1 is
least (most/least)^((i-1)/(n-1)), where `most` is the largest magnitude that is sent and `least` the smallest, but no
less than 2^-SPAN of the largest. A value between two levels takes the upper one with the probability that makes its
mean the value itself. With one bit there is no level: every value becomes its sign times the mean magnitude. That does
not keep the mean, so one bit needs error feedback.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leanfed.compression.frame import FrameError

Floats = NDArray[np.float32]
SPAN = {8: 16, 4: 6}  # bits of a value -> powers of two between the largest magnitude and the least level
_SCALES = struct.Struct("<ff")
SCALE_BITS = 8 * _SCALES.size  # sent beside the values


class Range(NamedTuple):
    """The least and the largest magnitude of coded values; both zero if all values are."""

    least: float
    most: float


def magnitudes(bits: int, scale: Range) -> Floats:
    """The levels' magnitudes, zero first; with one bit the only one."""
    if bits == 1:
        return np.array([scale.most], dtype=np.float32)
    count = 2 ** (bits - 1) - 1
    if scale.most == 0.0:
        return np.zeros(count + 1, dtype=np.float32)
    steps = scale.least * (scale.most / scale.least) ** (np.arange(count) / (count - 1))
    steps[[0, -1]] = scale
    return np.concatenate([[0.0], steps]).astype(np.float32)


def coded(values: Floats, bits: int, rng: np.random.Generator) -> tuple[Floats, Range]:
    """The values after rounding to levels, and the scale of these levels.

    >>> rounded, scale = coded(np.array([4.0, -1.0, 0.0], np.float32), 8, np.random.default_rng(0))
    >>> rounded.tolist(), scale
    ([4.0, -1.0, 0.0], Range(least=1.0, most=4.0))
    """
    size, draws = np.abs(values).astype(np.float64), rng.random(len(values))
    if bits == 1:
        mean = float(np.float32(size.mean())) if len(size) else 0.0
        return np.where(np.signbit(values), -mean, mean).astype(np.float32), Range(mean, mean)
    most = float(size.max(initial=0.0))
    if most == 0.0:
        return np.zeros_like(values), Range(0.0, 0.0)
    least = max(float(size[size > 0].min()), float(np.float32(most * 2.0 ** -SPAN[bits])))
    scale = Range(least, most)
    levels = magnitudes(bits, scale).astype(np.float64)
    above = np.searchsorted(levels, size)
    below = np.maximum(above - 1, 0)
    gap = levels[above] - levels[below]
    share = np.divide(size - levels[below], gap, out=np.ones_like(size), where=gap > 0)
    rounded = levels[np.where(draws < share, above, below)]
    return np.where(np.signbit(values) & (rounded > 0), -rounded, rounded).astype(np.float32), scale


def pack_levels(values: Floats, bits: int, scale: Range | None) -> bytes:
    """Values that lie on the levels of a scale: the scale, then `bits` for each value."""
    if scale is None:
        raise FrameError(f"Values of {bits} bits have a scale. Round them first, and send them with theirs.")
    levels = magnitudes(bits, scale)
    at = np.minimum(np.searchsorted(levels, np.abs(values)), len(levels) - 1)
    if not np.array_equal(levels[at], np.abs(values)):
        raise FrameError(f"Values of {bits} bits must lie on the levels of their scale. Round them first.")
    codes = at.astype(np.uint8) | (np.signbit(values).astype(np.uint8) << np.uint8(bits - 1))
    return _SCALES.pack(*scale) + _squeezed(codes, bits)


def unpack_levels(section: memoryview, bits: int, count: int) -> Floats:
    """The values in a section of the right length; refuses a scale that is none, and bits that say nothing."""
    scale = Range(*_SCALES.unpack_from(section))
    ordered = 0.0 <= scale.least <= scale.most < np.inf and (scale.least > 0) == (scale.most > 0)
    if not ordered or (bits == 1 and scale.least != scale.most):
        raise FrameError(f"Frame refused: {scale.least} and {scale.most} are no scale of values.")
    codes = _spread(np.frombuffer(section[_SCALES.size :], np.uint8), bits, count)
    negative, at = (codes >> (bits - 1)).astype(np.bool_), codes & (2 ** (bits - 1) - 1)
    if bits > 1 and bool((negative & (at == 0)).any()):
        raise FrameError("Frame refused: a zero has a sign.")
    values: Floats = magnitudes(bits, scale)[at]
    np.negative(values, out=values, where=negative)
    return values


def section_bytes(bits: int, count: int) -> int:
    """Bytes of `count` coded values with their scale."""
    return _SCALES.size + (bits * count + 7) // 8


def _squeezed(codes: NDArray[np.uint8], bits: int) -> bytes:
    """Codes of a few bits, lowest bits of a byte first."""
    if bits == 1:
        return np.packbits(codes, bitorder="little").tobytes()
    if bits == 8:
        return codes.tobytes()
    pairs = np.append(codes, np.zeros(len(codes) % 2, np.uint8)).reshape(-1, 2)
    return (pairs[:, 0] | (pairs[:, 1] << 4)).tobytes()


def _spread(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """The codes that `_squeezed` packed; refuses bits behind the last."""
    if bits == 1:
        codes = np.unpackbits(packed, bitorder="little")
    elif bits == 8:
        codes = packed
    else:
        codes = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
    if codes[count:].any():
        raise FrameError("Frame refused: bits are set behind its last value.")
    return codes[:count]
