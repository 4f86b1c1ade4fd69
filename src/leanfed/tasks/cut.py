"""Where a model can be cut into base and head, and where it is if nobody says: before its last layer with weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import nn

from leanfed.errors import SettingsError, nearest
from leanfed.tasks.chain import Chain
from leanfed.tasks.lora import LoraSettings
from leanfed.tasks.models import build_model, default_split
from leanfed.tasks.split import split_after
from leanfed.tasks.text import TextSettings
from leanfed.tasks.tree import blocks_of, parts_of

CRITERIA: Final = {"auto": "cost", "auto:cost": "cost", "auto:gain": "gain"}
"""What `task.split` can say in place of a layer, and what the program then chooses the cut by."""


@dataclass(frozen=True)
class Layer:
    """A module that owns trainable weights, in the order in which the model registers them."""

    name: str
    kind: str
    size: int  # trainable values
    shared: bool


def found_cut(model: nn.Module, name: str = "the model") -> str:
    """The last layer of the base: all but the last child with trainable weights, in the first module that has several.

    >>> found_cut(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    '2'
    """
    parts = parts_of(model)
    if len(parts) < 2:
        held = any(values.requires_grad for values in model.parameters())
        why = "a single layer holds all its trainable weights" if held else "it has no trainable weights"
        raise SettingsError(
            f"Model {name!r} has no cut: {why}. Put its last layer apart, as in nn.Sequential(body, nn.Linear(...))."
        )
    return parts[-2]


def known_criterion(split: str | None) -> str | None:
    """A value of `task.split`, refused where it asks for a choice by something unknown."""
    if split is not None and split.startswith("auto:") and split not in CRITERIA:
        raise ValueError(f"no cut is chosen by {split.removeprefix('auto:')!r}: {nearest(split, CRITERIA)}")
    return split


def own_cut(model: nn.Module, name: str, text: TextSettings) -> str:
    """The last layer of a model's base if nobody says: as it was registered, else as it is found."""
    return default_split(name, text) or found_cut(model, name)


def cuts_of(model: nn.Module, own: str) -> list[str]:
    """Every layer that can be the last of the base, from the input on: a chain's stages, else blocks of the tree.

    The model's `own` cut is among them under that name.

    >>> cuts_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), "2")
    ['0', '2']
    """
    trained = [name for name, values in model.named_parameters() if values.requires_grad]
    names = list(model.stages()) if isinstance(model, Chain) else blocks_of(model)
    found = {own: len(split_after(model, own).shared)}
    for name in names:
        inside = [place for place, parameter in enumerate(trained) if parameter.startswith(f"{name}.")]
        if inside and inside[-1] + 1 < len(trained) and inside[-1] + 1 not in found.values():
            found[name] = inside[-1] + 1
    return sorted(found, key=lambda name: found[name])


def layers_of(
    name: str,
    outputs: int,
    text: TextSettings | None = None,
    cut: str | None = None,
    lora: LoraSettings | None = None,
) -> tuple[list[Layer], str]:
    """Every layer with trainable weights of a model by name, and the cut: as given, its own, or the found one."""
    text = text or TextSettings()
    model = build_model(name, outputs, 0, text, lora)
    layer = cut or own_cut(model, name, text)
    shared = split_after(model, layer).shared
    sizes = {key: values.numel() for key, values in model.named_parameters() if values.requires_grad}
    kinds = {key: type(part).__name__ for key, part in model.named_modules()}
    owners = dict.fromkeys(key.rpartition(".")[0] for key in sizes)
    found = []
    for owner in owners:
        own = [key for key in sizes if key.rpartition(".")[0] == owner]
        found.append(Layer(owner, kinds[owner], sum(sizes[key] for key in own), own[-1] in shared))
    return found, layer
