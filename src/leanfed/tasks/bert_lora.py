"""An encoder of the BERT family whose weights are frozen, with low-rank adapters (Hu et al. 2021) and a classifier."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.errors import SettingsError, nearest
from leanfed.tasks.bert_sketch import TARGETS, BertSketch, adapt_sketch, sketch_of
from leanfed.tasks.encoder import load_encoder
from leanfed.tasks.lora import inject, known_targets, set_dropout
from leanfed.tasks.text import IDS, MASK, SEGMENTS, TextSettings

GROUP = 4  # samples of similar length encoded together: little padding, and still fast matrix products
PAIR_NORM = 4.0  # norm of a pair's features; lets classifier and adapters share a learning rate
DISTANCE_SCALE = 8.0  # factor of 1 - cos(u, v), which is below 0.6 for nearly all pairs: it is learned first
LAYER = re.compile(r"(.*\blayers?\.)(\d+)\.")  # the layer number in a parameter's name


class BertLora(nn.Module):
    """[adapters of early layers | adapters of late layers, classifier]; the rest is frozen and shared by all copies."""

    def __init__(self, classes: int, settings: TextSettings) -> None:
        super().__init__()
        self.encoder = _sharing_weights(_bare_encoder(settings))
        _adapt(self.encoder, settings)
        self.pooling = settings.pooling
        self._takes_segments = getattr(self.encoder.config, "type_vocab_size", 0) > 1
        one = self.encoder.config.hidden_size
        width = {"cls": one, "mean": one, "pair": 2 * one, "distance": 2 * one + 1}[settings.pooling]
        self.classifier = nn.Linear(width, classes)
        nn.init.normal_(self.classifier.weight, std=0.02)  # as BERT initialises it
        nn.init.zeros_(self.classifier.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, 3, length) planes of ids, mask and segments -> (batch, classes)."""
        lengths = tokens[:, MASK].sum(1)
        order = torch.argsort(lengths, stable=True)
        alike = [order[place : place + GROUP] for place in range(0, len(order), GROUP)]
        groups = [self._features(tokens[rows, :, : int(lengths[rows].max())]) for rows in alike]
        logits: Tensor = self.classifier(torch.cat(groups)[torch.argsort(order)])
        return logits

    def _features(self, tokens: Tensor) -> Tensor:
        """The classifier's input for some samples of similar length."""
        if self.pooling == "distance":
            texts = torch.cat(texts_apart(tokens))
            means = _mean(self._encoded(texts).last_hidden_state, texts[:, MASK])
            return distance_features(*means.chunk(2))
        answer = self._encoded(tokens)
        hidden: Tensor = answer.last_hidden_state
        if self.pooling == "cls":
            pooled: Tensor | None = getattr(answer, "pooler_output", None)
            return hidden[:, 0] if pooled is None else pooled
        if self.pooling == "mean":
            return _mean(hidden, tokens[:, MASK])
        second = tokens[:, SEGMENTS]
        return pair_features(*(_mean(hidden, plane) for plane in (tokens[:, MASK] - second, second)))

    def _encoded(self, tokens: Tensor) -> Any:
        segments = {"token_type_ids": tokens[:, SEGMENTS]} if self._takes_segments else {}
        return self.encoder(input_ids=tokens[:, IDS], attention_mask=tokens[:, MASK], **segments)


def texts_apart(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Planes of the first and of the second text of each pair, as if tokenised alone: both begin with the first token.

    >>> pair = torch.tensor([[[101, 7, 102, 8, 9, 102], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]])
    >>> [text[0, IDS].tolist() for text in texts_apart(pair)]
    [[101, 7, 102, 0], [101, 8, 9, 102]]
    """
    ids, mask, second = tokens.unbind(1)
    begin = second.argmax(1, keepdim=True)  # of the second text; the first token is put before it
    places = begin - 1 + torch.arange(tokens.shape[2])
    inside, places = places < tokens.shape[2], places.clamp(0, tokens.shape[2] - 1)
    later = second.gather(1, places) * inside
    later[:, 0] = 1
    moved = ids.gather(1, places)
    moved[:, 0] = ids[:, 0]
    earlier = mask - second
    longest = int(torch.maximum(earlier.sum(1), later.sum(1)).max())
    texts = ((ids * earlier, earlier), (moved * later, later))
    first, last = (torch.stack([i, m, torch.zeros_like(m)], 1)[:, :, :longest] for i, m in texts)
    return first, last


def _sharing_weights(model: nn.Module) -> Any:
    """A copy of the modules but not of their weights, so that a further model needs memory for its adapters only."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """|u - v| and u v of two texts, each normalised to mean 0 and variance 1, scaled to a norm of about PAIR_NORM."""
    u, v = (functional.layer_norm(text, list(text.shape[-1:])) for text in (u, v))
    norm: float = (2 * u.shape[1]) ** 0.5
    return torch.cat([(u - v).abs(), u * v], dim=1) * (PAIR_NORM / norm)


def distance_features(u: Tensor, v: Tensor) -> Tensor:
    """DISTANCE_SCALE x (1 - cos(u, v)), which a classifier learns first, then the pair's features, scaled down."""
    distance = 1 - functional.cosine_similarity(u, v)
    return torch.cat([DISTANCE_SCALE * distance.unsqueeze(1), pair_features(u, v) / PAIR_NORM], dim=1)


def _mean(hidden: Tensor, chosen: Tensor) -> Tensor:
    """The mean hidden state over the chosen tokens."""
    weights = chosen.unsqueeze(-1).to(hidden.dtype)
    mean: Tensor = (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)
    return mean


def _bare_encoder(settings: TextSettings) -> nn.Module:
    """The frozen encoder without adapters; for a dry run only its sketch."""
    return sketch_of(settings.encoder) or load_encoder(settings.encoder)


def _adapt(encoder: Any, settings: TextSettings) -> None:
    """Insert adapters into the encoder; only they are trainable."""
    set_dropout(encoder, settings.dropout)
    sketched = isinstance(encoder, BertSketch)
    targets = settings.targets or (TARGETS if sketched else default_targets(encoder.config.model_type))
    names = {name.rpartition(".")[2] for name, part in encoder.named_modules() if isinstance(part, nn.Linear)}
    if unknown := [target for target in targets if target.rpartition(".")[2] not in names]:
        raise SettingsError(f"The encoder has no layer {unknown[0]!r} to adapt: {nearest(unknown[0], names)}")
    put = adapt_sketch if sketched else inject
    put(encoder, targets, settings.rank, settings.scale, settings.dropout)


def default_targets(family: str) -> tuple[str, ...]:
    """The queries and values of attention, by the names that a family of encoders gives them."""
    found = known_targets(family)
    if found is None:
        raise SettingsError(f"task.text.targets must name the layers to adapt in an encoder of the family {family!r}.")
    return found


def lora_split(settings: TextSettings) -> str:
    """The last layer of the base: the last third of the layers is private, four of twelve as in the paper."""
    names = [name for name, _ in _bare_encoder(settings).named_parameters()]
    numbered = [found for name in names if (found := LAYER.match(name))]
    if not numbered:
        raise SettingsError(f"The layers of {settings.encoder!r} are not numbered. Set task.split to the base's last.")
    layers = 1 + max(int(found[2]) for found in numbered)
    private = round(layers / 3) if settings.private_layers is None else settings.private_layers
    if private >= layers:
        raise SettingsError(
            f"task.text.private_layers = {private} leaves no layer of {layers} to share. Choose at most {layers - 1}."
        )
    return f"encoder.{numbered[0][1]}{layers - private - 1}"
