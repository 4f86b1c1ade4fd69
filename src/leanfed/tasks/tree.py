"""A model's module tree: where it falls into a trunk and an end."""

from __future__ import annotations

from torch import nn


def parts_of(model: nn.Module) -> list[str]:
    """The children with trainable weights, by name, of the first module that has several; fewer if none has.

    >>> parts_of(nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))))
    ['0.0', '0.2']
    """
    path, module = "", model
    while True:
        children = [(child, part) for child, part in module.named_children() if _trainable(part)]
        if len(children) != 1:
            return [f"{path}{child}" for child, _ in children]
        path, module = f"{path}{children[0][0]}.", children[0][1]


def blocks_of(model: nn.Module) -> list[str]:
    """The parts with trainable weights in the order of the tree; lists of layers, and what holds lists, are opened.

    >>> blocks_of(nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8)), nn.Linear(8, 2)))
    ['0.0', '0.1', '1']
    """

    def opened(path: str, module: nn.Module) -> list[str]:
        children = [(child, part) for child, part in module.named_children() if _trainable(part)]
        if not children or not (isinstance(module, nn.Sequential) or _holds_lists(module)):
            return [path]
        return [name for child, part in children for name in opened(f"{path}.{child}", part)]

    return [name for part in parts_of(model) for name in opened(part, model.get_submodule(part))]


def last_child(model: nn.Module) -> str:
    """The end of a model: the last child with trainable weights where it has several, else an empty name."""
    return (parts_of(model) or [""])[-1]


def _holds_lists(module: nn.Module) -> bool:
    """Whether layers that are trained stand in an `nn.ModuleList` anywhere in it."""
    return any(isinstance(part, nn.ModuleList) and _trainable(part) for part in module.modules())


def _trainable(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
