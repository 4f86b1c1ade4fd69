"""Low-rank adapters (Hu et al. 2021) in any model, through peft; its weights are frozen but for those of its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field
from torch import nn

from leanfed.errors import SettingsError, nearest
from leanfed.records import Section
from leanfed.tasks.encoder import nlp
from leanfed.tasks.tree import last_child

ADAPTABLE = (nn.Linear, nn.Conv2d)


class LoraSettings(Section):
    """Adapters in place of the weights of layers; `bert-lora` has its own in task.text."""

    rank: int = Field(default=8, ge=1, le=4_096)
    """Rank of the adapters."""
    scale: float = Field(default=2.0, gt=0, le=1e6)
    """An adapter adds scale x B A x to the output of its frozen layer (lora_alpha / rank)."""
    targets: tuple[str, ...] = ()
    """Layers that get an adapter, by the end of their names; left out: the queries and values of attention where the
    family of the model is known, else all linear and convolutional layers but the last."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of activations dropped in training before an adapter."""


def with_adapters(model: nn.Module, settings: LoraSettings, family: str | None = None) -> nn.Module:
    """The model with all weights frozen but adapters and the last child with weights, which is no adapter's."""
    end = last_child(model)
    inside = [
        name
        for name, part in model.named_modules()
        if isinstance(part, ADAPTABLE) and name != end and not name.startswith(f"{end}.")
    ]
    targets = settings.targets or (known_targets(family) if family else None)
    chosen = inside if targets is None else [name for name in inside if _ends(name, targets)]
    if targets is not None and (unknown := [t for t in targets if not any(_ends(name, (t,)) for name in inside)]):
        known = {name.rpartition(".")[2] for name in inside}
        raise SettingsError(f"The model has no layer {unknown[0]!r} to adapt: {nearest(unknown[0], known)}")
    if not chosen:
        raise SettingsError(f"The model has no layer before {end!r} that could get an adapter. Leave out task.lora.")
    inject(model, "|".join(map(re.escape, chosen)), settings.rank, settings.scale, settings.dropout)
    for name, values in model.named_parameters():
        if name.startswith(f"{end}."):
            values.requires_grad_(True)
    return model


def inject(model: Any, targets: str | Sequence[str], rank: int, scale: float, dropout: float) -> None:
    """Put adapters into the target layers (a pattern of whole names, or ends of names); only they are trainable."""
    peft = nlp("peft")
    modules = targets if isinstance(targets, str) else list(targets)
    given = peft.LoraConfig(r=rank, lora_alpha=scale * rank, lora_dropout=dropout, target_modules=modules)
    peft.inject_adapter_in_model(given, model)


def set_dropout(model: nn.Module, share: float) -> None:
    """Drop this share of activations wherever a model of transformers drops any."""
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = share
        for name in ("dropout_prob", "attention_dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, share)


def known_targets(family: str) -> tuple[str, ...] | None:
    """The queries and values of attention, by the names that a family of transformers gives them; None: not known."""
    known = nlp("peft.utils.constants").TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    found = {"distilbert": ["q_lin", "v_lin"], **known}.get(family)
    return None if found is None else tuple(found)


def _ends(name: str, targets: Sequence[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)
