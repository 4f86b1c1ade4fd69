"""The models that can be trained, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from leanfed.errors import SettingsError
from leanfed.registry import Registry
from leanfed.tasks.bert_lora import BertLora, lora_split
from leanfed.tasks.bert_sketch import sketching
from leanfed.tasks.chain import Chain, Stage
from leanfed.tasks.lora import LoraSettings, with_adapters
from leanfed.tasks.nest import inner_model
from leanfed.tasks.resnet import ResNet18, SmallResNet, narrow_resnet18, narrow_small_resnet
from leanfed.tasks.text import TextSettings
from leanfed.tasks.transformer_models import (
    PICTURES,
    PREFIX,
    kind_of,
    picture_classifier,
    pretrained_name,
    text_classifier,
)


@dataclass(frozen=True)
class ModelSpec:
    """How to build a model, its input shape, and its default split."""

    build: Callable[[int], nn.Module]  # number of outputs -> freshly initialised model
    input_shape: tuple[int, ...] | None  # of a sample; smaller images are padded with black; None: any
    default_split: str  # the last layer of the base; empty: found in the module tree (`tasks.cut`)
    narrow: Callable[[int, float], nn.Module] | None = None
    """Number of outputs, share of the channels -> a narrower model (`tasks.nest`); None: it comes in one width only."""


@dataclass(frozen=True)
class TextModelSpec:
    """How to build a text model around the encoder in the settings, and its default split."""

    build: Callable[[int, TextSettings], nn.Module]  # number of classes, settings -> freshly initialised model
    default_split: Callable[[TextSettings], str]  # the last layer of the base
    input_shape: None = None
    encoder: str | None = None  # that it brings itself; None: the one in the settings


MODELS: Final[Registry[ModelSpec | TextModelSpec]] = Registry("model", group="leanfed.models")


class LeNet5(Chain):
    """LeNet-5 with ReLU and max-pooling on 32x32 images: 61,706 parameters for ten classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)  # 32x32 -> 28x28, pooled to 14x14
        self.conv2 = nn.Conv2d(6, 16, 5)  # 14x14 -> 10x10, pooled to 5x5
        self.conv3 = nn.Conv2d(16, 120, 5)  # 5x5 -> 1x1
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, classes)

    def stages(self) -> dict[str, Stage]:
        """(batch, 1, 32, 32) -> (batch, classes)."""

        def pooled(layer: nn.Module) -> Stage:
            return lambda x: functional.max_pool2d(functional.relu(layer(x)), 2)

        return {
            "conv1": pooled(self.conv1),
            "conv2": pooled(self.conv2),
            "conv3": lambda x: functional.relu(self.conv3(x)).flatten(1),
            "fc1": lambda x: functional.relu(self.fc1(x)),
            "fc2": self.fc2,
        }


MODELS.add("lenet5", ModelSpec(LeNet5, input_shape=(1, 32, 32), default_split="conv3"))
# The last block, pooling and classifier are private, as in the paper: d_B 6,448,192 and d_P 4,725,770 for ten classes.
MODELS.add(
    "resnet18",
    ModelSpec(ResNet18, input_shape=(3, 32, 32), default_split="stage4.0", narrow=narrow_resnet18),
)
# The ImageNet stem at 32x32, for slow machines: about a fifteenth of the arithmetic, and lower accuracy.
MODELS.add(
    "resnet18-imagenet",
    ModelSpec(
        partial(ResNet18, stem="large"),
        input_shape=(3, 32, 32),
        default_split="stage4.0",
        narrow=partial(narrow_resnet18, stem="large"),
    ),
)
# For CIFAR-10, with group normalisation: a client's few samples need no running statistics. The last block is private.
for _blocks, _last in ((1, "stage2.0"), (3, "stage3.1")):
    MODELS.add(
        f"resnet{6 * _blocks + 2}",
        ModelSpec(
            partial(SmallResNet, blocks=_blocks),
            input_shape=(3, 32, 32),
            default_split=_last,
            narrow=partial(narrow_small_resnet, blocks=_blocks),
        ),
    )
MODELS.add("bert-lora", TextModelSpec(BertLora, lora_split))


def _transformer(name: str) -> ModelSpec | TextModelSpec:
    """A classifier of transformers, whose cut is found in its module tree."""
    behind = pretrained_name(name)
    if kind_of(behind) == PICTURES:
        return ModelSpec(partial(picture_classifier, behind), input_shape=None, default_split="")
    return TextModelSpec(partial(text_classifier, behind), lambda text: "", encoder=behind)


MODELS.resolve(PREFIX, _transformer)


def text_of(name: str, text: TextSettings) -> TextSettings:
    """The settings of texts for a model: with its own encoder where it brings one, whose tokens are then taken."""
    spec = MODELS[name]
    own = spec.encoder if isinstance(spec, TextModelSpec) else None
    return text if own is None else text.model_copy(update={"encoder": own})


def default_split(name: str, text: TextSettings) -> str:
    """The last layer of a model's base, unless the settings say otherwise; empty where the model does not say."""
    spec = MODELS[name]
    return spec.default_split(text) if isinstance(spec, TextModelSpec) else spec.default_split


def build_model(
    name: str, classes: int, seed: int, text: TextSettings | None = None, lora: LoraSettings | None = None
) -> nn.Module:
    """A model whose initial weights depend on the seed only; torch's global generator is not changed."""
    spec = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)  # torch.manual_seed also formats stacks for devices unused
        model = spec.build(classes, text or TextSettings()) if isinstance(spec, TextModelSpec) else spec.build(classes)
        if not isinstance(model, nn.Module):
            raise SettingsError(f"Model {name!r} is built as {model!r}, which is no nn.Module. Let build return one.")
        if lora is None:
            return model
        if isinstance(spec, TextModelSpec) and spec.encoder is None:
            raise SettingsError(f"task.lora is not for {name!r}, which has adapters of its own: set task.text.rank.")
        family = getattr(getattr(getattr(model, "model", None), "config", None), "model_type", None)
        return with_adapters(model, lora, family)


def narrow_model(whole: nn.Module, name: str, outputs: int, width: float) -> nn.Module:
    """The part of a model by name that has the first share `width` of the channels of every layer."""
    build = narrow_builder(name)
    with torch.random.fork_rng(devices=[]):  # its initial values are replaced
        return inner_model(whole, build(outputs, width))


def narrow_builder(name: str) -> Callable[[int, float], nn.Module]:
    """What builds narrower models of a name, from outputs and width; refused where there are none."""
    spec = MODELS[name]
    build = spec.narrow if isinstance(spec, ModelSpec) else None
    if build is None:
        raise SettingsError(
            f"Model {name!r} comes in one width only. Leave [width] out, or choose resnet18, resnet18-imagenet, "
            "resnet20, resnet8, or a model of your own whose ModelSpec has `narrow`."
        )
    return build


def example_model(
    name: str, classes: int, seed: int, text: TextSettings | None = None, lora: LoraSettings | None = None
) -> nn.Module:
    """`build_model` to look at, never to train: the last one is kept, since a large one takes long to initialise."""
    return _example(MODELS[name], sketching(), name, classes, seed, text, lora)


@lru_cache(maxsize=1)
def _example(
    spec: ModelSpec | TextModelSpec,
    sketched: bool,
    name: str,
    classes: int,
    seed: int,
    text: TextSettings | None,
    lora: LoraSettings | None,
) -> nn.Module:
    """By what a name stands for as well, since that may change, and by whether its encoder may be a sketch."""
    return build_model(name, classes, seed, text, lora)
