"""Copies between the host and a device that go on beside the computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

CPU: Final = torch.device("cpu")


def sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device, on their way there from pinned memory where it is a GPU; on the device itself no copy."""
    if values.device == device:
        return values
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=_beside(device))


def returned(values: Tensor) -> Tensor:
    """The values in the host's memory, not to be read before `arrival` says so; of the host itself no copy."""
    return values.to(CPU, non_blocking=_beside(values.device))


def arrival(device: torch.device) -> Callable[[], None]:
    """What waits until everything that was asked of a device up to now is done, copies included."""
    if device.type == "cpu":
        return lambda: None
    module = torch.get_device_module(device)
    event = module.Event()
    # A GPU has streams, and the current one may be that of another GPU.
    event.record(*([module.current_stream(device)] if hasattr(module, "current_stream") else []))
    wait: Callable[[], None] = event.synchronize
    return wait


def _beside(device: torch.device) -> bool:
    """Whether torch keeps the host's memory until such a copy is done: MPS is not known to."""
    return device.type not in ("cpu", "mps")
