"""An upload as it travels: coded into a frame, and read back from it."""

from __future__ import annotations

import numpy as np
import torch

from leanfed.algorithms.uploads import Upload
from leanfed.compression.codec import decode, decode_mask, encode, encode_mask


def to_frame(upload: Upload, dtype: str) -> bytes:
    """What a client sends; `dtype` is how its values travel, a mask has none."""
    if upload.values.dtype == torch.bool:
        return encode_mask(upload.values.numpy())
    positions = None if upload.positions is None else upload.positions.numpy()
    return encode(upload.size, positions, upload.values.numpy(), dtype)


def from_frame(frame: bytes, *, max_size: int, mask: bool = False) -> Upload:
    """What the server reads, or a `FrameError`; never more than `max_size` entries."""
    if mask:
        bits = decode_mask(frame, max_size=max_size)
        return Upload(len(bits), torch.from_numpy(bits))
    read = decode(frame, max_size=max_size)
    places = None if read.positions is None else torch.from_numpy(read.positions.astype(np.int64))
    return Upload(read.size, torch.from_numpy(read.values), places)


def through_wire(upload: Upload, dtype: str) -> tuple[Upload, int]:
    """What the server reads, and the bits that travelled; the same values where `dtype` is float32."""
    frame = to_frame(upload, dtype)
    mask = upload.values.dtype == torch.bool
    return from_frame(frame, max_size=upload.size, mask=mask), 8 * len(frame)
