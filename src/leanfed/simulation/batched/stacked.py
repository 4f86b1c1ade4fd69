"""A learner for C clients at once of any nn.Module that is made of known layers (`batched.leaves`)."""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from leanfed.algorithms.contract import Weights
from leanfed.compression.picks import NumpyPicks, Picks
from leanfed.compression.tensor_picks import TensorPicks
from leanfed.simulation.batched.leaves import RULES, Pass, Slot, Slots, beyond
from leanfed.tasks.batch import Batch
from leanfed.tasks.chain import cut_at, through
from leanfed.tasks.losses import LossSpec, fit
from leanfed.tasks.split import Split, flatten


class _Place(NamedTuple):
    """Where a trained parameter lies: its part of the weights, and its column in that part and in the gradient."""

    part: int  # 0 shared, 1 private
    start: int
    column: int
    shape: torch.Size

    def value(self, weights: tuple[Tensor, Tensor], clients: int) -> Tensor:
        """(C, *shape), a view."""
        rows = weights[self.part][:, self.start : self.start + math.prod(self.shape)]
        return rows.view(len(rows), *self.shape).expand(clients, *self.shape)

    def gradient(self, gradient: Tensor) -> Tensor:
        """(C, *shape), a view of a matrix (C, d)."""
        columns = gradient[:, self.column : self.column + math.prod(self.shape)]
        return columns.view(len(columns), *self.shape)


def unfit(model: nn.Module) -> str | None:
    """Why a module is not made of known layers, as a clause; None if it is."""
    known: set[str] = set()
    seen: set[int] = set()
    for path, layer in model.named_modules():
        inside = any(path.startswith(f"{above}.") for above in known)
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            return f"{path or 'the model'} drops out at random"
        if next(layer.buffers(recurse=False), None) is not None:
            return f"{path or 'the model'} ({type(layer).__name__}) keeps running statistics or other buffers"
        if inside:
            continue
        own = {id(parameter) for parameter in layer.parameters(recurse=type(layer) in RULES)}
        if type(layer) in RULES:
            if what := beyond(layer):
                return f"{path or 'the model'} has {what}"
            if own & seen:
                return f"{path or 'the model'} shares weights with another layer"
            known.add(path)
        elif own:
            return f"{path or 'the model'} ({type(layer).__name__}) has weights that it has no rule for"
        seen |= own
    return None


ALIGNED = 16  # floats in 64 bytes


def aligned(rows: int, size: int, device: torch.device) -> Tensor:
    """An empty matrix (rows, size) whose rows begin alike: products of matrices round by where their operands lie."""
    return torch.empty(rows, -(-size // ALIGNED) * ALIGNED, device=device)[:, :size]


@final
class StackedLearner:
    """Known layers as a `Learner`: batches hold samples (C, B, ...); the gradient is overwritten by every call."""

    def __init__(self, model: nn.Module, split: Split, loss: LossSpec) -> None:
        self.split = split
        self.loss = loss
        self.initial = flatten(model, split.shapes)  # (d,)
        self.device = self.initial.device
        self.picks: Picks = NumpyPicks() if self.device.type == "cpu" else TensorPicks()
        self._now = Pass(anchor=torch.zeros(1, device=self.device, requires_grad=True))
        self._places: list[tuple[_Place, Slots, str]] = []
        self._frozen: list[tuple[Tensor, Slots, str]] = []
        self._before, self._behind = cut_at(model, split.private)
        self._features = torch.empty(0)  # input of the private part in the last call, (C B, ...)
        self._gradient = aligned(0, split.size, self.device)
        self._weights = aligned(0, split.shared_size, self.device), aligned(0, split.private_size, self.device)
        self._install(model.train())

    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        """(C,) and (C, d)."""
        gradient = self._load(weights, len(batch.labels))
        with torch.enable_grad():
            features = through(self._before, batch.inputs.flatten(0, 1))
            losses = self._losses(through(self._behind, features), batch.labels)
            losses.sum().backward()  # type: ignore[no-untyped-call]
        self._features = features.detach()
        return losses.detach(), gradient.contiguous()

    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        """(C, d_private)."""
        gradient = self._load(weights, len(batch.labels))
        with torch.enable_grad():
            self._losses(through(self._behind, self._features), batch.labels).sum().backward()  # type: ignore[no-untyped-call]
        return gradient[:, self.split.shared_size :].contiguous()

    def _install(self, model: nn.Module) -> None:
        """Let every known layer compute for C clients; its own weights are not used again."""
        columns, start = {}, 0
        for name, shape in self.split.shapes.items():
            columns[name] = start
            start += math.prod(shape)
        for path, layer in list(model.named_modules()):
            rule = RULES.get(type(layer))
            if rule is None:
                continue
            slots: Slots = {}
            for own, parameter in layer.named_parameters():
                name = f"{path}.{own}".lstrip(".")
                if name not in columns:
                    self._frozen.append((parameter.detach(), slots, own))
                    continue
                part = int(name in self.split.private)
                first = columns[name] - part * self.split.shared_size
                self._places.append((_Place(part, first, columns[name], parameter.shape), slots, own))
            layer.forward = rule(layer, self._now, slots)

    def _load(self, weights: Weights, clients: int) -> Tensor:
        """Point every layer to its weights and its gradient; returns the gradient (C, d), all zeros."""
        if len(self._gradient) != clients:
            self._gradient = aligned(clients, self.split.size, self.device)
        self._gradient.zero_()
        self._weights = self._copied(self._weights[0], weights.shared), self._copied(self._weights[1], weights.private)
        self._now.clients = clients
        self._now.written.clear()
        for place, slots, own in self._places:
            slots[own] = Slot(place.value(self._weights, clients), place.gradient(self._gradient))
        for frozen, slots, own in self._frozen:
            slots[own] = Slot(frozen.expand(clients, *frozen.shape), None)
        return self._gradient

    def _copied(self, held: Tensor, part: Tensor) -> Tensor:
        """Weights (1 or C, size) in rows that begin alike."""
        rows, size = part.shape
        if rows == 1 or size % ALIGNED == 0:
            return part
        if held.shape != part.shape:
            held = aligned(rows, size, self.device)
        return held.copy_(part)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Each client's mean loss (C,)."""
        flat, clients = labels.flatten(0, 1), len(labels)
        outputs = fit(outputs, flat)
        if self.loss.each is not None:
            return self.loss.each(outputs, flat).reshape(clients, -1).mean(1)
        parts = outputs.view(clients, -1, *outputs.shape[1:])
        return torch.stack([self.loss.compute(own, told) for own, told in zip(parts, labels, strict=True)])
