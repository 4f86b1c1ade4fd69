"""Models whose stages run one after another, so that the private part can start from stored features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from typing_extensions import override

Stage = Callable[[Tensor], Tensor]
COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)  # layers whose multiply-adds are known
VALUE_WORK: Final = 500.0
"""How many multiply-adds take as long as all else that becomes of one output of a layer, there and back: it is
normalised, activated, added and copied. Fitted to steps of ResNet-18 at four widths with either stem, on one core
(benchmarks/width_steps.py, results/narrow/widths.json); small ResNets take longer than it says."""


@dataclass(frozen=True)
class LayerWork:
    """What a layer does in the forward pass of one sample."""

    multiply_adds: int = 0
    outputs: int = 0

    def __add__(self, other: LayerWork) -> LayerWork:
        return LayerWork(self.multiply_adds + other.multiply_adds, self.outputs + other.outputs)

    @property
    def time(self) -> float:
        """The layer's time, in multiply-adds.

        >>> LayerWork(multiply_adds=8000, outputs=4).time
        10000.0
        """
        return self.multiply_adds + VALUE_WORK * self.outputs


class Chain(nn.Module):
    """A sequence of stages, each under the name of the module that owns its parameters."""

    @abstractmethod
    def stages(self) -> dict[str, Stage]:
        """The stages in order."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return through(self.stages().values(), x)


def through(stages: Iterable[Stage], x: Tensor) -> Tensor:
    """The output of the stages for input x, one after another."""
    for stage in stages:
        x = stage(x)
    return x


def cut_at(model: nn.Module, private: Collection[str]) -> tuple[list[Stage], list[Stage]]:
    """The stages before the first that owns a private parameter, and the rest; ([], [model]) if it is not a chain.

    A plain `nn.Sequential` is a chain of its children, unless it drops out: a further step would draw other units.
    """
    if type(model) is nn.Sequential and not any(isinstance(part, _DropoutNd) for part in model.modules()):
        stages: dict[str, Stage] = dict(model.named_children())
    elif isinstance(model, Chain):
        stages = model.stages()
    else:
        return [], [model]
    owning = [any(name.startswith(f"{stage}.") for name in private) for stage in stages]
    cut = owning.index(True) if True in owning else len(owning)
    return list(stages.values())[:cut], list(stages.values())[cut:]


def tail_share(model: Chain, private: Collection[str], shape: tuple[int, ...]) -> float:
    """Multiply-adds after the cut as a share of the whole model's."""
    counts = multiply_adds(model, shape)
    return sum(counts[len(cut_at(model, private)[0]) :]) / sum(counts)


def stage_share(model: Chain, names: Collection[str], shape: tuple[int, ...]) -> float:
    """Multiply-adds of the stages that own these parameters, as a share of the whole model's."""
    counts, stages = multiply_adds(model, shape), model.stages()
    owning = [any(name.startswith(f"{stage}.") for name in names) for stage in stages]
    return sum(count for count, own in zip(counts, owning, strict=True) if own) / sum(counts)


def multiply_adds(model: Chain, shape: tuple[int, ...]) -> list[int]:
    """Multiply-adds of the convolutions and linear layers in each stage, for the forward pass of one sample."""
    counts, x = [], torch.zeros(1, *shape)
    with _counted(model) as found:
        for stage in model.stages().values():
            before = _multiply_adds(found)
            x = stage(x)
            counts.append(_multiply_adds(found) - before)
    return counts


def _multiply_adds(works: dict[str, LayerWork]) -> int:
    return sum(work.multiply_adds for work in works.values())


def layer_work(model: nn.Module, shape: tuple[int, ...]) -> dict[str, LayerWork]:
    """What each convolution and linear layer does, by its name, in the forward pass of one sample."""
    with _counted(model) as found:
        model(torch.zeros(1, *shape))
    return found


def layer_operations(model: nn.Module, shape: tuple[int, ...]) -> dict[str, int]:
    """Multiply-adds of each of these layers."""
    return operations_on(model, torch.zeros(1, *shape))


def operations_on(model: nn.Module, sample: Tensor) -> dict[str, int]:
    """Multiply-adds of each of these layers in the forward pass of a given batch."""
    with _counted(model) as found:
        model(sample)
    return {name: work.multiply_adds for name, work in found.items()}


@contextmanager
def _counted(model: nn.Module) -> Iterator[dict[str, LayerWork]]:
    """The work by layer of the forward passes that follow; the model's mode does not change."""
    found: dict[str, LayerWork] = {}

    def counter(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def count(layer: nn.Module, _: tuple[Tensor, ...], answer: Tensor) -> None:
            weight = layer.get_parameter("weight")
            done = LayerWork(answer.numel() // len(weight) * weight.numel(), answer.numel())
            found[name] = found.get(name, LayerWork()) + done

        return count

    layers = [(name, part) for name, part in model.named_modules() if isinstance(part, COUNTED)]
    hooks = [layer.register_forward_hook(counter(name)) for name, layer in layers]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield found
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
