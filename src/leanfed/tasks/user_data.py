"""Registration of a user's own data and models: a folder of images, a Parquet file, an nn.Module."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from leanfed.errors import DataError, StorageError, nearest
from leanfed.files import check_file, explained, parquet_table, sha256_of
from leanfed.records import Ints
from leanfed.tasks.cache import Samples, join_texts, local_samples, open_picture
from leanfed.tasks.datasets import DATASETS, DatasetSpec, LocalSource
from leanfed.tasks.given import Given, checked
from leanfed.tasks.user_arrays import Normalise, divided, register
from leanfed.tasks.user_splits import every_fifth

if TYPE_CHECKING:
    import polars
    from torch import nn

PIECE = 1_000  # pictures at a time
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


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


def add_model(
    name: str, build: Callable[[int], nn.Module], *, split: str = "", input_shape: tuple[int, ...] | None = None
) -> None:
    """Register a model: `build(outputs)` makes it, `split` is the last layer of the shared base.

    Without `split` the base is all but the last child with weights; `leanfed models NAME` shows it.

    `outputs` is the number of classes, or of numbers to predict. Smaller images are padded with black to `input_shape`
    (channels, height, width); other samples must have that shape, or any where it is left out.
    """
    from leanfed.tasks.models import MODELS, ModelSpec

    if not callable(build):
        raise DataError(f"Model {name!r} needs a function build(outputs) that makes it, not {build!r}. Wrap it in one.")
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
    file: str | Path | Sequence[Path],
    *,
    inputs: str | Sequence[str],
    label: str = "label",
    client: str | None = None,
    test: str | Path | Sequence[Path] | None = None,
    size: int = 32,
    channels: int = 3,
    normalise: Normalise = "none",
    classes: int | None = None,
    characters: bool = False,
) -> DatasetSpec:
    """Register a Parquet file: `inputs` is a column of encoded images, one or two columns of texts, or numeric columns.

    Numeric columns become features (n, columns), columns of lists of one length series (n, columns, length), or
    (n, length) where there is one; `normalise` and `classes` are for these, as in `add_arrays`. Labels may be numbers
    or strings; those with a fraction are numbers to predict. `client` is the column that says whose sample a row is.
    Without a `test` file every fifth row of each client, else of each class, is for testing. Several files are read as
    one. With `characters` a column of texts of one length becomes the places (n, length) of their characters among all
    that occur.
    """
    columns = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    files = {"train": _files(file), **({} if test is None else {"test": _files(test)})}
    named = (*columns, label, *(() if client is None else (client,)))
    if twice := [column for column in named if named.count(column) > 1]:
        raise DataError(f"Column {twice[0]!r} is named twice among inputs, label and client. Name each column once.")
    tables = {split: read_parquet(paths, named) for split, paths in files.items()}
    if characters:
        tables = _numbered(tables, columns[0], files["train"][0])
    kind = tables["train"].schema[columns[0]].base_type().__name__
    if kind in ("String", "Binary", "Struct"):
        return _add_encoded(
            name, files, tables, columns, label, client, None if kind == "String" else Format(size, channels)
        )
    given = {s: columns_as_arrays(table, columns, label, client, files[s][0]) for s, table in tables.items()}
    splits = given if len(given) == 2 else divided(given["train"])
    return register(name, splits, normalise=normalise, classes=classes, columns=columns)


def _add_encoded(
    name: str,
    files: Mapping[str, tuple[Path, ...]],
    tables: dict[str, polars.DataFrame],
    columns: tuple[str, ...],
    label: str,
    client: str | None,
    form: Format | None,
) -> DatasetSpec:
    """Register columns of images, brought to a form, or of texts."""
    file, apart = files["train"][0], len(files) == 2
    for split, table in tables.items():
        for column in (*columns, label, *([client] if client else [])):
            _without_gaps(table[column], f"Column {column!r} of {files[split][0]}")
    given = {value for table in tables.values() for value in table[label]}
    classes = sorted(given)
    if len(classes) < 2:
        raise DataError(f"Column {label!r} of {file} must hold at least two classes, but has {classes}. Name another.")
    labels = {split: _numbers(table[label].to_list(), classes) for split, table in tables.items()}
    known = sorted({str(value) for table in tables.values() for value in table[client]}) if client else []
    users = {split: _numbers([str(u) for u in tables[split][client]], known) for split in tables} if client else {}
    rows = {split: np.arange(len(found)) for split, found in labels.items()}
    if not apart:
        held = every_fifth(users["train"], at_least_one=True) if client else every_fifth(labels["train"])
        rows = {"train": np.flatnonzero(~held), "test": np.flatnonzero(held)}
        tables["test"], labels["test"] = tables["train"], labels["train"]
        users |= {"test": users["train"]} if client else {}

    def load(split: str) -> Samples:
        chosen, found = tables[split][rows[split]], labels[split][rows[split]]
        whose = users[split][rows[split]] if client else None
        if form is None:
            return replace(join_texts(chosen.select(columns), found), users=whose)
        column = chosen[columns[0]]
        encoded = column.struct.field("bytes") if column.dtype.is_nested() else column
        return Samples(form.read(encoded.to_list(), file), found, users=whose)

    def key(split: str) -> str:
        held = "" if apart else split
        owner = [] if client is None else [client]
        sums = "".join(sha256_of(part) for part in files[split if apart else "train"])
        words = [sums, held, f"{form or Format(32, 3)}", *columns, label]
        return _digest([*words, f"{classes}", *owner])

    counts = {split: len(found) for split, found in rows.items()}
    return _add(name, LocalSource(str(file), load, key), classes, counts, form, columns, tuple(known))


def columns_as_arrays(
    table: polars.DataFrame, columns: Sequence[str], label: str, client: str | None, file: Path
) -> Given:
    """Numeric columns, or columns of lists, as one array of samples with its labels and users."""
    parts = [_stacked(table[column], f"Column {column!r} of {file}") for column in columns]
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(f"{column!r} {part.shape[1:]}" for column, part in zip(columns, parts, strict=True))
        raise DataError(f"The columns of {file} have different lengths: {shapes}. Name columns of one length.")
    inputs = parts[0] if len(parts) == 1 and parts[0].ndim > 1 else np.stack(parts, axis=1)
    users = None if client is None else _without_gaps(table[client], f"Column {client!r} of {file}").to_numpy()
    return checked(inputs, _stacked(table[label], f"Column {label!r} of {file}"), users, str(file))


def _without_gaps(column: polars.Series, what: str) -> polars.Series:
    if column.null_count():
        raise DataError(
            f"{what} has {column.null_count()} gaps in {len(column)} rows. Fill them, or leave these rows out."
        )
    return column


def _stacked(column: polars.Series, what: str) -> npt.NDArray[Any]:
    """A column as an array; lists must be of one length."""
    import polars as pl

    column = _without_gaps(column, what)
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    if column.dtype.is_decimal():
        column = column.cast(pl.Float64)
    if isinstance(column.dtype, pl.List):
        lengths = column.list.len()
        if lengths.n_unique() != 1 or not lengths[0]:
            raise DataError(
                f"{what} holds lists of {lengths.min()!r} to {lengths.max()!r} values. Pad or cut them to one length."
            )
        inner = _stacked(column.explode(), what)
        return inner.reshape(len(column), lengths[0], *inner.shape[1:])
    if not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.String)):
        raise DataError(
            f"{what} is of the type {column.dtype}. Name columns of numbers, lists of numbers, texts or images."
        )
    return column.to_numpy()


def _add(
    name: str,
    source: LocalSource,
    classes: Sequence[object],
    rows: Mapping[str, int],
    form: Format | None,
    columns: tuple[str, ...] = ("image",),
    users: tuple[str, ...] = (),
) -> DatasetSpec:
    """Register the data set; images are normalised by the mean and deviation of the training pixels."""
    if form is None:
        return DATASETS.add(name, DatasetSpec(source, columns, len(classes), dict(rows), users=users))
    mean, deviation = pixel_moments(local_samples(name, "train", source).inputs)
    spec = DatasetSpec(source, columns, len(classes), dict(rows), form.shape, mean, deviation, users=users)
    return DATASETS.add(name, spec)


def pixel_moments(pixels: npt.NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of pixels (n, channels, height, width) in [0, 1] by channel, from exact sums of pieces."""
    count = pixels.size // pixels.shape[1]
    sums, squares = (np.zeros(pixels.shape[1], dtype=np.int64) for _ in range(2))
    for start in range(0, len(pixels), PIECE):
        piece = pixels[start : start + PIECE].astype(np.int64)
        sums += piece.sum((0, 2, 3))
        squares += np.square(piece).sum((0, 2, 3))
    mean = sums / count / 255
    variance = np.maximum(squares / count / 255**2 - mean**2, 0.0)
    return tuple(mean.tolist()), tuple((np.sqrt(variance) + 1e-6).tolist())


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
    held = every_fifth(_numbers([label for _, label in pictures], names))
    pairs = list(zip(pictures, held, strict=True))
    return {"train": [p for p, out in pairs if not out], "test": [p for p, out in pairs if out]}


