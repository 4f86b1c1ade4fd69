"""Classifiers of the library transformers by name: of pictures or texts, from the hub, a folder or a config alone."""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.errors import SettingsError
from leanfed.tasks.encoder import PACKAGED, encoder_place, load_pretrained, nlp
from leanfed.tasks.lora import set_dropout
from leanfed.tasks.text import IDS, MASK, SEGMENTS, TextSettings

PREFIX = "transformers:"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
PICTURES, TEXTS = "AutoModelForImageClassification", "AutoModelForSequenceClassification"


class PictureClassifier(nn.Module):
    """Pictures (batch, channels, height, width) of any size -> (batch, classes).

    Grey pictures are repeated for a model of colours, and scaled (bilinear) to the size that the model was made for.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        size, self._channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
        self._size = (size, size) if isinstance(size, int) else None if size is None else tuple(size)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits."""
        if pictures.shape[1] == 1 and self._channels == 3:
            pictures = pictures.expand(-1, 3, -1, -1)
        if self._size is not None and pictures.shape[2:] != self._size:
            pictures = functional.interpolate(pictures, self._size, mode="bilinear", align_corners=False)
        logits: Tensor = self.model(pixel_values=pictures).logits
        return logits


class TextClassifier(nn.Module):
    """Planes of ids, mask and segments (batch, 3, length) -> (batch, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._takes_segments = getattr(model.config, "type_vocab_size", 0) > 1

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        segments = {"token_type_ids": tokens[:, SEGMENTS]} if self._takes_segments else {}
        logits: Tensor = self.model(input_ids=tokens[:, IDS], attention_mask=tokens[:, MASK], **segments).logits
        return logits


def pretrained_name(model: str) -> str:
    """What stands behind the prefix of a model's name.

    >>> pretrained_name("transformers:google/vit-base-patch16-224")
    'google/vit-base-patch16-224'
    """
    return model.removeprefix(PREFIX)


def kind_of(name: str) -> str:
    """Which class of transformers makes a classifier of this family; refused if there is none."""
    config, library = _config(name), nlp("transformers")
    for kind, families in (
        (PICTURES, library.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING),
        (TEXTS, library.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING),
    ):
        if type(config) in families:
            return kind
    raise SettingsError(
        f"task.model = {PREFIX + name!r} is of the family {config.model_type!r}, of which transformers makes no "
        "classifier of pictures or texts. Name another, or bring your own by leanfed.add_model (--import)."
    )


def picture_classifier(name: str, classes: int) -> nn.Module:
    """A classifier of pictures; dropout is off."""
    return PictureClassifier(_classifier(name, PICTURES, classes, 0.0))


def text_classifier(name: str, classes: int, settings: TextSettings) -> nn.Module:
    """A classifier of texts with the dropout of the settings."""
    if settings.encoder not in (PACKAGED, name):
        raise SettingsError(
            f"task.text.encoder = {settings.encoder!r} is for bert-lora, but task.model = {PREFIX + name!r} brings its "
            "own encoder. Leave it out."
        )
    return TextClassifier(_classifier(name, TEXTS, classes, settings.dropout))


def _classifier(name: str, kind: str, classes: int, dropout: float) -> nn.Module:
    """With pre-trained weights where there are any; what they leave open is drawn anew for every model."""
    place, local = encoder_place(name)
    if local and not any(any(Path(place).glob(pattern)) for pattern in WEIGHTS):
        config = copy.deepcopy(_config(name))
        config.num_labels = classes
        model: nn.Module = getattr(nlp("transformers"), kind).from_config(config)
    else:
        loaded, missing = _loaded(name, kind, classes)
        model = copy.deepcopy(loaded)
        for key, values in model.named_parameters():
            if key in missing:
                nn.init.zeros_(values) if values.ndim == 1 else nn.init.normal_(values, std=0.02)
    set_dropout(model, dropout)
    return model.requires_grad_(True)


@lru_cache(maxsize=2)
def _loaded(name: str, kind: str, classes: int) -> tuple[nn.Module, frozenset[str]]:
    """A pre-trained model, and the names of the parameters that were not in its file or had another shape there."""
    with torch.random.fork_rng(devices=[]):
        model, told = load_pretrained(
            kind,
            name,
            num_labels=classes,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            use_safetensors=True,
        )
    other = {entry[0] if isinstance(entry, tuple | list) else entry for entry in told["mismatched_keys"]}
    return model, frozenset({*told["missing_keys"], *other})


@lru_cache(maxsize=8)
def _config(name: str) -> Any:
    return load_pretrained("AutoConfig", name)
