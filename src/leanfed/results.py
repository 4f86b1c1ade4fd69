"""The run folder: what it holds, and how to read it without any training code."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from leanfed.errors import BusyError, StorageError
from leanfed.files import (
    explained,
    is_partial_of,
    make_folder,
    parquet_table,
    read_json,
    remove,
    write_frame,
    write_json,
)
from leanfed.locks import folder_lock, lock_owner
from leanfed.manifest import BEFORE, MANIFEST, newest_manifest
from leanfed.manifest import FORMAT as CHECKPOINT_FORMAT
from leanfed.quantities import SCHEMA

if TYPE_CHECKING:
    import polars as pl

TABLES = ("rounds", "clients", "evaluations")
FORMAT = 1  # of the run folder
BEFORE_SETTINGS = frozenset(
    {
        *(".lock", "checkpoint", "settings.toml", "environment.json", "world.json", "fleet.parquet", "fleet.json"),
        "cuts.json",
    }
)  # what a folder can hold before its settings.json, by this version or an older one, simulated or of a fleet
WRITTEN = BEFORE_SETTINGS | {
    *("settings.json", "summary.json", "weights.safetensors", MANIFEST, BEFORE),
    *(f"{table}.parquet" for table in TABLES),
}  # files that are only ever written by the process that holds the folder
RESUMED_SINCE = "0.2.0"  # runs begun by this version or a later one go on here bit for bit


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. The folder is the API: reports and comparisons are made from it alone.

    settings.toml     the settings as given (when they came from a file)
    settings.json     the settings with every default filled in
    cuts.json         every cut of the model, and why the run has the one that it has (where the program chose it)
    environment.json  versions and machine
    events.jsonl      what happened when, one JSON object a line
    checkpoint/       what `leanfed resume` needs
    world.json        who learns what: sizes, labels of every client, where the settings come from
    fleet.parquet     the devices in every round, as `leanfed plan --fleet` reads them
    rounds.parquet, clients.parquet, evaluations.parquet
                      one row per round, per client and round, per client and evaluation, when the run has ended
    weights.safetensors, summary.json
    """

    path: Path
    quiet: bool = False  # whether another process of the same run writes its events

    @property
    def settings(self) -> Path:
        """The resolved settings."""
        return self.path / "settings.json"

    @property
    def given(self) -> Path:
        """The settings file as the user wrote it."""
        return self.path / "settings.toml"

    @property
    def cuts(self) -> Path:
        """Every cut of the model and the one that was chosen; there only if the program chose it."""
        return self.path / "cuts.json"

    @property
    def environment(self) -> Path:
        """Versions and machine."""
        return self.path / "environment.json"

    @property
    def world(self) -> Path:
        """Who learns what."""
        return self.path / "world.json"

    @property
    def fleet(self) -> Path:
        """The devices in every round."""
        return self.path / "fleet.parquet"

    @property
    def events(self) -> Path:
        """The log of what happened."""
        return self.path / "events.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The folder of the newest checkpoint."""
        return self.path / "checkpoint"

    @property
    def summary(self) -> Path:
        """The result in a few numbers; it exists only if the run has ended."""
        return self.path / "summary.json"

    @property
    def weights(self) -> Path:
        """The final weights of server and clients."""
        return self.path / "weights.safetensors"

    def table(self, name: str) -> Path:
        """The Parquet file of one of `TABLES`."""
        return self.path / f"{name}.parquet"

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.summary.is_file()

    @property
    def unborn(self) -> bool:
        """Whether it holds nothing but what a run writes before its settings: its making was cut short."""
        if not self.path.is_dir():
            return False
        found = {child.name for child in self.path.iterdir() if not is_partial_of(child, WRITTEN)}
        empty = not self.checkpoint.is_dir() or not any(self.checkpoint.iterdir())
        begun = ".lock" in found or found == {self.checkpoint.name}  # the first thing made, now or in older versions
        return begun and found <= BEFORE_SETTINGS and empty

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the folder for this process; what a killed writer left half-written is swept."""
        with folder_lock(self.path):
            for folder in (self.path, self.checkpoint):
                for left in folder.glob(".*.partial"):
                    if is_partial_of(left, WRITTEN):
                        remove(left)
            yield

    def read_settings(self) -> dict[str, Any]:
        """The resolved settings as plain values."""
        if self.unborn:
            raise StorageError(
                f"{self.path} holds no run: it was stopped before it had settings, and nothing is lost. "
                f"Begin again with `leanfed run CONFIG.toml --out {self.path}`."
            )
        if not self.settings.is_file():
            raise StorageError(
                f"{self.path} is not a run folder: it has no {self.settings.name}. Name a folder made by `leanfed run`."
            )
        return read_json(self.settings)

    def read_table(self, name: str) -> pl.DataFrame:
        """The rows of one of `TABLES` so far, whether the run has ended or not."""
        if self.table(name).is_file():
            return read_parquet(self.table(name))
        manifest = newest_manifest(self.checkpoint)
        if manifest is None:
            raise StorageError(f"{self.path} holds no {name} yet. Let the run finish a round, or resume it.")
        return read_rows([self.checkpoint / part for part in manifest["rows"]], name)

    def log(self, event: str, **fields: Any) -> None:
        """Append one event with the time of day."""
        if self.quiet:
            return
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}) + "\n"
        with explained(self.events), self.events.open("a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"  # a crash cut the last one short
            file.write(line.encode())

    def read_events(self) -> Iterator[dict[str, Any]]:
        """All events; a line cut short by a crash is skipped."""
        if not self.events.is_file():
            return
        for line in self.events.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def check_unused(path: Path) -> None:
    """Refuse a folder that holds a run already, or anything else but what the making of one left behind."""
    folder = RunFolder(path)
    if folder.settings.exists():
        state = "a finished run" if folder.finished else f"an unfinished run; go on with `leanfed resume {path}`"
        raise StorageError(f"{path} holds {state}. Choose another folder, or remove this one.")
    if path.is_dir() and any(child.name != ".lock" for child in path.iterdir()) and not folder.unborn:
        raise StorageError(f"{path} is not empty and not a run folder. Choose another folder.")


def check_free(path: Path) -> None:
    """Refuse a folder that another process holds, or that is not unused."""
    if owner := lock_owner(path):
        raise BusyError(f"{path} is in use by {owner}. Wait for it to end, stop it, or choose another folder.")
    check_unused(path)


def create_run_folder(path: Path) -> RunFolder:
    """A new run folder, or one whose making was cut short; one that is in use or holds a run is refused."""
    check_free(path)
    make_folder(path)
    return RunFolder(path)


@contextmanager
def new_run_folder(path: Path) -> Iterator[RunFolder]:
    """A new run folder, held by this process, without anything that an earlier making left in it."""
    folder = create_run_folder(path)
    with folder.hold():
        check_unused(path)  # another process may have been faster
        for name in BEFORE_SETTINGS - {".lock", folder.checkpoint.name}:
            remove(path / name)
        yield folder


def find_runs(paths: list[Path]) -> list[RunFolder]:
    """The run folders among the given paths and directly below them."""
    found = []
    for path in paths:
        if not path.is_dir():
            raise StorageError(f"{path} is not a folder. Name a run folder, or a folder of run folders.")
        inside = (
            [path]
            if RunFolder(path).settings.is_file()
            else sorted(p.parent for p in path.glob("*/settings.json") if p.is_file())  # a pipe would be waited for
        )
        if not inside:
            raise StorageError(f"{path} holds no run. Name a folder made by `leanfed run`.")
        found += [RunFolder(p) for p in inside]
    return found


def check_resumable(folder: RunFolder) -> None:
    """Refuse a run started by a newer leanfed, or an unfinished one whose rounds this version computes differently."""
    known = read_json(folder.environment) if folder.environment.is_file() else {}
    versions = known.get("versions") or {}
    if not isinstance(versions, dict):
        raise StorageError(
            f"{folder.environment} is damaged: versions is {versions!r}, not a table. Restore it from a copy; or "
            "remove it, if leanfed has not been updated since the run began."
        )
    written, ours = str(versions.get("leanfed", RESUMED_SINCE)), version("leanfed")
    newer = _format(folder.environment) > FORMAT or _format(folder.checkpoint / MANIFEST) > CHECKPOINT_FORMAT
    if newer or _release(written) > _release(ours):
        raise StorageError(
            f"{folder.path} was begun by leanfed {written}, and leanfed {ours} cannot go on with it bit for bit. "
            "Resume it with that version or a later one; `leanfed compare` and `leanfed report` may read it."
        )
    if _release(written) < _release(RESUMED_SINCE) and not folder.finished:
        raise StorageError(
            f"{folder.path} was begun by leanfed {written}, whose rounds leanfed {ours} computes otherwise. "
            f"Resume it with that version, or begin again: leanfed run {folder.settings} --out {folder.path}-again"
        )


def _format(path: Path) -> int:
    """The format that a file says it has; 0 where it says none, or nothing that can be read."""
    try:
        number = read_json(path).get("format", 0) if path.is_file() else 0
    except StorageError:
        return 0
    return number if isinstance(number, int) else 0


def _release(text: str) -> tuple[int, ...]:
    """The numbers of a version, which compare as versions do; "0.2.0.dev1" counts as 0.2.0."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(full key, value) of every value in nested settings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a Parquet file atomically."""
    write_frame(path, lambda partial: table.write_parquet(partial, statistics=False))


