"""Units that can be taken out of a private part: rows of a layer with the columns of the next, found by tracing.

A unit is an output of a linear layer or a channel of a convolution. It can be taken out if all that becomes of it goes
through operations that leave zeros at zero and units apart (activations, pooling, dropout, batch normalisation) into
linear layers and convolutions: without its row, its normalisation and their columns the rest computes the same as with
all of these set to zero. Layers that are added to others, such as the last of a residual block, keep their units.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AvgPoolNd, _MaxPoolNd
from typing_extensions import override

from leanfed.errors import SettingsError, first_line
from leanfed.tasks.split import Split

SIMPLE: Final = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Identity, _DropoutNd)
PLANAR: Final = (_MaxPoolNd, _AvgPoolNd, _AdaptiveAvgPoolNd, nn.Flatten)  # for channels, which have a picture each
SIMPLE_NAMES: Final = {"relu", "relu_", "relu6", "leaky_relu", "elu", "gelu", "silu", "tanh", "dropout", "contiguous"}
PLANAR_NAMES: Final = {"max_pool2d", "_max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "flatten", "mean"}
Kept = Mapping[str, Tensor]  # layer -> units that stay, increasing


@dataclass(frozen=True)
class Layer:
    """A layer whose units can be taken out, the normalisations behind it, and the layers that read it."""

    name: str
    units: int
    norms: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Units:
    """The units of a private part, and the model that they belong to."""

    model: nn.Module
    split: Split
    layers: tuple[Layer, ...]

    @cached_property
    def entries(self) -> dict[str, Tensor]:
        """Layer -> (units, width): the entries of the private vector that go with each unit."""
        where = positions(self.split.private)
        return {layer.name: torch.cat(list(self._parts(layer, where)), dim=1) for layer in self.layers}

    def _parts(self, layer: Layer, where: Mapping[str, Tensor]) -> Iterator[Tensor]:
        for name in (layer.name, *layer.norms):
            for part in ("weight", "bias"):
                if f"{name}.{part}" in where:
                    yield where[f"{name}.{part}"].reshape(layer.units, -1)
        for reader in layer.readers:
            yield by_column(where[f"{reader}.weight"], layer.units).reshape(layer.units, -1)

    def counts(self, r: float) -> dict[str, int]:
        """Layer -> units that a keep rate keeps: r x units rounded down, but at least one."""
        return {layer.name: max(1, math.floor(r * layer.units + 1e-9)) for layer in self.layers}

    def mask(self, kept: Kept) -> Tensor:
        """(d_private,) zeros and ones: zero where a weight goes with a unit that is taken out."""
        mask = torch.ones(self.split.private_size)
        for name, entries in self.entries.items():
            gone = torch.ones(len(entries), dtype=torch.bool)
            gone[kept[name]] = False
            mask[entries[gone].flatten()] = 0.0
        return mask

    def nonzero(self, private: Tensor) -> dict[str, Tensor]:
        """The units of a private vector that have a weight other than zero; at least one of each layer."""
        found = {}
        for name, entries in self.entries.items():
            there = (private[entries] != 0).any(1).nonzero().flatten()
            found[name] = there if len(there) else torch.zeros(1, dtype=torch.int64)
        return found

    def operations(self, multiply_adds: Mapping[str, int], r: float) -> float:
        """Multiply-adds of the named layers that are left at keep rate r."""
        counts, total = self.counts(r), 0.0
        share = {layer.name: counts[layer.name] / layer.units for layer in self.layers}
        read = {reader: share[layer.name] for layer in self.layers for reader in layer.readers}
        for name, count in multiply_adds.items():
            total += count * share.get(name, 1.0) * read.get(name, 1.0)
        return total


def positions(shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Where each entry of the named parameters is in the vector that they make."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = torch.arange(start, start + math.prod(shape)).reshape(shape)
        start += math.prod(shape)
    return found


def by_column(weight: Tensor, units: int) -> Tensor:
    """A reader's weight (outputs, inputs, ...) as (units, outputs, entries): a unit may be several of its inputs."""
    return weight.reshape(len(weight), units, -1).transpose(0, 1)


