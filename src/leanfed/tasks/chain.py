"""Models whose stages run one after another: the private part can go on from features that are already there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Stage = Callable[[Tensor], Tensor]


class Chain(nn.Module):
    """A row of stages, each under the name of the module that owns its parameters."""

    @abstractmethod
    def stages(self) -> dict[str, Stage]:
        """What the model does, in order."""

    def forward(self, x: Tensor) -> Tensor:
        """All stages."""
        for stage in self.stages().values():
            x = stage(x)
        return x


def first_private(stages: Mapping[str, Stage], private: Mapping[str, torch.Size]) -> int:
    """The place of the first stage that owns a private parameter; behind the last where none does."""
    owning = (any(name.startswith(f"{stage}.") for name in private) for stage in stages)
    return next((place for place, owns in enumerate(owning) if owns), len(stages))


def multiply_adds(model: Chain, shape: tuple[int, ...]) -> list[int]:
    """Of the convolutions and linear layers in each stage, for one sample on its way forward."""
    counts: list[int] = []

    def count(layer: nn.Conv2d | nn.Linear, _: tuple[Tensor, ...], answer: Tensor) -> None:
        counts[-1] += answer.numel() // len(layer.weight) * layer.weight.numel()

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training, x = model.training, torch.zeros(1, *shape)
    model.eval()
    with torch.no_grad():
        for stage in model.stages().values():
            counts.append(0)
            x = stage(x)
    model.train(training)
    for hook in hooks:
        hook.remove()
    return counts
