"""The envelope of an update on the wire: a fixed header, the positions, the values, a checksum.

Little-endian. Bytes 0-3 magic, 4 version, 5 value type, 6 position mode, 7 zero, 8-11 size d, 12-15 count,
16-19 bytes of positions, 20-27 bytes of values; then both sections; the last 8 bytes are BLAKE2b of all before them.
The checksum finds damage, not forgery: every field is checked as if it were hostile.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from leanfed.errors import InputError

MAGIC = b"LNFD"
VERSION = 1
LARGEST_SIZE = 2**31 - 1  # positions are int32
CHECKSUM_BYTES = 8
_RESERVED = 0
_HEADER = struct.Struct("<4sBBBBIIIQ")
OVERHEAD_BYTES = _HEADER.size + CHECKSUM_BYTES


class FrameError(InputError):
    """A frame cannot be decoded, or an update cannot be encoded; the message gives the reason."""


@dataclass(frozen=True)
class Header:
    """The header of a frame: what its sections hold."""

    value_type: int
    position_mode: int
    size: int  # length d of the whole vector
    count: int  # entries that are sent
    position_bytes: int
    value_bytes: int


def bitmap_bytes(size: int) -> int:
    """Bytes of one bit per entry, the most that positions can take."""
    return (size + 7) // 8


def seal(value_type: int, position_mode: int, size: int, count: int, positions: bytes, values: bytes) -> bytes:
    """Put header, sections and checksum together."""
    kinds = (MAGIC, VERSION, value_type, position_mode, _RESERVED)
    body = _HEADER.pack(*kinds, size, count, len(positions), len(values)) + positions + values
    return body + _checksum(body)


def unseal(frame: bytes | bytearray | memoryview, *, max_size: int) -> tuple[Header, memoryview, memoryview]:
    """Check the envelope and return its header and sections, without copying or allocating."""
    view = memoryview(frame).cast("B")
    header = _read_header(view)
    _check_sizes(header, len(view), max_size)
    if _checksum(view[:-CHECKSUM_BYTES]) != view[-CHECKSUM_BYTES:]:
        raise FrameError("Frame refused: its checksum does not match its bytes, so it was damaged. Send it again.")
    values_at = _HEADER.size + header.position_bytes
    return header, view[_HEADER.size : values_at], view[values_at:-CHECKSUM_BYTES]


def _read_header(view: memoryview) -> Header:
    """The header, after checking magic number and version."""
    if len(view) < OVERHEAD_BYTES:
        raise FrameError(f"Frame refused: {len(view)} bytes are fewer than the {OVERHEAD_BYTES} of an empty frame.")
    magic, version, value_type, mode, reserved, *sizes = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FrameError(f"Frame refused: it starts with {magic!r}, not {MAGIC!r}, so it is not an update.")
    if version != VERSION:
        raise FrameError(f"Frame refused: it is version {version}, this build reads {VERSION}. Update the older side.")
    if reserved != _RESERVED:
        raise FrameError(f"Frame refused: its reserved byte is {reserved}, not {_RESERVED}.")
    return Header(value_type, mode, *sizes)


def _check_sizes(header: Header, frame_bytes: int, max_size: int) -> None:
    """Check every size against the caller's limit and the other sizes, before anything is allocated."""
    if header.size > min(max_size, LARGEST_SIZE):
        raise FrameError(f"Frame refused: a vector of {header.size} entries is over the limit of {max_size}.")
    if header.count > header.size:
        raise FrameError(f"Frame refused: {header.count} entries sent of a vector of {header.size}.")
    if header.position_bytes > bitmap_bytes(header.size):
        raise FrameError(f"Frame refused: {header.position_bytes} bytes of positions, more than a bitmap takes.")
    expected = OVERHEAD_BYTES + header.position_bytes + header.value_bytes
    if frame_bytes != expected:
        raise FrameError(f"Frame refused: {frame_bytes} bytes long where its header says {expected}.")


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()
