"""Where a model is cut into base and head if nobody says: before its last layer with weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from leanfed.errors import SettingsError
from leanfed.tasks.lora import LoraSettings
from leanfed.tasks.models import build_model, default_split
from leanfed.tasks.split import split_after
from leanfed.tasks.text import TextSettings
from leanfed.tasks.tree import parts_of


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
    layer = cut or default_split(name, text) or found_cut(model, name)
    shared = split_after(model, layer).shared
    sizes = {key: values.numel() for key, values in model.named_parameters() if values.requires_grad}
    kinds = {key: type(part).__name__ for key, part in model.named_modules()}
    owners = dict.fromkeys(key.rpartition(".")[0] for key in sizes)
    found = []
    for owner in owners:
        own = [key for key in sizes if key.rpartition(".")[0] == owner]
        found.append(Layer(owner, kinds[owner], sum(sizes[key] for key in own), own[-1] in shared))
    return found, layer
