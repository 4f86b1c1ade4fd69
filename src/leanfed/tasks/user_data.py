"""Registration of a user's own data and models: a folder of images, a Parquet file, an nn.Module."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from leanfed.errors import DataError, StorageError, nearest
from leanfed.files import explained, sha256_of
from leanfed.records import Ints
from leanfed.tasks.cache import Samples, join_texts, local_samples, open_picture
from leanfed.tasks.datasets import DATASETS, DatasetSpec, LocalSource

if TYPE_CHECKING:
    import polars
    from torch import nn

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
EVERY = 5  # without a test set, every fifth sample of each class is for testing


@dataclass(frozen=True)
class Format:
    """The size that images are scaled to."""

    size: int
    channels: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return (self.channels, self.size, self.size)

    def read(self, pictures: Sequence[Path | bytes], what: Path) -> npt.NDArray[np.uint8]:
        """Pictures as (n, channels, size, size)."""
        pixels = np.empty((len(pictures), self.size, self.size, self.channels), dtype=np.uint8)
        for row, picture in enumerate(pictures):
            content = picture.read_bytes() if isinstance(picture, Path) else picture
            name = str(picture) if isinstance(picture, Path) else f"Row {row} of {what}"
            found = open_picture(content, self.channels, name).resize((self.size, self.size))
            pixels[row] = np.asarray(found).reshape(self.size, self.size, self.channels)
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def add_model(name: str, build: Callable[[int], nn.Module], *, input_shape: tuple[int, int, int], split: str) -> None:
    """Register a model: `build(classes)` makes it, `split` is the last layer of the shared base.

    Smaller images are padded with black to `input_shape` (channels, height, width).
    """
    from leanfed.tasks.models import MODELS, ModelSpec

    MODELS.add(name, ModelSpec(build, input_shape=input_shape, default_split=split))


def import_file(file: str | Path) -> None:
    """Run a Python file that registers models, data sets, methods, allocators or selections."""
    file = Path(file)
    if not file.is_file():
        raise StorageError(f"{file} is not a file. Give a Python file that calls leanfed.add_model or the like.")
    spec = spec_from_file_location(f"leanfed_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise StorageError(f"{file} is not a Python file. Give one that ends in .py.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def add_images(name: str, folder: str | Path, *, size: int = 32, channels: int = 3) -> DatasetSpec:
    """Register a folder of images: FOLDER/train/CLASS/* and FOLDER/test/CLASS/*, or FOLDER/CLASS/*.

    Without a test folder every fifth image of each class, in the order of the names, is for testing.
    """
    folder = Path(folder)
    with explained(folder, "read"):
        parts = {part: _pictures(folder / part) for part in ("train", "test") if (folder / part).is_dir()}
        if len(parts) < 2:
            parts = _every_fifth(_pictures(folder))
    classes = sorted({label for files in parts.values() for _, label in files})
    if len(classes) < 2:
        raise DataError(
            f"{folder} must hold a folder of pictures for each of at least two classes, but has {classes or 'none'}. "
            f"Pictures end in {', '.join(PICTURES)}."
        )
    form = Format(size, channels)

    def load(split: str) -> Samples:
        labels = np.array([classes.index(label) for _, label in parts[split]], dtype=np.int64)
        return Samples(form.read([file for file, _ in parts[split]], folder), labels)

    def key(split: str) -> str:
        files = [f"{file.relative_to(folder)} {sha256_of(file)}" for file, _ in parts[split]]
        return _digest([f"{form}", *classes, *files])

    return _add(name, LocalSource(str(folder), load, key), classes, {k: len(v) for k, v in parts.items()}, form)


def add_parquet(
    name: str,
    file: str | Path,
    *,
    inputs: str | Sequence[str],
    label: str = "label",
    test: str | Path | None = None,
    size: int = 32,
    channels: int = 3,
) -> DatasetSpec:
    """Register a Parquet file: `inputs` is a column of encoded images, or one or two columns of texts.

    Labels may be numbers or strings. Without a `test` file every fifth row of each class is for testing.
    """
    columns = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    files = {"train": Path(file), **({} if test is None else {"test": Path(test)})}
    tables = {split: _read(path, (*columns, label)) for split, path in files.items()}
    given = {value for table in tables.values() for value in table[label]}
    classes = sorted(given - {None})
    if len(classes) < 2 or None in given:
        raise DataError(f"Column {label!r} of {file} must hold at least two classes and no gaps, but has {given}.")
    labels = {split: _numbers(table[label].to_list(), classes) for split, table in tables.items()}
    rows = {split: np.arange(len(found)) for split, found in labels.items()}
    if test is None:
        held = _fifth(labels["train"])
        rows = {"train": np.flatnonzero(~held), "test": np.flatnonzero(held)}
        tables["test"], labels["test"] = tables["train"], labels["train"]
    texts = tables["train"].schema[columns[0]].base_type().__name__ == "String"
    form = Format(size, channels)

    def load(split: str) -> Samples:
        chosen, known = tables[split][rows[split]], labels[split][rows[split]]
        if texts:
            return join_texts(chosen.select(columns), known)
        column = chosen[columns[0]]
        encoded = column.struct.field("bytes") if column.dtype.is_nested() else column
        return Samples(form.read(encoded.to_list(), files["train"]), known)

    def key(split: str) -> str:
        held = "" if test else split
        return _digest([sha256_of(files[split if test else "train"]), held, f"{form}", *columns, label, f"{classes}"])

    counts = {split: len(found) for split, found in rows.items()}
    return _add(name, LocalSource(str(file), load, key), classes, counts, None if texts else form, columns)


def _add(
    name: str,
    source: LocalSource,
    classes: Sequence[object],
    rows: Mapping[str, int],
    form: Format | None,
    columns: tuple[str, ...] = ("image",),
) -> DatasetSpec:
    """Register the data set; images are normalised by the mean and deviation of the training pixels."""
    if form is None:
        return DATASETS.add(name, DatasetSpec(source, columns, len(classes), dict(rows)))
    pixels = local_samples(name, "train", source).inputs / np.float32(255)
    mean, deviation = (tuple(found.tolist()) for found in (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)) + 1e-6))
    spec = DatasetSpec(source, columns, len(classes), dict(rows), form.shape, mean, deviation)
    return DATASETS.add(name, spec)


def _pictures(folder: Path) -> list[tuple[Path, str]]:
    """(file, class) of every image in the subfolders, which are named after classes."""
    classes = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    return [
        (file, child.name)
        for child in classes
        for file in sorted(child.iterdir())
        if file.suffix.lower() in PICTURES and file.is_file()
    ]


def _every_fifth(pictures: list[tuple[Path, str]]) -> dict[str, list[tuple[Path, str]]]:
    """Images for training and for testing, by split."""
    names = sorted({label for _, label in pictures})
    held = _fifth(_numbers([label for _, label in pictures], names))
    pairs = list(zip(pictures, held, strict=True))
    return {"train": [p for p, out in pairs if not out], "test": [p for p, out in pairs if out]}


def _fifth(labels: Ints) -> npt.NDArray[np.bool_]:
    """Mask of every fifth sample of each class, in the given order."""
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        held[np.flatnonzero(labels == label)[EVERY - 1 :: EVERY]] = True
    return held


def _numbers(values: Sequence[object], classes: Sequence[object]) -> Ints:
    """Labels as numbers from 0 on, in the order of the classes."""
    places = {value: number for number, value in enumerate(classes)}
    return np.array([places[value] for value in values], dtype=np.int64)


def _read(file: Path, columns: Sequence[str]) -> polars.DataFrame:
    """The named columns of a Parquet file."""
    import polars as pl

    with explained(file, "read"):
        try:
            table = pl.read_parquet(file)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{file} is not a readable Parquet file ({error}). Give another file.") from error
    if missing := [column for column in columns if column not in table.columns]:
        raise DataError(f"{file} has no column {missing[0]!r}: {nearest(missing[0], table.columns)}")
    return table.select(columns)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