def _numbers(values: Sequence[object], classes: Sequence[object]) -> Ints:
    """Labels as numbers from 0 on, in the order of the classes."""
    places = {value: number for number, value in enumerate(classes)}
    return np.array([places[value] for value in values], dtype=np.int64)


def _files(given: str | Path | Sequence[Path]) -> tuple[Path, ...]:
    return (Path(given),) if isinstance(given, str | Path) else tuple(given)


def read_parquet(files: Sequence[Path], columns: Sequence[str] | None) -> polars.DataFrame:
    """The named columns of Parquet files one after another, or all columns."""
    import polars as pl

    tables = []
    for file in files:
        check_file(file)
        with explained(file, "read"):
            try:
                table = parquet_table(file)
            except pl.exceptions.PolarsError as error:
                raise DataError(f"{file} is not a readable Parquet file ({error}). Give another file.") from error
        if missing := [column for column in columns or () if column not in table.columns]:
            raise DataError(f"{file} has no column {missing[0]!r}: {nearest(missing[0], table.columns)}")
        tables.append(table if columns is None else table.select(columns))
    return tables[0] if len(tables) == 1 else pl.concat(tables)


def _numbered(tables: Mapping[str, polars.DataFrame], column: str, file: Path) -> dict[str, polars.DataFrame]:
    """Texts as lists of the places of their characters among all that occur in training, then in testing."""
    import polars as pl

    if any(table.schema[column] != pl.String or table[column].null_count() for table in tables.values()):
        raise DataError(f"Column {column!r} of {file} must hold texts without gaps to be read as characters.")
    known = sorted(set().union(*("".join(table[column].unique()) for table in tables.values())))
    places = {character: place for place, character in enumerate(known)}
    return {
        split: table.with_columns(
            pl.Series(column, [[places[c] for c in text] for text in table[column]], dtype=pl.List(pl.Int64))
        )
        for split, table in tables.items()
    }


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
