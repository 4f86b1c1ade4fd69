"""Values on the wire: float32, float16 or bfloat16, always finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leanfed.compression.frame import FrameError
from leanfed.errors import nearest

Floats = NDArray[np.float32]


class NotFiniteError(FrameError):
    """A frame holds NaN or infinity."""


@dataclass(frozen=True)
class ValueType:
    """How a value is written on the wire."""

    code: int  # its number in the header
    width_bytes: int
    pack: Callable[[Floats], bytes]
    unpack: Callable[[memoryview], Floats]


def _unpack_as(layout: str) -> Callable[[memoryview], Floats]:
    return lambda section: np.frombuffer(section, layout).astype(np.float32)


def _pack_bfloat16(values: Floats) -> bytes:
    """The upper half of each float32, rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _unpack_bfloat16(section: memoryview) -> Floats:
    return (np.frombuffer(section, "<u2").astype(np.uint32) << 16).view(np.float32)


def _pack_float16(values: Floats) -> bytes:
    with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused by the caller
        return values.astype("<f2").tobytes()


MASK, BITS = 0, 4  # the codes of frames without values: positions of the set bits; or positions, and a bit for each
VALUE_TYPES = {
    "float32": ValueType(1, 4, lambda v: v.astype("<f4", copy=False).tobytes(), _unpack_as("<f4")),
    "float16": ValueType(2, 2, _pack_float16, _unpack_as("<f2")),
    "bfloat16": ValueType(3, 2, _pack_bfloat16, _unpack_bfloat16),
}
_NAMES = {value_type.code: name for name, value_type in VALUE_TYPES.items()}


def pack_values(values: Floats, dtype: str) -> bytes:
    """Write finite values; refuses a value that is too large for a narrower type."""
    section = VALUE_TYPES[dtype].pack(values)
    if dtype != "float32":
        _refuse_overflow(values, VALUE_TYPES[dtype].unpack(memoryview(section)), dtype)
    return section


def unpack_values(section: memoryview, dtype: str, count: int) -> Floats:
    """Read `count` values as float32; refuses a wrong length and anything that is not finite."""
    expected = count * VALUE_TYPES[dtype].width_bytes
    if len(section) != expected:
        raise FrameError(f"Frame refused: {len(section)} bytes of values where {count} {dtype} take {expected}.")
    values = VALUE_TYPES[dtype].unpack(section)
    if not np.isfinite(values).all():
        raise NotFiniteError("Frame refused: it holds values that are not finite.")
    return values


def _refuse_overflow(values: Floats, written: Floats, dtype: str) -> None:
    lost = np.flatnonzero(~np.isfinite(written))
    if lost.size:
        at = int(lost[0])
        raise FrameError(f"Value {at} is {values[at]}, too large for {dtype}. Send float32 or clip it.")


def dtype_named(dtype: str) -> ValueType:
    """The value type of that name."""
    if dtype not in VALUE_TYPES:
        raise FrameError(f"Unknown value type {dtype!r}; {nearest(dtype, VALUE_TYPES)}")
    return VALUE_TYPES[dtype]


def dtype_coded(code: int) -> str:
    """The name of the value type with that code in a header."""
    if code not in _NAMES:
        raise FrameError(f"Frame refused: its value type is {code}; an update has one of {sorted(_NAMES)}.")
    return _NAMES[code]
