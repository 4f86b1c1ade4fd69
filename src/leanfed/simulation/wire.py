"""An upload as it would travel: coded into a frame, and read back from it."""

from __future__ import annotations

import numpy as np
import torch

from leanfed.algorithms.base import Upload
from leanfed.compression.codec import decode, decode_mask, encode, encode_mask


def through_wire(upload: Upload, dtype: str) -> tuple[Upload, int]:
    """What the server reads, and the bits that travelled; the same values where `dtype` is float32."""
    if upload.values.dtype == torch.bool:
        frame = encode_mask(upload.values.numpy())
        return Upload(upload.size, torch.from_numpy(decode_mask(frame, max_size=upload.size))), 8 * len(frame)
    positions = None if upload.positions is None else upload.positions.numpy()
    frame = encode(upload.size, positions, upload.values.numpy(), dtype)
    read = decode(frame, max_size=upload.size)
    places = None if read.positions is None else torch.from_numpy(read.positions.astype(np.int64))
    return Upload(read.size, torch.from_numpy(read.values), places), 8 * len(frame)
