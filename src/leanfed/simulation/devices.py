"""Devices by name: the processor, a GPU, or what is there."""

from __future__ import annotations

import os
from typing import Final

import torch

from leanfed.errors import SettingsError
from leanfed.tasks.batch import CPU

AUTO: Final = "auto"


def device_of(name: str) -> torch.device:
    """The device of a name; one that is not there is refused. `cuda` alone is a GPU of its own for each local rank."""
    if name == AUTO:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cpu":
        return CPU
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise _missing(name, "this machine has no Apple GPU that torch can use")
        return torch.device("mps")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise _missing(name, "this machine has no NVIDIA GPU that torch can use, or torch is a build without CUDA")
    _same_bits_again()
    kind, colon, number = name.partition(":")
    place = int(number) if colon else int(os.environ.get("LOCAL_RANK", 0)) % count
    if place >= count:
        raise _missing(name, f"the GPUs here are numbered 0 to {count - 1}")
    return torch.device(kind, place)


def _missing(name: str, why: str) -> SettingsError:
    return SettingsError(f"run.device = {name!r} is not there: {why}. Set run.device = 'auto' or 'cpu'.")


def _same_bits_again() -> None:
    """Let CUDA compute the same bits every time: no atomics where there is a choice, no shortened mantissas."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def name_of(device: torch.device) -> str:
    """A device as a reader knows it, such as cpu or cuda:0 (NVIDIA A100)."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
