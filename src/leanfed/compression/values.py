"""Values on the wire: floats of 32 or 16 bits, or coded in 8, 4 or 1 (`levels`); always finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leanfed.compression.frame import FrameError
from leanfed.compression.levels import SCALE_BITS, Range, coded, pack_levels, section_bytes, unpack_levels
from leanfed.errors import nearest

Floats = NDArray[np.float32]
Pack = Callable[[Floats], bytes]
Unpack = Callable[[memoryview], Floats]


class NotFiniteError(FrameError):
    """A frame holds NaN or infinity."""


@dataclass(frozen=True)
class ValueType:
    """How a value is written on the wire."""

    code: int  # its number in the header
    bits: int
    pack: Callable[[Floats, Range | None], bytes]
    unpack: Callable[[memoryview, int], Floats]  # a section of the right length, and how many values it holds
    scaled: bool = False  # whether values are levels of a scale, which is sent along

    def section_bytes(self, count: int) -> int:
        """Bytes of so many values."""
        return section_bytes(self.bits, count) if self.scaled else count * self.bits // 8

    @property
    def beside_bits(self) -> int:
        """Bits that are sent once, however many values there are."""
        return SCALE_BITS if self.scaled else 0


def _as_floats(code: int, bits: int, pack: Pack, unpack: Unpack) -> ValueType:
    return ValueType(code, bits, lambda values, scale: pack(values), lambda section, count: unpack(section))


def _as_levels(code: int, bits: int) -> ValueType:
    return ValueType(
        code,
        bits,
        lambda values, scale: pack_levels(values, bits, scale),
        lambda section, count: unpack_levels(section, bits, count),
        scaled=True,
    )


def _unpack_as(layout: str) -> Unpack:
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
    "float32": _as_floats(1, 32, lambda v: v.astype("<f4", copy=False).tobytes(), _unpack_as("<f4")),
    "float16": _as_floats(2, 16, _pack_float16, _unpack_as("<f2")),
    "bfloat16": _as_floats(3, 16, _pack_bfloat16, _unpack_bfloat16),
    "log8": _as_levels(5, 8),
    "log4": _as_levels(6, 4),
    "sign": _as_levels(7, 1),
}
_NAMES = {value_type.code: name for name, value_type in VALUE_TYPES.items()}


def rounded(values: Floats, dtype: str, rng: np.random.Generator) -> tuple[Floats, Range | None]:
    """The values as a receiver reads them, and their scale if they have one; `rng` decides between two levels."""
    kind = VALUE_TYPES[dtype]
    if kind.scaled:
        return coded(values, kind.bits, rng)
    return unpack_values(memoryview(pack_values(values, dtype)), dtype, len(values)), None


def pack_values(values: Floats, dtype: str, scale: Range | None = None) -> bytes:
    """Write finite values; refuses a value that is too large for a narrower type, or not on its scale."""
    kind = VALUE_TYPES[dtype]
    section = kind.pack(values, scale)
    if dtype != "float32" and not kind.scaled:
        _refuse_overflow(values, kind.unpack(memoryview(section), len(values)), dtype)
    return section


def unpack_values(section: memoryview, dtype: str, count: int) -> Floats:
    """Read `count` values as float32; refuses a wrong length and anything that is not finite."""
    expected = VALUE_TYPES[dtype].section_bytes(count)
    if len(section) != expected:
        raise FrameError(f"Frame refused: {len(section)} bytes of values where {count} {dtype} take {expected}.")
    values = VALUE_TYPES[dtype].unpack(section, count)
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
