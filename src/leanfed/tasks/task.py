"""A learning task: a data set partitioned over clients, a model, and its split; all determined by the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from leanfed.errors import DataError, SettingsError
from leanfed.records import Floats, Ints, Section
from leanfed.streams import stream, stream_seed
from leanfed.tasks.batch import Batch as Batch
from leanfed.tasks.cache import Samples, load_samples
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.models import MODELS, build_model, default_split
from leanfed.tasks.partition import Partition, PartitionSettings, all_to, hold_back, make_partition
from leanfed.tasks.split import Split, flatten, split_after
from leanfed.tasks.text import TextSettings, Tokens, load_tokens

Change = Literal["crop", "flip"]
HELD_BACK = "held-back"
SHIFT = 4  # pixels in each direction by which a crop may shift an image


class TaskSettings(Section):
    """The learning task: data, model and partition."""

    dataset: str = "mnist-5k"
    """A data set by name; `leanfed data` lists them."""
    model: str = "lenet5"
    """A model by name."""
    split: str | None = None
    """The last layer of the shared base; the model's own default when left out."""
    statistics: Literal["private", "shared"] = "private"
    """Running statistics of normalisation layers: each client's own, or, for shared layers, averaged after a round."""
    augment: tuple[Change, ...] = ()
    """How training images are changed each time they are drawn: "crop" (shifted by up to 4 pixels), "flip"."""
    test_on: str = "test"
    """The split that clients are tested on. For choosing settings: "held-back", a fifth of each client's own training
    samples, which it then does not train on; or "validation", where a data set has one."""
    text: TextSettings = Field(default_factory=TextSettings)
    """The encoder of a text model; image models have none."""
    partition: PartitionSettings = Field(default_factory=lambda: PartitionSettings(kind="class", classes_per_client=2))
    """How samples are distributed over clients."""


Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """Images padded to the model's input size, stored as bytes and normalised when they are drawn."""

    pixels: Pixels  # (n, channels, height, width)
    labels: Ints
    mean: Tensor  # (channels, 1, 1), of pixels in [0, 1]
    deviation: Tensor

    def batch(self, rows: Ints, change: Callable[[Pixels], Pixels] = lambda pixels: pixels) -> Batch:
        """The given rows, augmented by `change`, as (pixel / 255 - mean) / deviation."""
        pixels = torch.from_numpy(np.ascontiguousarray(change(self.pixels[rows]))).to(torch.float32)
        return Batch(pixels.div_(255).sub_(self.mean).div_(self.deviation), torch.from_numpy(self.labels[rows]))


