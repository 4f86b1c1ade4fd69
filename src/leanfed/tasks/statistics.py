"""Running statistics of a model's normalisation layers as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from leanfed.errors import SettingsError

EXACT = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)  # counts below 2^24


class Statistics:
    """The persistent buffers of a model (such as running means and variances), read and written as float32.

    Buffers that are not in a model's state_dict are treated as constants. `shared` names the layers (modules) whose
    statistics are sent to the server; `places` are their positions in the vector.
    """

    def __init__(self, model: nn.Module, shared: Collection[str] = ()) -> None:
        saved = model.state_dict(keep_vars=True)
        self._buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
        if odd := [name for name, buffer in self._buffers.items() if buffer.dtype not in EXACT]:
            raise SettingsError(
                f"The buffer {odd[0]!r} of {type(model).__name__} is {self._buffers[odd[0]].dtype}, which 32-bit "
                "values cannot hold. Register it as float32, or with persistent=False if it never changes."
            )
        places, start = [], 0
        for name, buffer in self._buffers.items():
            if name.rpartition(".")[0] in shared:
                places.append(torch.arange(start, start + buffer.numel(), device=buffer.device))
            start += buffer.numel()
        self.size = start
        self.places = torch.cat(places) if places else torch.empty(0, dtype=torch.int64)
        self.initial = self.read()

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The buffers in the order of the vector."""
        return {name: buffer.shape for name, buffer in self._buffers.items()}

    def read(self) -> Tensor:
        """A copy of all statistics, (size,)."""
        parts = [buffer.reshape(-1).to(torch.float32) for buffer in self._buffers.values()]
        return torch.cat(parts) if parts else torch.empty(0)

    @contextmanager
    def unchanged(self, places: Tensor) -> Iterator[None]:
        """Restore the statistics at these positions on leaving the context."""
        before = self.read()[places]
        yield
        if len(places):
            self.write(self.read().index_copy_(0, places, before))

    def write(self, values: Tensor) -> None:
        """Set all statistics from a vector as returned by `read`; integers are rounded."""
        start = 0
        for buffer in self._buffers.values():
            end = start + math.prod(buffer.shape)
            part = values[start:end].view(buffer.shape)
            buffer.copy_(part if buffer.is_floating_point() else part.round())
            start = end
