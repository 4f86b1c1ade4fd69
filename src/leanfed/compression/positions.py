"""Positions on the wire, close to the entropy bound: range-coded gaps between the rarer entries, or a bitmap.

Gaps between entries kept with probability p are geometric, so coding them under that model takes d H(p) bits, whatever
the positions are; a bitmap takes d. Of long runs, such as rows of matrices, only the positions at which they begin and
end are written. The range coder is constriction's.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from math import log2

import constriction
import numpy as np
from numpy.typing import NDArray

from leanfed.compression.frame import FrameError, bitmap_bytes

Positions = NDArray[np.int32]
_COUNT = struct.Struct("<I")  # coded symbols, ahead of the range coder's 32-bit words
_WIDEST_SPAN = 4096


class Mode(IntEnum):
    """How the positions are written."""

    ALL = 0  # every entry is sent: no positions
    BITMAP = 1
    KEPT_GAPS = 2
    DROPPED_GAPS = 3
    KEPT_RUNS = 4  # where runs begin and end
    KNOWN = 5  # the receiver has them: no positions


def encode_positions(size: int, positions: Positions) -> tuple[Mode, bytes]:
    """Write strictly increasing positions in the form that takes the fewest bytes."""
    if len(positions) == size:
        return Mode.ALL, b""
    single, runs = _encode_single(size, positions), _run_ends(size, positions)
    if 8 * len(runs) < min(len(positions), size - len(positions)):  # else they would hardly be shorter
        section = _COUNT.pack(len(runs)) + _encode_gaps(size, runs)
        return (Mode.KEPT_RUNS, section) if len(section) < len(single[1]) else single
    return single


def _encode_single(size: int, positions: Positions) -> tuple[Mode, bytes]:
    """Positions one by one, as gaps or as a bitmap."""
    kept = 2 * len(positions) <= size
    if _gap_bits(size, min(len(positions), size - len(positions))) < size:
        section = _encode_gaps(size, positions if kept else _others(size, positions))
        if len(section) < bitmap_bytes(size):
            return (Mode.KEPT_GAPS if kept else Mode.DROPPED_GAPS), section
    return Mode.BITMAP, np.packbits(_flags(size, positions), bitorder="little").tobytes()


def decode_positions(
    mode: int, size: int, count: int, section: memoryview, known: Positions | None = None
) -> Positions | None:
    """Read `count` strictly increasing positions below `size`; None if every entry is sent.

    Where the receiver has `known` positions, the sender must have left them out.
    """
    if known is not None or mode == Mode.KNOWN:
        return _as_known(mode, count, section, known)
    if mode == Mode.ALL:
        _check_dense(size, count, section)
        return None
    if mode == Mode.BITMAP:
        return _decode_bitmap(size, count, section)
    if mode == Mode.KEPT_GAPS:
        return _decode_gaps(size, count, section)
    if mode == Mode.DROPPED_GAPS:
        return _others(size, _decode_gaps(size, size - count, section))
    if mode == Mode.KEPT_RUNS:
        return _decode_runs(size, count, section)
    raise FrameError(f"Frame refused: its position mode is {mode}; known are 0 to {max(Mode)}.")


def _as_known(mode: int, count: int, section: memoryview, known: Positions | None) -> Positions:
    if known is None:
        raise FrameError("Frame refused: its positions were left out, but this receiver does not know them.")
    if mode != Mode.KNOWN or len(section):
        raise FrameError("Frame refused: it names positions of its own, where all clients send the same ones.")
    if count != len(known):
        raise FrameError(f"Frame refused: {count} values for the {len(known)} positions that all clients send.")
    return known


def _check_dense(size: int, count: int, section: memoryview) -> None:
    if count != size or len(section):
        raise FrameError(f"Frame refused: it claims to be dense with {count} of {size} entries.")


def _decode_bitmap(size: int, count: int, section: memoryview) -> Positions:
    if len(section) != bitmap_bytes(size):
        raise FrameError(f"Frame refused: {len(section)} bytes cannot be a bitmap of {size} entries.")
    positions = np.flatnonzero(np.unpackbits(np.frombuffer(section, np.uint8), bitorder="little"))
    if len(positions) != count or (count and positions[-1] >= size):
        raise FrameError(f"Frame refused: its bitmap does not mark {count} of {size} entries.")
    return positions.astype(np.int32)


def _run_ends(size: int, positions: Positions) -> Positions:
    """Where a run of entries that are sent, or of such that are not, follows one of the other kind; the first is not.

    >>> _run_ends(9, np.array([2, 3, 4, 8], dtype=np.int32)).tolist()
    [2, 5, 8]
    """
    return np.flatnonzero(np.diff(_flags(size, positions), prepend=False)).astype(np.int32)


def _decode_runs(size: int, count: int, section: memoryview) -> Positions:
    if len(section) < _COUNT.size:
        raise FrameError(f"Frame refused: {len(section)} bytes cannot be runs of entries.")
    (runs,) = _COUNT.unpack_from(section)
    if runs > size:
        raise FrameError(f"Frame refused: {runs} runs cannot lie in {size} entries.")
    changes = np.zeros(size, dtype=np.int8)
    changes[_decode_gaps(size, runs, section[_COUNT.size :])] = 1
    positions = np.flatnonzero(np.cumsum(changes, dtype=np.int32) % 2)
    if len(positions) != count:
        raise FrameError(f"Frame refused: its runs do not mark {count} of {size} entries.")
    return positions.astype(np.int32)


def _encode_gaps(size: int, rare: Positions) -> bytes:
    """Range-code the gaps before each of the rarer entries."""
    symbols = _with_skips(np.diff(rare, prepend=np.int32(-1)) - np.int32(1), _span(size, len(rare)))
    coder = constriction.stream.queue.RangeEncoder()
    if len(symbols):
        coder.encode(symbols, _gap_model(size, len(rare)))
    words: NDArray[np.uint32] = coder.get_compressed()
    return _COUNT.pack(len(symbols)) + words.astype("<u4").tobytes()


def _decode_gaps(size: int, count: int, section: memoryview) -> Positions:
    """The `count` rarer positions; the checks here ensure that they are in order and in range."""
    symbols = _decode_symbols(size, count, section)
    span = _span(size, count)
    landed = symbols < span
    passed = np.cumsum(np.where(landed, symbols + 1, span), dtype=np.int64)  # entries passed after each symbol
    if np.count_nonzero(landed) != count or (len(symbols) and (not landed[-1] or passed[-1] > size)):
        raise FrameError(f"Frame refused: its gaps do not name {count} of {size} positions.")
    return (passed[landed] - 1).astype(np.int32)


def _decode_symbols(size: int, count: int, section: memoryview) -> NDArray[np.int32]:
    """Range-decode the symbols, after checking how many there can be."""
    if 2 * count > size or len(section) < _COUNT.size or len(section) % 4:
        raise FrameError(f"Frame refused: {len(section)} bytes cannot be the gaps of {count} among {size} entries.")
    (symbols,) = _COUNT.unpack_from(section)
    if not count <= symbols <= count + size // _span(size, count):
        raise FrameError(f"Frame refused: {symbols} coded gaps cannot name {count} of {size} positions.")
    words = np.frombuffer(section, "<u4", offset=_COUNT.size).astype(np.uint32)
    return _range_decode(words, size, count, symbols) if count else _nothing(words, symbols)


def _range_decode(words: NDArray[np.uint32], size: int, count: int, symbols: int) -> NDArray[np.int32]:
    decoder = constriction.stream.queue.RangeDecoder(words)
    try:
        decoded: NDArray[np.int32] = decoder.decode(_gap_model(size, count), symbols)
    except (AssertionError, ValueError) as error:
        raise FrameError(f"Frame refused: its gaps cannot be decoded ({error}).") from error
    if not decoder.maybe_exhausted():
        raise FrameError("Frame refused: bytes are left over after its last gap.")
    return decoded


def _nothing(words: NDArray[np.uint32], symbols: int) -> NDArray[np.int32]:
    if symbols or len(words):
        raise FrameError("Frame refused: it has gaps but no entries between them.")
    return np.empty(0, np.int32)


def _with_skips(gaps: Positions, span: int) -> NDArray[np.int32]:
    """Gaps as symbols below `span`; the symbol `span` passes that many entries without landing on one."""
    skips = gaps // span
    if not skips.any():
        return gaps
    landings = np.cumsum(skips + 1) - 1
    symbols = np.full(landings[-1] + 1, span, dtype=np.int32)
    symbols[landings] = gaps % span
    return symbols


def _span(size: int, count: int) -> int:
    """Symbols of the gap model: at least eight mean gaps, so that skips are rare, but never a huge table."""
    return min(_WIDEST_SPAN, 1 << (8 * size // max(count, 1)).bit_length())


def _gap_model(size: int, count: int) -> constriction.stream.model.Categorical:
    """Geometric gaps p q^g for g below the span, and q^span for a skip, with p = count / size.

    Both ends must build the same table to the last bit, on any machine: only division, subtraction and products in a
    fixed order are used, which IEEE 754 fixes, and no power function, which it does not.
    """
    p = count / size
    tail = np.multiply.accumulate(np.concatenate([[1.0], np.full(_span(size, count), 1.0 - p)]))  # q^0 ... q^span
    tail[:-1] *= p
    return constriction.stream.model.Categorical(tail, perfect=False)


def _gap_bits(size: int, count: int) -> float:
    """The expected bits of the gaps, d H(p), to skip coding them if a bitmap is shorter anyway."""
    p = count / size
    return 0.0 if count == 0 else -size * (p * log2(p) + (1.0 - p) * log2(1.0 - p))


def _flags(size: int, positions: Positions) -> NDArray[np.bool_]:
    flags = np.zeros(size, dtype=np.bool_)
    flags[positions] = True
    return flags


def _others(size: int, positions: Positions) -> Positions:
    """The positions below `size` that are not given."""
    return np.flatnonzero(~_flags(size, positions)).astype(np.int32)
