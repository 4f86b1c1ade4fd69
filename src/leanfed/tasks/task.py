"""A learning task: a data set partitioned over clients, a model, and its split; all determined by the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor, nn

from leanfed.errors import DataError, SettingsError, first_line
from leanfed.records import Floats, Ints, Section
from leanfed.streams import stream, stream_seed
from leanfed.tasks.arrays import Array, Rows
from leanfed.tasks.batch import Batch as Batch
from leanfed.tasks.bert_sketch import sketches
from leanfed.tasks.births import PrivateParts
from leanfed.tasks.cache import Samples, load_samples
from leanfed.tasks.cut import CRITERIA, known_criterion, own_cut
from leanfed.tasks.datasets import DATASETS, DatasetSpec
from leanfed.tasks.drawn import draw_partition
from leanfed.tasks.guess import guess_score
from leanfed.tasks.hub_sets import HubSettings, add_hub_set, is_hub_set
from leanfed.tasks.lora import LoraSettings
from leanfed.tasks.losses import CROSS_ENTROPY, LOSSES, LossSpec, check_outputs, named
from leanfed.tasks.models import MODELS, ModelSpec, build_model, example_model, narrow_model, text_of
from leanfed.tasks.partition import Partition, PartitionSettings, all_to, by_user, hold_back, make_partition
from leanfed.tasks.split import Split, flatten, split_after
from leanfed.tasks.text import TextSettings, Tokens, load_tokens
from leanfed.tasks.user_table import TableSettings, add_table

Change = Literal["crop", "flip"]
HELD_BACK = "held-back"
SHIFT = 4  # pixels in each direction by which a crop may shift an image


class TaskSettings(Section):
    """The learning task: data, model and partition."""

    dataset: str = "mnist-5k"
    """A data set by name (`leanfed data` lists them), or any of the hub: hub:owner/name, hub:owner/name/configuration,
    hub:owner/name@revision."""
    model: str = "lenet5"
    """A model by name (`leanfed models` lists them), or a classifier of transformers: transformers:owner/name,
    transformers:FOLDER."""
    split: Annotated[str | None, AfterValidator(known_criterion)] = None
    """The last layer of the shared base; the model's own default when left out. "auto" or "auto:cost": chosen before
    the first round by what a round is planned to take, "auto:gain" by how alike the clients' gradients are; the
    settings that a run keeps name the layer."""
    split_schedule: tuple[tuple[Annotated[int, Field(ge=1)], str], ...] = ()
    """Rounds from which on the base ends with an earlier layer, for example [[20, "conv2"]]: what is shared no longer
    becomes private, every client's own from its values at that moment."""
    statistics: Literal["private", "shared"] = "private"
    """Running statistics of normalisation layers: each client's own, or, for shared layers, averaged after a round."""
    augment: tuple[Change, ...] = ()
    """How training images are changed each time they are drawn: "crop" (shifted by up to 4 pixels), "flip"."""
    test_on: str = "test"
    """The split that clients are tested on. For choosing settings: "held-back", a fifth of each client's own training
    samples, which it then does not train on; or "validation", where a data set has one."""
    lora: LoraSettings | None = None
    """Low-rank adapters: everything else but the model's end is frozen; left out: all weights are trained."""
    text: TextSettings = Field(default_factory=TextSettings)
    """The encoder of a text model; image models have none."""
    table: TableSettings | None = None
    """Your own Parquet file, which `dataset` then names; left out: a data set that is known by its name."""
    hub: HubSettings | None = None
    """Which columns of a data set of the hub are what; left out: they are found."""
    loss: Annotated[str | None, BeforeValidator(named)] = None
    """What is minimised, by name: cross_entropy, next_token (the same, with perplexity), mse, l1, huber,
    binary_cross_entropy, or one of your own; left out: cross_entropy for classes, mse for numbers."""
    partition: PartitionSettings = Field(default_factory=lambda: PartitionSettings(kind="class", classes_per_client=2))
    """How samples are distributed over clients."""

    @property
    def chooses_cut(self) -> bool:
        """Whether the program is to choose the cut."""
        return self.split in CRITERIA


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
    train: Images | Tokens | Rows
    test: Images | Tokens | Rows
    partition: Partition
    sketched: bool = False  # its models are for sizes and times only
    width: float = 1.0  # share of the channels of every layer that its models have

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
        """Number of classes; 0 where numbers are predicted."""
        return DATASETS[self.settings.dataset].classes

    @property
    def outputs(self) -> int:
        """What the model gives for each sample: a score for every class, or the numbers to predict."""
        return DATASETS[self.settings.dataset].outputs

    @cached_property
    def loss(self) -> LossSpec:
        """What is minimised; refused where it is for other labels than these."""
        name = self.settings.loss or (CROSS_ENTROPY if self.classes else "mse")
        spec = LOSSES[name]
        if spec.labels != "any" and (spec.labels == "classes") != (self.classes > 0):
            held = f"{self.classes} classes" if self.classes else "numbers to predict"
            other = "cross_entropy" if self.classes else "mse"
            raise SettingsError(
                f"task.loss = {name!r} is for {spec.labels}, but {self.settings.dataset!r} has {held}. Choose "
                f"{other!r} or leave it out."
            )
        return spec

    @cached_property
    def split(self) -> Split:
        """The split into shared base and private head."""
        model = self.example_model
        with sketches(self.sketched):
            layer = self.settings.split or own_cut(model, self.settings.model, self.settings.text)
        return split_after(model, layer)

    def new_model(self, *labels: str | int) -> nn.Module:
        """A model initialised from the stream (seed, "weights", labels)."""
        with sketches(self.sketched):
            return self._at_width(build_model(*self._built_from(*labels)))

    @property
    def example_model(self) -> nn.Module:
        """`new_model("base")`, to look at only: it may be given out again."""
        with sketches(self.sketched):
            return self._at_width(example_model(*self._built_from("base")))

    def _at_width(self, whole: nn.Module) -> nn.Module:
        if self.width == 1.0:
            return whole
        return narrow_model(whole, self.settings.model, self.outputs, self.width)

    def _built_from(self, *labels: str | int) -> tuple[str, int, int, TextSettings, LoraSettings | None]:
        seed = stream_seed(self.seed, "weights", *labels)
        return self.settings.model, self.outputs, seed, self.settings.text, self.settings.lora

    def initial_shared(self, split: Split) -> Tensor:
        """The initial shared part, the same for every method."""
        return flatten(self.example_model, split.shared)

    def initial_private(self, split: Split, client: int) -> Tensor:
        """A client's initial private part, from the client's own random stream."""
        if not split.private:
            return torch.empty(0)
        if self.sketched:
            return flatten(self.new_model("head", client), split.private)
        names = tuple(split.private)
        if names not in self._private_parts:
            name, outputs, _, text, lora = self._built_from("base")
            make = partial(_model_of, name, outputs, text, lora)
            self._private_parts[names] = PrivateParts(make, split.private)
        return self._private_parts[names].of(stream_seed(self.seed, "weights", "head", client))

    @cached_property
    def _private_parts(self) -> dict[tuple[str, ...], PrivateParts]:
        """By the names of the private parameters."""
        return {}

    def batches(self, client: int, round_number: int, size: int, *, steps: int, epochs: int | None) -> Iterator[Batch]:
        """The training batches of one client in one round: `steps` draws, or `epochs` passes over its data."""
        rows = self.partition.train[client]
        rng = stream(self.seed, "batch", round_number, client)
        if epochs is None:
            drawn = (draw_rows(rows, size, rng) for _ in range(steps))
        else:
            drawn = (chosen for _ in range(epochs) for chosen in epoch_rows(rows, size, rng))
        how = self.settings.augment
        if not how:
            yield from map(self.train.batch, drawn)
            return
        looks = stream(self.seed, "augment", round_number, client)  # separate: `rng` draws the same rows without it
        for chosen in drawn:
            yield self.train.batch(chosen, lambda pixels: changed(pixels, how, looks))

    def constant_guess(self, clients: Iterable[int]) -> Floats:
        """Of these clients: the score on its test set of the constant that is best for its training labels.

        Where accuracy is the score this is the majority guess, always predicting the most frequent training label.
        """
        train, test = self.partition.train, self.partition.test
        pairs = ((self.train.labels[train[client]], self.test.labels[test[client]]) for client in clients)
        return np.array([guess_score(self.loss, held, tests, self.outputs) for held, tests in pairs])


