"""Uploads on the wire: encoding into a frame, and decoding it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from leanfed.algorithms.uploads import Upload
from leanfed.compression.codec import (
    decode,
    decode_bits,
    decode_mask,
    encode,
    encode_bits,
    encode_mask,
    holds_bits,
)
from leanfed.records import Ints


def to_frame(upload: Upload, dtype: str) -> bytes:
    """The frame that a client sends; `dtype` is the type of its values on the wire, unused for a mask."""
    upload = upload.cpu()
    positions = None if upload.positions is None else upload.positions.numpy()
    if upload.values.dtype == torch.bool:
        bits = upload.values.numpy()
        return encode_mask(bits) if positions is None else encode_bits(upload.size, positions, bits)
    return encode(upload.size, positions, upload.values.numpy(), dtype, upload.scale, known=upload.common)


def from_frame(frame: bytes, *, max_size: int, mask: bool = False, known: Ints | None = None) -> Upload:
    """The upload in a frame of at most `max_size` entries; raises `FrameError` for an invalid one.

    `known` are the positions that all clients send, and that frames therefore leave out.
    """
    if mask:
        return _mask_in(frame, max_size)
    read = decode(frame, max_size=max_size, known=known)
    places = None if read.positions is None else torch.from_numpy(read.positions.astype(np.int64))
    return Upload(read.size, torch.from_numpy(read.values), places, common=known is not None)


def _mask_in(frame: bytes, max_size: int) -> Upload:
    if holds_bits(frame, max_size=max_size):
        size, positions, some = decode_bits(frame, max_size=max_size)
        where = None if positions is None else torch.from_numpy(positions.astype(np.int64))
        return Upload(size, torch.from_numpy(some), where)
    bits = decode_mask(frame, max_size=max_size)
    return Upload(len(bits), torch.from_numpy(bits))


def through_wire(upload: Upload, dtype: str) -> tuple[Upload, int]:
    """The upload as the server decodes it, and the bits sent; with float32 the values do not change."""
    frame = to_frame(upload, dtype)
    mask = upload.values.dtype == torch.bool
    known = upload.positions.numpy() if upload.common and upload.positions is not None else None
    read = from_frame(frame, max_size=upload.size, mask=mask, known=known)
    return replace(read, within=upload.within), 8 * len(frame)
