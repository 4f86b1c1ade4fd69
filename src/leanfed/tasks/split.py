"""The split of a model into a shared and a private part, and the model as one flat vector [shared | private]."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from leanfed.errors import SettingsError, nearest
from leanfed.tasks.chain import cut_at, through
from leanfed.tasks.losses import Loss, fit
from leanfed.tasks.statistics import Statistics

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Split:
    """Parameter names and shapes of the shared and of the private part, each in the model's own order."""

    shared: Mapping[str, torch.Size]
    private: Mapping[str, torch.Size]

    @cached_property
    def shared_size(self) -> int:
        """d_B, where the base is the shared part."""
        return sum(math.prod(shape) for shape in self.shared.values())

    @cached_property
    def private_size(self) -> int:
        """d_P, where the head is the private part."""
        return sum(math.prod(shape) for shape in self.private.values())

    @cached_property
    def size(self) -> int:
        """d = d_B + d_P."""
        return self.shared_size + self.private_size

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """All parameters in the order of the flat vector."""
        return {**self.shared, **self.private}

    def reversed(self) -> Split:
        """The private part shared and the shared part private."""
        return Split(shared=self.private, private=self.shared)

    def all_shared(self) -> Split:
        """The split with every parameter shared."""
        return Split(shared=self.shapes, private={})

    def all_private(self) -> Split:
        """The split with every parameter private."""
        return Split(shared={}, private=self.shapes)


def split_after(model: nn.Module, layer: str) -> Split:
    """Split after `layer`: it and everything before it is the shared base, the rest the private head.

    This works for any module: parameters are taken in the order in which the model registers them, frozen ones are left
    out, and `layer` may be any prefix of a parameter's name that ends at a dot.
    """
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    names = list(shapes)
    inside = [i for i, name in enumerate(names) if name.startswith(f"{layer}.")]
    if not inside:
        layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
        raise SettingsError(f"The model has no layer {layer!r} to split after: {nearest(layer, layers)}")
    cut = inside[-1] + 1
    if cut == len(names):
        raise SettingsError(f"A split after {layer!r} leaves no head. Choose an earlier layer, or method 'fedavg'.")
    return Split({n: shapes[n] for n in names[:cut]}, {n: shapes[n] for n in names[cut:]})


def flatten(model: nn.Module, shapes: Mapping[str, torch.Size]) -> Tensor:
    """The named parameters of a model as one new vector, in the given order."""
    parameters = dict(model.named_parameters())
    return torch.cat([parameters[name].detach().reshape(-1) for name in shapes] or [torch.empty(0)])


def modules_of(names: Iterable[str]) -> set[str]:
    """The modules that own parameters of these names."""
    return {name.rpartition(".")[0] for name in names}


class FlatModel:
    """A model whose weights and gradients are views into two flat vectors laid out as [shared | private].

    Parameters outside the split (those that do not require a gradient) are frozen at their initial values.
    `statistics` are the model's persistent buffers; with `share_statistics`, those of layers with shared parameters are
    sent to the server. Training uses the statistics of the batch and updates the running ones; predictions use the
    running ones.

    For `head_gradient`, a `Chain` and an `nn.Sequential` keep the input of their first stage with private parameters,
    other models the batch.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        *,
        share_statistics: bool = False,
        loss: Loss = functional.cross_entropy,
        precision: Precision = "float32",
    ) -> None:
        self.model = model
        self.precision = precision
        self.loss = loss
        self.split = split
        base = Statistics(model, modules_of(split.shared))
        self.statistics = base if share_statistics else Statistics(model)
        self.random = any(isinstance(part, _DropoutNd) and part.p > 0 for part in model.modules())
        self._weights = flatten(model, split.shapes)
        self.device = self._weights.device
        model.train()
        self._gradient = torch.zeros_like(self._weights)
        self.initial = self._weights.clone()  # (d,), the same on every machine
        start = 0
        parameters = dict(model.named_parameters())
        self._private = [parameters[name] for name in split.private]
        self._before, self._behind = cut_at(model, split.private)
        self.features = torch.empty(0, device=self.device)  # last input of the private part
        self._base_statistics = base.places
        self._parts = self._weights[: split.shared_size], self._weights[split.shared_size :]
        for name, shape in split.shapes.items():
            end = start + math.prod(shape)
            parameters[name].data = self._weights[start:end].view(shape)
            parameters[name].grad = self._gradient[start:end].view(shape)
            start = end

    def load(self, weights: Tensor | tuple[Tensor, ...]) -> None:
        """Load weights: one vector (d,), or consecutive parts of it."""
        if isinstance(weights, Tensor):
            self._weights.copy_(weights)
            return
        if len(weights[0]) == self._parts[0].shape[0]:  # cut where the split is, as nearly always
            for place, part in zip(self._parts, weights, strict=False):
                place.copy_(part)
            return
        start = 0
        for part in weights:
            self._weights[start : start + len(part)].copy_(part)
            start += len(part)

    def loss_and_gradient(
        self, weights: Tensor | tuple[Tensor, ...], inputs: Tensor, labels: Tensor
    ) -> tuple[float, Tensor]:
        """Mean loss of a batch and its gradient, Eq. (2); the gradient is valid until the next call."""
        loss, gradient = self.step(weights, inputs, labels)
        return loss.item(), gradient

    def step(self, weights: Tensor | tuple[Tensor, ...], inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`loss_and_gradient` with the loss left on the device, so that nothing waits for it."""
        if not self.model.training:  # the whole tree changes its mode together, and a walk through it is not free
            self.model.train()
        self.load(weights)
        self._gradient.zero_()
        with torch.enable_grad():
            with self._cast():
                features = through(self._before, inputs)
                loss = self.loss(fit(through(self._behind, features), labels), labels)
            self.features = features.detach()
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), self._gradient

    def _cast(self) -> AbstractContextManager[Any]:
        """Forward passes in the precision of the run; weights, gradients and statistics stay float32."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def head_gradient(self, private: Tensor, labels: Tensor) -> Tensor:
        """The gradient (d_P,) at other private weights, on the batch and the shared weights of the last call.

        Running statistics of shared layers are not updated a second time, even if the batch passes those layers again.
        """
        self._weights[self.split.shared_size :].copy_(private)
        keeping = self.statistics.unchanged(self._base_statistics) if len(self._base_statistics) else nullcontext()
        with torch.enable_grad(), keeping, self._cast():
            loss = self.loss(fit(through(self._behind, self.features), labels), labels)
            slopes = torch.autograd.grad(loss, self._private)
        return torch.cat([slope.reshape(-1) for slope in slopes])

    def measure_statistics(self, weights: Tensor | tuple[Tensor, ...], batches: Iterable[Tensor]) -> None:
        """Replace the running statistics of batch normalisation by their plain mean over the batches."""
        layers = [part for part in self.model.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
        if not layers:
            return
        momenta = [layer.momentum for layer in layers]
        self.load(weights)
        self.model.train()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # torch: a plain mean
        with torch.no_grad(), self._cast():
            for inputs in batches:
                self.model(inputs.to(self.device))
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum

    def logits(self, weights: Tensor | tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """The model's outputs at the given weights, with its running statistics."""
        if self.model.training:
            self.model.eval()
        self.load(weights)
        with torch.no_grad(), self._cast():
            answer: Tensor = self.model(inputs.to(self.device))
        return answer if answer.dtype != torch.bfloat16 else answer.to(torch.float32)