def find_units(model: nn.Module, split: Split) -> Units:
    """The units of the private part; refuses a model that cannot be traced, or whose head has none."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # whatever a forward pass makes of a proxy
        reason = first_line(error)
        raise SettingsError(
            f"algorithm.prune.unit = 'unit' needs a model whose forward pass can be traced; {type(model).__name__} "
            f"cannot ({reason}). Set algorithm.prune.unit = 'weight'."
        ) from error
    modules = dict(model.named_modules())
    calls = [node for node in graph.nodes if node.op == "call_module"]
    once = {node.target for node in calls} - {n.target for n in calls if [c.target for c in calls].count(n.target) > 1}
    found = [_layer(node, modules, split, once) for node in calls]
    layers = tuple(layer for layer in found if layer is not None)
    if not layers:
        raise SettingsError(
            f"algorithm.prune.unit = 'unit' finds no layer in the head of {type(model).__name__} whose units can be "
            "taken out: one that is read by layers of the head alone, through activations, pooling, dropout or batch "
            "normalisation. Choose an earlier task.split, or set "
            "algorithm.prune.unit = 'weight'."
        )
    return Units(model, split, layers)


class _Tracer(fx.Tracer):
    """Layers with weights stay whole, also those of classes that are derived from torch's."""

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d | nn.Linear | _BatchNorm) or super().is_leaf_module(m, module_qualified_name)


def _layer(node: fx.Node, modules: Mapping[str, Any], split: Split, once: set[Any]) -> Layer | None:
    """The layer of a call, if its units can be taken out."""
    name = str(node.target)
    units = _width(modules[name])
    if units is None or name not in once or not _private(modules[name], name, split):
        return None
    planar, norms, readers = isinstance(modules[name], nn.Conv2d), [], []
    open_nodes = [node]
    while open_nodes:
        for user in open_nodes.pop().users:
            target = str(user.target)
            module = modules.get(target) if user.op == "call_module" else None
            if _passes(user, module, planar):
                open_nodes.append(user)
            elif isinstance(module, _BatchNorm) and target in once and _private(module, target, split):
                norms.append(target)
                open_nodes.append(user)
            elif _width(module) is not None and target in once and f"{target}.weight" in split.private:
                readers.append(target)
            else:
                return None
    whole = all(modules[reader].weight.shape[1] % units == 0 for reader in readers)
    return Layer(name, units, tuple(norms), tuple(readers)) if readers and whole else None


def _width(module: nn.Module | None) -> int | None:
    """Units of a layer that has them."""
    if isinstance(module, nn.Conv2d):
        return module.out_channels if module.groups == 1 else None
    return module.out_features if isinstance(module, nn.Linear) else None


def _private(module: nn.Module, name: str, split: Split) -> bool:
    return all(f"{name}.{own}" in split.private for own, _ in module.named_parameters())


def _passes(node: fx.Node, module: nn.Module | None, planar: bool) -> bool:
    """Whether an operation leaves zeros at zero and units apart."""
    if module is not None:
        return isinstance(module, SIMPLE) or (planar and isinstance(module, PLANAR))
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name == "mean":
        over = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        return planar and over is not None and set(np.atleast_1d(np.asarray(over)).tolist()) <= {2, 3, -1, -2}
    return name in SIMPLE_NAMES or (planar and name in PLANAR_NAMES)


def narrowed(units: Units, model: nn.Module, kept: Kept) -> nn.Module:
    """A copy of a model of the same kind that has these units only."""
    small = copy.deepcopy(model)
    modules = dict(small.named_modules())
    with torch.no_grad():
        for layer in units.layers:
            stay = kept[layer.name]
            for name in (layer.name, *layer.norms):
                _take_rows(modules[name], stay)
            for name in layer.readers:
                _take_columns(modules[name], stay, layer.units)
    return small


def _take_rows(module: Any, stay: Tensor) -> None:
    """Only some outputs of a layer, or some channels of a normalisation."""
    for name in ("weight", "bias"):
        if getattr(module, name, None) is not None:
            setattr(module, name, nn.Parameter(getattr(module, name)[stay].clone()))
    for name in ("running_mean", "running_var"):
        if getattr(module, name, None) is not None:
            setattr(module, name, getattr(module, name)[stay].clone())
    for name in ("out_channels", "out_features", "num_features"):
        if hasattr(module, name):
            setattr(module, name, len(stay))


def _take_columns(module: Any, stay: Tensor, units: int) -> None:
    """Only the inputs of a layer that come from some units."""
    weight, each = module.weight, module.weight.shape[1] // units
    left = weight.reshape(len(weight), units, -1)[:, stay].reshape(len(weight), len(stay) * each, *weight.shape[2:])
    module.weight = nn.Parameter(left.clone())
    setattr(module, "in_channels" if isinstance(module, nn.Conv2d) else "in_features", len(stay) * each)
