"""Data sets decoded once into memory-mapped arrays; the cache is written atomically and checked when opened."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from leanfed.errors import DataError, StorageError
from leanfed.files import explained, make_folder, parquet_table, read_json, sha256_of, write_json
from leanfed.tasks.datasets import DATASETS, DatasetSpec, HubSource, LocalSource, MemorySource
from leanfed.tasks.datasets import Samples as Samples
from leanfed.tasks.hub_files import located

if TYPE_CHECKING:
    import polars
    from PIL import Image

Arrays = Mapping[str, npt.NDArray[Any]]
FORMAT = 1  # to be increased when the layout of a cached split changes


def cache_root() -> Path:
    """LEANFED_CACHE, else the user's cache folder."""
    if named := os.environ.get("LEANFED_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "leanfed"


def load_samples(name: str, split: str, root: Path | None = None) -> Samples:
    """One split of a data set, decoded on first use and memory-mapped from then on."""
    spec = DATASETS[name]
    if split not in spec.rows:
        raise DataError(f"{name!r} has no split {split!r}; it has {', '.join(spec.rows)}.")
    if isinstance(spec.source, HubSource):
        files = located(name, spec.source, split, root)
        with explained(files[0], "read"):
            sums = [sha256_of(file) for file in files]
        key = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
        return _cached(name, split, key, lambda: decode_parquet(files, spec))
    if isinstance(spec.source, MemorySource):
        return spec.source.splits[split]
    if isinstance(spec.source, LocalSource):
        return local_samples(name, split, spec.source)
    load = spec.source.load
    return _cached(name, split, f"{spec.source.package}-{version(spec.source.package)}", lambda: Samples(*load(split)))


def local_samples(name: str, split: str, source: LocalSource) -> Samples:
    """One split of a user's own files."""
    with explained(Path(source.where), "read"):
        return _cached(name, split, source.key(split), lambda: source.load(split))


def decode_parquet(files: Sequence[Path], spec: DatasetSpec) -> Samples:
    """Read Parquet files of the hub: encoded images or texts, and integer labels."""
    import polars as pl

    wanted, file = [*spec.columns, spec.label], files[0]
    try:
        table = pl.concat(parquet_table(part) for part in files)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{file} is not a readable Parquet file ({error}). Fetch it again.") from error
    if missing := [column for column in wanted if column not in table.columns]:
        raise DataError(f"{file} has no column {missing[0]!r}; it has {', '.join(table.columns)}. Fetch it again.")
    labels = table[spec.label].to_numpy().astype(np.int64)
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= spec.classes:
        raise DataError(f"{file} must hold labels from 0 to {spec.classes - 1} in {spec.label!r}. Fetch it again.")
    if spec.shape is not None:
        return Samples(_decode_images(table[spec.columns[0]], spec.shape, file), labels)
    return join_texts(table.select(spec.columns), labels)


def _decode_images(column: polars.Series, shape: tuple[int, ...], file: Path) -> npt.NDArray[np.uint8]:
    """Encoded images as pixels (n, channels, height, width)."""
    channels, height, width = shape
    pixels = np.empty((len(column), height, width, channels), dtype=np.uint8)
    for row, encoded in enumerate(column.struct.field("bytes")):
        picture = np.asarray(open_picture(encoded, channels, f"Row {row} of {file}"))
        if picture.shape[:2] != (height, width):
            raise DataError(
                f"Row {row} of {file} is {picture.shape[1]}x{picture.shape[0]} pixels, not {width}x{height}."
            )
        pixels[row] = picture.reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def open_picture(encoded: bytes, channels: int, name: str) -> Image.Image:
    """An image from its file's bytes, grey or in colour."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(encoded)).convert("L" if channels == 1 else "RGB")
    except (UnidentifiedImageError, OSError, TypeError) as error:
        raise DataError(f"{name} is not a readable picture ({error}). Replace it.") from error


def join_texts(table: polars.DataFrame, labels: npt.NDArray[np.int64]) -> Samples:
    """Text columns as one array of UTF-8 bytes, and the end of each text in it."""
    encoded = [text.encode() for row in table.iter_rows() for text in row]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64).reshape(len(labels), -1)
    return Samples(np.frombuffer(b"".join(encoded), dtype=np.uint8), labels, ends)


def _cached(name: str, split: str, key: str, decode: Callable[[], Samples]) -> Samples:
    """A decoded split, decoded on first use."""
    return Samples(**cached_arrays(f"{name}-{split}-v{FORMAT}-{key[:24]}", lambda: _parts(decode())))


def cached_arrays(name: str, make: Callable[[], Arrays]) -> Arrays:
    """Open the arrays cached under a name; if there are none, make them and move them into place in one step."""
    folder = cache_root() / name
    found = _open(folder)
    if found is not None:
        return found
    arrays = make()
    make_folder(folder.parent)
    with explained(folder):
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _save(arrays, fresh)
            shutil.rmtree(folder, ignore_errors=True)  # it is damaged: a valid one would have been opened
            fresh.rename(folder)
        except OSError:
            if _open(folder) is None:  # unless another process was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return _open(folder) or arrays


def _parts(samples: Samples) -> Arrays:
    """The arrays of a split by name."""
    parts: dict[str, npt.NDArray[Any] | None] = {
        "inputs": samples.inputs,
        "labels": samples.labels,
        "ends": samples.ends,
        "users": samples.users,
    }
    return {name: array for name, array in parts.items() if array is not None}


def _save(arrays: Arrays, folder: Path) -> None:
    """Write the arrays and, last, the manifest with their checksums."""
    sums = {}
    for part, array in arrays.items():
        np.save(folder / f"{part}.npy", array)
        sums[part] = sha256_of(folder / f"{part}.npy")
    write_json(folder / "manifest.json", {"format": FORMAT, "sha256": sums})


def _open(folder: Path) -> Arrays | None:
    """The cached arrays, or None if they are missing, incomplete or damaged."""
    try:
        sums = read_json(folder / "manifest.json")["sha256"]
        if any(sha256_of(folder / f"{part}.npy") != given for part, given in sums.items()):
            return None
        return {part: np.load(folder / f"{part}.npy", mmap_mode="r") for part in sums}
    except (StorageError, OSError, KeyError, ValueError, TypeError):
        return None