def changed(pixels: Pixels, how: Sequence[Change], rng: np.random.Generator) -> Pixels:
    """Augmented images (n, channels, height, width): shifted with black padding, and mirrored half of the time."""
    if "crop" in how:
        height, width = pixels.shape[2:]
        framed = np.pad(pixels, ((0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
        corners = rng.integers(0, 2 * SHIFT, (len(pixels), 2), endpoint=True)
        pixels = np.stack([p[:, y : y + height, x : x + width] for p, (y, x) in zip(framed, corners, strict=True)])
    if "flip" in how:
        mirrored = rng.random(len(pixels)) < 0.5
        pixels = np.where(mirrored[:, None, None, None], pixels[..., ::-1], pixels)
    return pixels


def draw_rows(rows: Ints, size: int, rng: np.random.Generator) -> Ints:
    """A batch without replacement; with replacement only where a client has fewer samples than the batch."""
    return rng.choice(rows, size, replace=len(rows) < size)


def epoch_rows(rows: Ints, size: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Every sample once, shuffled, in batches of `size`; the last one may be smaller."""
    shuffled = rng.permutation(rows)
    for start in range(0, len(rows), size):
        yield shuffled[start : start + size]


@dataclass(frozen=True)
class Task:
    """Clients with their own data, and the model that they train."""

    settings: TaskSettings
    seed: int
    train: Images | Tokens
    test: Images | Tokens
    partition: Partition

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.partition.train)

    @property
    def gamma(self) -> Floats:
        """gamma_n = D_n / sum of D_n, from the clients' training samples."""
        return self.partition.gamma

    @property
    def classes(self) -> int:
        """Number of classes."""
        return DATASETS[self.settings.dataset].classes

    @cached_property
    def split(self) -> Split:
        """The split into shared base and private head."""
        layer = self.settings.split or default_split(self.settings.model, self.settings.text)
        return split_after(self.new_model("base"), layer)

    def new_model(self, *labels: str | int) -> nn.Module:
        """A model initialised from the stream (seed, "weights", labels)."""
        seed = stream_seed(self.seed, "weights", *labels)
        return build_model(self.settings.model, self.classes, seed, self.settings.text)

    def initial_shared(self, split: Split) -> Tensor:
        """The initial shared part, the same for every method."""
        return flatten(self.new_model("base"), split.shared)

    def initial_private(self, split: Split, client: int) -> Tensor:
        """A client's initial private part, from the client's own random stream."""
        if not split.private:
            return torch.empty(0)
        return flatten(self.new_model("head", client), split.private)

    def batches(self, client: int, round_number: int, size: int, *, steps: int, epochs: int | None) -> Iterator[Batch]:
        """The training batches of one client in one round: `steps` draws, or `epochs` passes over its data."""
        rows = self.partition.train[client]
        rng = stream(self.seed, "batch", round_number, client)
        looks = stream(self.seed, "augment", round_number, client)  # separate: `rng` draws the same rows without it
        if epochs is None:
            drawn = (draw_rows(rows, size, rng) for _ in range(steps))
        else:
            drawn = (chosen for _ in range(epochs) for chosen in epoch_rows(rows, size, rng))
        for chosen in drawn:
            yield self.train.batch(chosen, lambda pixels: changed(pixels, self.settings.augment, looks))

    @cached_property
    def majority_labels(self) -> Ints:
        """Per client: its most frequent training label."""
        return np.array([np.bincount(self.train.labels[rows]).argmax() for rows in self.partition.train])

    @cached_property
    def majority_guess(self) -> Floats:
        """Per client: accuracy on its test set of always predicting its most frequent training label."""
        guesses = self.majority_labels
        return np.array(
            [np.mean(self.test.labels[rows] == guess) for rows, guess in zip(self.partition.test, guesses, strict=True)]
        )


def build_task(settings: TaskSettings, seed: int, data_root: Path | None = None, *, owner: int | None = None) -> Task:
    """Load the data, partition it over clients (or give it all to `owner`), and check that it fits the model."""
    spec = DATASETS[settings.dataset]
    held_back = settings.test_on == HELD_BACK
    train, test = (
        _inputs(settings, split, data_root) for split in ("train", "test" if held_back else settings.test_on)
    )
    if owner is None:
        partition = make_partition(train.labels, test.labels, spec.classes, settings.partition, seed)
    else:
        partition = all_to(owner, settings.partition.clients, len(train.labels), len(test.labels))
    if held_back:
        test, partition = train, hold_back(partition, seed)
    task = Task(settings, seed, train, test, partition)
    _ = task.split  # raises for an unknown layer now rather than in the first round
    return task


def _inputs(settings: TaskSettings, split: str, root: Path | None) -> Images | Tokens:
    """One split in the form that the model takes."""
    spec, shape = DATASETS[settings.dataset], MODELS[settings.model].input_shape
    if shape is None and spec.shape is None and settings.augment:
        raise SettingsError(f"task.augment changes pictures, but {settings.dataset!r} has texts. Leave it out.")
    if shape is None and spec.shape is None:
        return load_tokens(settings.dataset, split, settings.text, root)
    if (
        shape is None
        or spec.shape is None
        or len(spec.shape) != len(shape)
        or spec.shape[0] != shape[0]
        or spec.shape[1] > shape[1]
    ):
        raise SettingsError(
            f"Model {settings.model!r} takes {'texts' if shape is None else f'inputs of shape {shape}'}, but "
            f"{settings.dataset!r} has {'texts' if spec.shape is None else spec.shape}. Choose another of the two."
        )
    return _images(settings.dataset, split, shape, root)


def _images(name: str, split: str, shape: tuple[int, ...], root: Path | None) -> Images:
    """One split, padded with black to the model's input size."""
    spec = DATASETS[name]
    samples = load_samples(name, split, root)
    mean, deviation = (torch.tensor(values).reshape(-1, 1, 1) for values in (spec.mean, spec.deviation))
    return Images(_pad(samples, shape), np.asarray(samples.labels), mean, deviation)


def _pad(samples: Samples, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Centre images in a larger black frame; images of the right size stay memory-mapped."""
    height, width = samples.inputs.shape[2:]
    if (height, width) == shape[1:]:
        return samples.inputs
    top, left = (shape[1] - height) // 2, (shape[2] - width) // 2
    if top < 0 or left < 0:
        raise DataError(f"Images of {width}x{height} pixels do not fit the model's {shape[2]}x{shape[1]} input.")
    frame = ((0, 0), (0, 0), (top, shape[1] - height - top), (left, shape[2] - width - left))
    return np.pad(samples.inputs, frame)
