"""BERT in plain torch: the modules, names and arithmetic of transformers, with weights that nobody has trained.

A dry run only asks how long a step takes and how many values there are; to import transformers and peft for that takes
longer than all the rest of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.tasks.encoder import encoder_place

TARGETS = ("query", "value")  # what peft adapts in a BERT
SIZES = (
    "hidden_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
_wanted: ContextVar[bool] = ContextVar("sketches", default=False)


@contextmanager
def sketches(wanted: bool = True) -> Iterator[None]:
    """Models that are built here are for their sizes and times only: encoders may be sketched."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def sketching() -> bool:
    """Whether models are built for their sizes and times only."""
    return _wanted.get()


def sketch_of(name: str) -> BertSketch | None:
    """The sketch of an encoder; None where its own weights are wanted, or it is no BERT in a folder."""
    if not sketching():
        return None
    place, local = encoder_place(name)
    return _sketch(place) if local else None


@lru_cache(maxsize=1)
def _sketch(place: str) -> BertSketch | None:
    try:
        config = json.loads((Path(place) / "config.json").read_text())
    except (OSError, ValueError):  # said by whoever needs its weights
        return None
    if not isinstance(config, dict):
        return None
    config = {"layer_norm_eps": 1e-12, "hidden_act": "gelu"} | config
    fits = config.get("model_type") == "bert" and config["hidden_act"] == "gelu"
    return BertSketch(SimpleNamespace(**config)) if fits and all(key in config for key in SIZES) else None


class BertSketch(nn.Module):
    """The layers of `transformers.BertModel`, frozen."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        wide = config.hidden_size
        tables = (
            ("word", config.vocab_size),
            ("position", config.max_position_embeddings),
            ("token_type", config.type_vocab_size),
        )
        self.embeddings = nn.ModuleDict(
            {f"{name}_embeddings": nn.Embedding(rows, wide, _weight=torch.rand(rows, wide)) for name, rows in tables}
        )
        self.embeddings["LayerNorm"] = nn.LayerNorm(wide, eps=config.layer_norm_eps)
        layers = [_layer(config) for _ in range(config.num_hidden_layers)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(wide, wide)})
        self.requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        """(batch, length) of ids, mask and segments -> hidden states (batch, length, width) and the pooled first."""
        parts = self.embeddings
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = parts["word_embeddings"](input_ids) + parts["token_type_embeddings"](segments)
        x = parts["LayerNorm"](x + parts["position_embeddings"](places))
        seen = attention_mask[:, None, None, :].bool()
        layers: Any = self.encoder["layer"]
        for layer in layers:
            x = self._through(layer, x, seen)
        return SimpleNamespace(last_hidden_state=x, pooler_output=torch.tanh(self.pooler["dense"](x[:, 0])))

    def _through(self, layer: Any, x: Tensor, seen: Tensor) -> Tensor:
        """Attention, then two dense layers; each is added to its input and normalised."""
        attention, heads = layer["attention"], self.config.num_attention_heads
        q, k, v = (
            attention["self"][part](x).unflatten(-1, (heads, -1)).transpose(1, 2) for part in ("query", "key", "value")
        )
        told = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        x = attention["output"]["LayerNorm"](attention["output"]["dense"](told) + x)
        wide = functional.gelu(layer["intermediate"]["dense"](x))
        normed: Tensor = layer["output"]["LayerNorm"](layer["output"]["dense"](wide) + x)
        return normed


def _layer(config: Any) -> nn.ModuleDict:
    wide, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
    projections = nn.ModuleDict({part: nn.Linear(wide, wide) for part in ("query", "key", "value")})
    ends = [
        nn.ModuleDict({"dense": nn.Linear(size, wide), "LayerNorm": nn.LayerNorm(wide, eps=eps)})
        for size in (wide, inner)
    ]
    return nn.ModuleDict(
        {
            "attention": nn.ModuleDict({"self": projections, "output": ends[0]}),
            "intermediate": nn.ModuleDict({"dense": nn.Linear(wide, inner)}),
            "output": ends[1],
        }
    )


class Adapted(nn.Module):
    """A frozen linear layer with an adapter: W x + scale B A x, in peft's names."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.base_layer = layer
        self.dropout = nn.Dropout(dropout)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the adapter's."""
        adapter: Tensor = self.lora_B["default"](self.lora_A["default"](self.dropout(x)))
        return torch.add(self.base_layer(x), adapter, alpha=self.scale)


def adapt_sketch(encoder: nn.Module, targets: Sequence[str], rank: int, scale: float, dropout: float) -> None:
    """Put adapters into the linear layers whose names end in a target."""
    for name, part in list(encoder.named_modules()):
        owner, _, own = name.rpartition(".")
        if isinstance(part, nn.Linear) and any(f".{name}".endswith(f".{target}") for target in targets):
            holder: Any = encoder.get_submodule(owner)
            holder[own] = Adapted(part, rank, scale, dropout)