def _model_of(name: str, outputs: int, text: TextSettings, lora: LoraSettings | None, seed: int) -> nn.Module:
    return build_model(name, outputs, seed, text, lora)


def build_task(
    settings: TaskSettings,
    seed: int,
    data_root: Path | None = None,
    *,
    owner: int | None = None,
    sketched: bool = False,
) -> Task:
    """Load the data, partition it over clients (or give it all to `owner`), and check that it fits the model.

    A `sketched` task is for a dry run: sizes and times of its models are right, their weights need not be.
    """
    if settings.chooses_cut:
        raise SettingsError(f"task.split = {settings.split!r} is no layer yet. Choose it first: leanfed plan --cuts.")
    if settings.table is not None:
        add_table(settings.dataset, settings.table, data_root)
    elif is_hub_set(settings.dataset):
        add_hub_set(settings.dataset, settings.hub, data_root)
    elif settings.hub is not None:
        raise SettingsError(f"task.hub is for data sets of the hub, but {settings.dataset!r} is none. Leave it out.")
    held_back = settings.test_on == HELD_BACK
    splits = ("train", "test" if held_back else settings.test_on)
    train, test = (_inputs(settings, split, data_root) for split in splits)
    if owner is None:
        partition = _partition(settings, train.labels, test.labels, seed, data_root)
    else:
        partition = all_to(owner, settings.partition.counted(), len(train.labels), len(test.labels))
    if held_back:
        test, partition = train, hold_back(partition, seed)
    task = Task(settings, seed, train, test, partition, sketched)
    _ = task.split, task.loss  # raise for an unknown layer or loss now rather than in the first round
    if isinstance(train, Rows):
        _try_model(task)
    return task


