"""A device written in Python: its tensors hold CPU tensors, and what mixes the two is refused, as on a real one.

It finds values, gradients, mixtures of devices and `.numpy()`, and counts copies between the devices and moments at
which the host waits. A copy to the host that is not waited for holds nothing of use until there is a wait, so that who
reads it too early computes other numbers. It says nothing of streams, kernels, memory or speed. torch's way to register
it is experimental.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
ALLOWED = ("aten::_to_copy", "aten::copy_")  # what may touch both devices
WAITING = ("aten::_local_scalar_dense", "aten::item", "aten::nonzero")
COUNTS = {"to device": 0, "to host": 0, "values to device": 0, "waits": 0}
UNDERWAY: list[tuple[Tensor, Tensor]] = []  # (tensor of the host, the values that it is going to have)


class PretendTensor(Tensor):
    """A tensor on the pretend device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> PretendTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        made.inner = inner
        return made

    @property  # type: ignore[override]
    def data(self) -> Tensor:
        """The values without their history; setting it makes this tensor a view of others, as parameters are."""
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, values: PretendTensor) -> None:
        Tensor.data.__set__(self, values)  # type: ignore[attr-defined]
        self.inner = values.inner

    def __repr__(self) -> str:
        return f"pretend {self.inner!r}"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(function, args, kwargs or {})


class Event:
    """A moment, as devices have it: `synchronize` waits if copies that were on their way then still are."""

    def record(self) -> None:
        """Now."""
        self._last = UNDERWAY[-1][0] if UNDERWAY else None

    def synchronize(self) -> None:
        """Wait for it."""
        if any(host is self._last for host, _ in UNDERWAY):
            waited()


def waited() -> None:
    """The host waits: all copies arrive."""
    COUNTS["waits"] += 1
    while UNDERWAY:
        host, values = UNDERWAY.pop()
        host.copy_(values)


def device() -> torch.device:
    """The pretend device, registered when it is first asked for."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, backend_module=_module())
        for name in ("empty.memory_format", "empty_strided", "zeros", "full", "arange"):
            _registered(name)
    return torch.device(NAME, 0)


def _module() -> Any:
    """What torch asks of a device, and its events."""
    asked = {"is_initialized": True, "is_available": True, "current_device": 0, "device_count": 1}
    answers = {name: lambda answer=answer: answer for name, answer in asked.items()}
    return SimpleNamespace(**answers, _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None, Event=Event)


def _registered(name: str) -> None:
    """A factory of tensors on the device."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")
    library = LIBRARY

    def make(*args: Any, **kwargs: Any) -> Tensor:
        return PretendTensor(function(*args, **{**kwargs, "device": torch.device("cpu"), "pin_memory": False}))

    if function._schema.name in ("aten::empty", "aten::empty_strided"):
        library.impl(name, make)


LIBRARY = torch.library.Library("aten", "IMPL", "PrivateUse1")


def dispatched(function: Any, args: Any, kwargs: Any) -> Any:
    """Compute on the CPU; a mixture of devices is refused, unless it is a copy or a number."""
    flat = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    ours = [each for each in flat if isinstance(each, PretendTensor)]
    hosts = [each for each in flat if not isinstance(each, PretendTensor) and each.dim() > 0]
    name = function._schema.name
    if ours and hosts and name not in ALLOWED:
        raise RuntimeError(f"{name} mixes tensors of the host and of the pretend device")
    if name in WAITING:
        waited()
    target = kwargs.get("device")
    inner_kwargs = {**kwargs, "device": torch.device("cpu")} if target is not None else kwargs
    unwrapped = tree_map(lambda each: each.inner if isinstance(each, PretendTensor) else each, (args, inner_kwargs))
    if name == "aten::copy_" and isinstance(args[0], PretendTensor) != isinstance(args[1], PretendTensor):
        _count(isinstance(args[0], PretendTensor), args[1])
        if not isinstance(args[0], PretendTensor):
            waited()
    result = function(*unwrapped[0], **unwrapped[1])
    if name == "aten::_to_copy" and target is not None and target.type == "cpu":
        _count(False, args[0])
        return _on_its_way(result) if kwargs.get("non_blocking") else _waited_for(result)
    if name == "aten::copy_" and not isinstance(args[0], PretendTensor):
        return args[0]
    if name.endswith("_") or (args and isinstance(args[0], PretendTensor) and result is args[0].inner):
        return args[0]
    return tree_map(lambda each: PretendTensor(each) if isinstance(each, Tensor) else each, result)


def _count(to_device: bool, values: Tensor) -> None:
    COUNTS["to device" if to_device else "to host"] += 1
    COUNTS["values to device"] += values.numel() if to_device else 0


def _waited_for(values: Tensor) -> Tensor:
    waited()
    return values


def _on_its_way(values: Tensor) -> Tensor:
    """A tensor of the host that will have these values."""
    host = torch.full_like(values, torch.nan if values.is_floating_point() else 1)
    UNDERWAY.append((host, values.clone()))
    return host
