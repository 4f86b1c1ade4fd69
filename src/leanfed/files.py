"""Atomic writes, checksums, and one reader for texts of every kind."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanfed.errors import StorageError

if TYPE_CHECKING:
    import polars as pl

DEEPEST = 64  # levels of a JSON or TOML value
TOGETHER_BYTES = 4 << 20  # of a new file that are gathered before they are written
LONGEST_BITS = 997  # of a whole number, about 300 digits: more than a float can hold
TOO_LONG = "it holds a whole number of more than 300 digits"


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def explained(path: Path, action: str = "write") -> Iterator[None]:
    """Turn an OSError on reading or writing `path` into an error that says what to do."""
    try:
        yield
    except OSError as error:
        advice = (
            "Check the path and its permissions."
            if action in ("read", "remove")
            else "Free some space, fix the permissions or choose another folder; nothing that was complete is lost."
        )
        raise StorageError(f"Cannot {action} {path}: {error.strerror or error}. {advice}") from error


@contextmanager
def owner_only() -> Iterator[None]:
    """Create files with mode 0600 and folders with 0700 inside the context (the umask applies to the whole process)."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(path: Path) -> Path:
    """Create a folder and its parents."""
    with explained(path, "create folder"):
        path.mkdir(parents=True, exist_ok=True)
    return path


def remove(path: Path) -> None:
    """Delete a file, if it is there."""
    with explained(path, "remove"):
        path.unlink(missing_ok=True)


def check_file(path: Path) -> None:
    """Refuse what is there but is no file: polars would wait for a pipe for ever, and read all that a folder holds."""
    with explained(path, "read"):
        if path.exists() and not path.is_file():
            raise StorageError(f"{path} is not a file. Name a file, not a folder, pipe or device.")


def check_parent(path: Path) -> None:
    """Refuse a file more than one folder below what is there: a slip of the pen should not grow a tree of folders."""
    above = path.parent.parent
    if not path.parent.is_dir() and not above.is_dir():
        raise StorageError(f"{path} cannot be written: there is no folder {above}. Create it, or correct the path.")


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file in the same folder, flush it to disk, then rename it to `path`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with explained(path):
        try:
            write(partial)
            _flush(partial)
            partial.replace(path)
            _flush(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_frame(path: Path, write: Callable[[Path], None]) -> None:
    """Write a polars table atomically; the library reports some failed writes as errors of its own."""
    import polars as pl

    def translated(partial: Path) -> None:
        try:
            write(partial)
        except pl.exceptions.PolarsError as error:
            raise OSError(str(error)) from error

    write_atomically(path, translated)


def parquet_table(path: Path) -> pl.DataFrame:
    """The table of a Parquet file; brackets in its name are a name."""
    import polars as pl

    with _without_panic():
        return pl.read_parquet(path, glob=False)


def parquet_rows(path: Path) -> int:
    """The number of rows of a Parquet file, from its footer."""
    import polars as pl

    with _without_panic():
        return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())


@contextmanager
def _without_panic() -> Iterator[None]:
    """Some damaged files make polars panic, by an error that no `except Exception` catches: it becomes polars' own."""
    import polars as pl

    try:
        yield
    except pl.exceptions.PanicException as error:
        raise pl.exceptions.ComputeError("its columns contradict each other") from error


def is_partial_of(path: Path, names: Collection[str]) -> bool:
    """Whether this is the temporary neighbour that `write_atomically` fills for a file of one of these names."""
    match = re.fullmatch(r"\.(.+)\.\d+\.partial", path.name)
    return match is not None and match[1] in names


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Write and flush a file without a temporary one, and return its SHA-256: a manifest names it before it is read.

    The pieces are written as they come, so that a large file is never in memory as a whole; small ones together.
    """
    digest = hashlib.sha256()
    with explained(path):
        try:
            with path.open("wb", buffering=TOGETHER_BYTES) as file:
                for piece in pieces:
                    file.write(piece)
                    digest.update(piece)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
    return digest.hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file atomically."""

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    write_atomically(path, write)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, indented for readability."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_text(path: Path) -> str:
    """Read a text file: UTF-8, with or without a byte order mark."""
    with explained(path, "read"):
        content = path.read_bytes()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        kind = " (it looks like UTF-16)" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
        raise StorageError(
            f"{path} is not UTF-8 text{kind}: byte 0x{content[error.start]:02x} in line {line}. Save it as UTF-8."
        ) from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a ValueError says what is wrong with it, whatever that is."""
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; a ValueError says what is wrong with it, whatever that is."""
    return deepcopy(_tables(text))


@lru_cache(maxsize=256)
def _tables(text: str) -> dict[str, Any]:
    """Thousands of runs share few files and overrides, which are not read again for each of them."""
    found: dict[str, Any] = _parsed(tomllib.loads, text)
    return found


def _parsed(loads: Callable[[Any], Any], text: str | bytes) -> Any:
    """What `loads` makes of a text, nested no deeper and with no longer numbers than the rest of us can take."""
    try:
        value = loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        if type(error) is ValueError and "digits" in str(error):  # Python's own limit, and its own advice
            raise ValueError(TOO_LONG) from None
        raise
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        inner = [child for each in level for child in _children(each)]
        if any(type(child) is int and child.bit_length() > LONGEST_BITS for child in inner):
            raise ValueError(TOO_LONG)
        level, depth = [child for child in inner if isinstance(child, dict | list)], depth + 1
    return value


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, naming the file when it is damaged."""
    try:
        value = parse_json(read_text(path))
    except ValueError as error:
        raise StorageError(f"{path} is not valid JSON ({error}). Restore it or start a new run.") from error
    if not isinstance(value, dict):
        raise StorageError(f"{path} holds a JSON {type(value).__name__}, not an object. Restore it or start a new run.")
    return value


def _flush(path: Path) -> None:
    """Ask the system to put a file or a folder's entries on disk; Windows opens no folders."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
