"""Texts as tokens of an encoder: tokenised once, cached, and padded to a batch's longest when drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from leanfed.errors import SettingsError
from leanfed.records import Ints, Section
from leanfed.tasks.batch import Batch
from leanfed.tasks.cache import Arrays, Samples, cached_arrays, load_samples
from leanfed.tasks.encoder import PACKAGED, load_tokenizer, tokenizer_key

FORMAT = 1  # to be increased when the layout of cached tokens changes
OF_PAIRS = ("pair", "distance")  # kinds of pooling that need two texts
IDS, MASK, SEGMENTS = range(3)  # the planes of a batch of tokens


class TextSettings(Section):
    """The encoder of a text model and its low-rank adapters (LoRA)."""

    encoder: str = PACKAGED
    """The packaged encoder, a folder, or a name on the hub such as google-bert/bert-base-uncased."""
    length: int = Field(default=128, ge=8, le=512)
    """Tokens of a sample at most; the longer text of a pair is cut first."""
    pooling: Literal["cls", "mean", "pair", "distance"] = "cls"
    """What the classifier sees: the first token, the mean of all, or |u - v| and u v of two texts' means u and v; for
    "distance" the texts are encoded separately, and a scaled-up 1 - cos(u, v) comes before those."""
    rank: int = Field(default=8, ge=1, le=4_096)
    """Rank of the adapters."""
    scale: float = Field(default=2.0, gt=0, le=1e6)
    """An adapter adds scale x B A x to the output of its frozen layer (lora_alpha / rank)."""
    targets: tuple[str, ...] = ()
    """Layers that get an adapter, by the end of their names; the queries and values of attention when left out."""
    private_layers: int | None = Field(default=None, ge=0)
    """Number of last encoder layers whose adapters are private, like the classifier; a third of all when left out."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of activations dropped in training, in the encoder and in its adapters."""


@dataclass(frozen=True)
class Tokens:
    """Samples as token numbers, one after another without padding."""

    ids: npt.NDArray[np.int32]  # (tokens of all samples,)
    segments: npt.NDArray[np.uint8]  # (tokens of all samples,): 1 in the second text of a pair
    ends: Ints  # (n,): where a sample's tokens end
    labels: Ints

    def batch(self, rows: Ints, change: Callable[[Any], Any] | None = None) -> Batch:
        """The given rows as (rows, 3, longest of them): ids, attention mask, segments; `change` is for images."""
        edges = [(int(self.ends[row - 1]) if row else 0, int(self.ends[row])) for row in rows]
        planes = np.zeros((len(rows), 3, max(end - start for start, end in edges)), dtype=np.int64)
        for plane, (start, end) in zip(planes, edges, strict=True):
            plane[IDS, : end - start] = self.ids[start:end]
            plane[MASK, : end - start] = 1
            plane[SEGMENTS, : end - start] = self.segments[start:end]
        return Batch(torch.from_numpy(planes), torch.from_numpy(np.asarray(self.labels)[rows]))


def load_tokens(name: str, split: str, settings: TextSettings, root: Path | None = None) -> Tokens:
    """One split of a text data set as tokens of the encoder in the settings; tokenised on first use."""
    samples = load_samples(name, split, root)
    if samples.ends is None:
        raise SettingsError(f"{name!r} holds images, but a text model takes texts. Choose another model or data set.")
    content = hashlib.sha256(samples.digest().encode() + samples.ends.tobytes())
    content.update(f"{tokenizer_key(settings.encoder)} {settings.length}".encode())
    label = f"{name}-{split}-tokens-v{FORMAT}-{content.hexdigest()[:24]}"
    arrays = cached_arrays(label, lambda: tokenise(samples, settings))
    if settings.pooling in OF_PAIRS and not arrays["segments"].any():
        raise SettingsError(
            f"task.text.pooling = {settings.pooling!r} compares two texts, but the samples of {name!r} have one. "
            'Use "cls" or "mean".'
        )
    return Tokens(arrays["ids"], arrays["segments"], arrays["ends"], np.asarray(samples.labels))


def tokenise(samples: Samples, settings: TextSettings) -> Arrays:
    """Token numbers of all samples in one array, the text (0 or 1) of each token, and the end of each sample."""
    columns = list(zip(*(samples.texts(row) for row in range(len(samples))), strict=True))
    if len(columns) > 2:
        raise SettingsError(f"A text model takes one text or a pair, not {len(columns)}. Name fewer columns.")
    coded = load_tokenizer(settings.encoder)(
        *(list(column) for column in columns), truncation="longest_first", max_length=settings.length
    )
    segments = [[place or 0 for place in coded.sequence_ids(row)] for row in range(len(samples))]
    for ids, places in zip(coded["input_ids"], segments, strict=True):
        # Separators belong to no text; the last one is counted with the last text, as in BERT.
        places[-1] = max(places)
        assert len(ids) == len(places)
    return {
        "ids": np.fromiter((i for ids in coded["input_ids"] for i in ids), dtype=np.int32),
        "segments": np.fromiter((s for places in segments for s in places), dtype=np.uint8),
        "ends": np.cumsum([len(ids) for ids in coded["input_ids"]], dtype=np.int64),
    }