def _partition(settings: TaskSettings, train: Array, test: Array, seed: int, root: Path | None) -> Partition:
    """The clients' rows; labels that are no single class count as one class, so that only sizes are dealt out."""
    spec = DATASETS[settings.dataset]
    if settings.partition.kind == "column":
        tested = "test" if settings.test_on == HELD_BACK else settings.test_on
        users = [load_samples(settings.dataset, split, root).users for split in ("train", tested)]
        if users[0] is None or users[1] is None:
            raise SettingsError(
                f"task.partition.kind = 'column' needs to know whose each sample is, but {settings.dataset!r} does not "
                "say. Name the users: client=... in leanfed.add_arrays, or task.table.client."
            )
        return by_user(users[0], users[1], spec.users, settings.partition, seed)
    make = draw_partition if settings.partition.kind == "drawn" else make_partition
    if spec.classes and train.ndim == 1:
        return make(train, test, spec.classes, settings.partition, seed)
    held, tests = (np.zeros(len(labels), dtype=np.int64) for labels in (train, test))
    return make(held, tests, 1, settings.partition, seed)


def _try_model(task: Task) -> None:
    """Refuse a model that cannot compute on these samples, or whose outputs do not fit their labels."""
    name, model = task.settings.model, task.new_model("base")
    batch = task.train.batch(np.resize(task.partition.train[0], 2))
    try:
        with torch.no_grad():
            outputs = model.eval()(batch.inputs)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        kind = str(batch.inputs.dtype).removeprefix("torch.")
        raise SettingsError(
            f"Model {name!r} cannot compute on samples of {task.settings.dataset!r}, {kind} of shape "
            f"{tuple(batch.inputs.shape[1:])}: {first_line(error)}. Change the model, or the arrays (whole "
            "numbers stay whole unless normalise scales them)."
        ) from error
    if task.loss.labels != "any":
        check_outputs(outputs, batch.labels, task.classes, name)


def _inputs(settings: TaskSettings, split: str, root: Path | None) -> Images | Tokens | Rows:
    """One split in the form that the model takes."""
    spec, model = DATASETS[settings.dataset], MODELS[settings.model]
    shape = model.input_shape
    if isinstance(model, ModelSpec) and (spec.arrays or shape is None) and spec.shape is not None:
        return _rows(settings, split, spec, root) if spec.arrays else _images(settings.dataset, split, spec.shape, root)
    if shape is None and spec.shape is None and settings.augment:
        raise SettingsError(f"task.augment changes pictures, but {settings.dataset!r} has texts. Leave it out.")
    if shape is None and spec.shape is None:
        return load_tokens(settings.dataset, split, text_of(settings.model, settings.text), root)
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


def _rows(settings: TaskSettings, split: str, spec: DatasetSpec, root: Path | None) -> Rows:
    """One split of arrays; pictures are padded with zeros where the model takes larger ones."""
    wanted, name = MODELS[settings.model].input_shape, settings.dataset
    if settings.augment:
        raise SettingsError(f"task.augment changes pictures in bytes, but {name!r} has arrays. Leave it out.")
    samples = load_samples(name, split, root)
    if wanted is not None and spec.shape != wanted:
        pictures = spec.shape is not None and len(spec.shape) == len(wanted) == 3 and spec.shape[0] == wanted[0]
        if not pictures:
            raise SettingsError(
                f"Model {settings.model!r} takes inputs of shape {wanted}, but {name!r} has {spec.shape}. Choose "
                "another of the two."
            )
        samples = replace(samples, inputs=_pad(samples, wanted))
    return Rows(samples.inputs, samples.labels, spec.scaling)


def _images(name: str, split: str, shape: tuple[int, ...], root: Path | None) -> Images:
    """One split, padded with black to the model's input size."""
    spec = DATASETS[name]
    samples = load_samples(name, split, root)
    mean, deviation = (torch.tensor(values).reshape(-1, 1, 1) for values in (spec.mean, spec.deviation))
    return Images(_pad(samples, shape), np.asarray(samples.labels), mean, deviation)


def _pad(samples: Samples, shape: tuple[int, ...]) -> Array:
    """Centre images in a larger black frame; images of the right size stay memory-mapped."""
    height, width = samples.inputs.shape[2:]
    if (height, width) == shape[1:]:
        return samples.inputs
    top, left = (shape[1] - height) // 2, (shape[2] - width) // 2
    if top < 0 or left < 0:
        raise DataError(f"Images of {width}x{height} pixels do not fit the model's {shape[2]}x{shape[1]} input.")
    frame = ((0, 0), (0, 0), (top, shape[1] - height - top), (left, shape[2] - width - left))
    return np.pad(samples.inputs, frame)