def write_summary(folder: RunFolder, summary: Mapping[str, Any]) -> None:
    """Write the summary, last of all files."""
    write_json(folder.summary, {"format": FORMAT, **summary})


def rows_to_arrays(tables: Mapping[str, pl.DataFrame]) -> dict[str, npt.NDArray[Any]]:
    """Columns of several tables as arrays named `table.number.column`; empty values become NaN."""
    import polars as pl

    return {
        f"{name}.{number:03d}.{column.name}": np.ascontiguousarray(column.to_numpy())
        for name, table in tables.items()
        for number, column in enumerate(table.with_columns(pl.col(pl.Float64).fill_null(float("nan"))))
    }


def read_rows(files: Sequence[Path], name: str) -> pl.DataFrame:
    """One table from files written with `rows_to_arrays`; NaN becomes empty again, files without the table are skipped.

    A column that only some of the files have, because an older version wrote the others, is empty in their rows.
    """
    found = ((file, columns) for file in files if (columns := _columns(file, name)))
    alike = groupby(found, lambda part: [(each, column.dtype) for each, column in part[1].items()])
    return joined(_table(list(parts)) for _, parts in alike)


def _columns(file: Path, name: str) -> dict[str, npt.NDArray[Any]]:
    """The columns that a file has of a table, all of one length."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        with explained(file, "read"):
            arrays = load_file(file)
        keys = sorted(key for key in arrays if key.startswith(f"{name}."))
        if len({arrays[key].shape for key in keys}) > 1 or any(arrays[key].ndim != 1 for key in keys):
            raise ValueError(f"the columns of {name} are no table")
        return {key.split(".", 2)[2]: arrays[key] for key in keys}
    except (SafetensorError, IndexError, TypeError, ValueError) as error:
        raise StorageError(f"{file} is damaged ({error}). Restore it or run again.") from error


def _table(parts: Sequence[tuple[Path, dict[str, npt.NDArray[Any]]]]) -> pl.DataFrame:
    """One table of files that have the same columns: to make one for each would take a tenth of a short run."""
    import polars as pl

    try:
        whole = {each: np.concatenate([columns[each] for _, columns in parts]) for each in parts[0][1]}
        return typed(pl.DataFrame(whole).fill_nan(None))
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        if len(parts) > 1:  # so that the right one is named
            return joined(_table([part]) for part in parts)
        raise StorageError(f"{parts[0][0]} is damaged ({error}). Restore it or run again.") from error


def joined(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Concatenated tables; columns that a table lacks are empty in its rows."""
    import polars as pl

    filled = [part for part in parts if part.width]
    return pl.concat(filled, how="diagonal_relaxed") if filled else pl.DataFrame()


def typed(table: pl.DataFrame) -> pl.DataFrame:
    """The table with the schema's column types; columns that the schema does not know are not changed."""
    import polars as pl

    types = {int: pl.Int64(), float: pl.Float64()}
    return table.cast({name: types[SCHEMA[name].type] for name in table.columns if name in SCHEMA})


def read_parquet(path: Path) -> pl.DataFrame:
    """Read a Parquet file; the error for a damaged one names it."""
    import polars as pl

    try:
        return parquet_table(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise StorageError(f"{path} is not a readable Parquet file ({error}). Restore it or run again.") from error
