"""Read run folders of any version, even damaged ones: flaws are listed, and the rest is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from leanfed.errors import LeanfedError
from leanfed.files import read_json
from leanfed.quantities import SCHEMA, guess_of, main_score
from leanfed.records import Floats
from leanfed.results import TABLES, RunFolder, read_parquet

T = TypeVar("T")
WITHHELD = "The run's settings keep this back (privacy.metrics)."


class Lacking(LeanfedError):
    """A run folder does not hold what a figure needs; the message names the file and the field."""


@dataclass(frozen=True)
class Flaw:
    """A part of a run folder that is missing or damaged."""

    file: str
    field: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The flaw as plain JSON values."""
        return {"file": self.file, "field": self.field, "message": self.message}


@dataclass(frozen=True)
class RunFiles:
    """Everything that could be read from one run folder."""

    folder: RunFolder
    settings: dict[str, Any]
    world: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    tables: dict[str, pl.DataFrame]  # every one of `TABLES`, empty if it is missing
    fleet: pl.DataFrame
    events: list[dict[str, Any]]
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @property
    def name(self) -> str:
        """The run's name in the settings, else the folder's name."""
        return str(self.settings.get("name") or self.path.name)

    @property
    def seed(self) -> int | None:
        """The seed, if it is known."""
        seed = self.settings.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def real(self) -> bool:
        """Whether it ran on real devices, recognised by measured seconds."""
        return "elapsed_s" in self.tables["rounds"].columns

    @property
    def rounds_done(self) -> int:
        """Number of rows in the rounds table."""
        return self.tables["rounds"].height

    @property
    def clients(self) -> int:
        """N, from the settings or from the rows."""
        wanted = self.setting("task.partition.clients", None)
        if isinstance(wanted, int) and wanted > 0:
            return wanted
        table = self.tables["clients"]
        return int(self.column("clients", "client").max()) + 1 if table.height else 0

    @property
    def withholds(self) -> bool:
        """Whether losses, scores and label counts are left out, or noised, by the run's own settings."""
        return bool(self.setting("privacy.metrics", "shown") != "shown")

    @property
    def main(self) -> str:
        """The score that the run is judged by; a run without accuracies has a guess by another score."""
        columns = set(self.tables["rounds"].columns)
        return main_score(columns - {"accuracy"}) if guess_of("loss") in columns else "accuracy"

    @cached_property
    def plans(self) -> list[dict[str, Any]]:
        """The plan events, one per round; if a resumed run planned a round again, the later one."""
        found = {event["round"]: event for event in self.events if event.get("event") == "plan" and "round" in event}
        return [found[number] for number in sorted(found)]

    def setting(self, key: str, *default: Any) -> Any:
        """A setting by its full key; without a default, a missing setting raises an error that names it."""
        value: Any = self.settings
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                if default:
                    return default[0]
                raise Lacking(f"{self.folder.settings} has no field {key!r}")
            value = value[part]
        return value

    def world_field(self, name: str) -> Any:
        """A field of world.json."""
        if name not in self.world:
            if self.withholds:
                raise Lacking(WITHHELD)
            if self.real:
                raise Lacking("The devices of a real fleet keep this to themselves; the run folder does not hold it.")
            reason = f"has no field {name!r}" if self.world else "is not there or not readable"
            raise Lacking(f"{self.folder.world} {reason}; runs of older versions did not write it")
        return self.world[name]

    def column(self, table: str, name: str) -> Floats:
        """A column of one of the tables as numbers; empty values are NaN."""
        frame = self.fleet if table == "fleet" else self.tables[table]
        path = self.folder.fleet if table == "fleet" else self.folder.table(table)
        if not frame.width:
            raise Lacking(f"{path} is not there or not readable")
        if name not in frame.columns:
            since = f" (written since leanfed {SCHEMA[name].since})" if name in SCHEMA else ""
            raise Lacking(f"{path} has no column {name!r}{since}; its columns are {', '.join(frame.columns)}")
        values = frame[name]
        if not (values.dtype.is_numeric() or values.dtype == pl.Null):
            raise Lacking(f"{path} column {name!r} holds {values.dtype}, not numbers")
        return np.asarray(values.cast(pl.Float64).to_numpy(), dtype=float)

    def has(self, table: str, name: str) -> bool:
        """Whether a column exists and has at least one number."""
        try:
            return bool(np.isfinite(self.column(table, name)).any())
        except Lacking:
            return False

    def whole(self, table: str, name: str) -> bool:
        """Whether a column has a number in every row; a run started by an older version may lack the first ones."""
        return self.has(table, name) and bool(np.isfinite(self.column(table, name)).all())


def read_run(folder: RunFolder) -> RunFiles:
    """Read one run folder; whatever is wrong with it becomes a flaw, not an error."""
    flaws: list[Flaw] = []
    old = "not there: an older leanfed did not write it, or it was removed"
    settings: dict[str, Any] = _read(flaws, folder.settings, lambda: read_json(folder.settings), {})
    tables = {name: _table(flaws, folder, name) for name in TABLES}
    known = None if "elapsed_s" in tables["rounds"].columns else old  # real devices report no labels or positions
    return RunFiles(
        folder=folder,
        settings=settings,
        world=_if_there(flaws, folder.world, read_json, {}, known),
        environment=_if_there(flaws, folder.environment, read_json, {}, old),
        summary=_if_there(flaws, folder.summary, read_json, {}),
        tables=tables,
        fleet=_if_there(flaws, folder.fleet, read_parquet, pl.DataFrame(), known),
        events=_read(flaws, folder.events, lambda: [e for e in folder.read_events() if isinstance(e, dict)], []),
        flaws=flaws,
    )


def _table(flaws: list[Flaw], folder: RunFolder, name: str) -> pl.DataFrame:
    """One table, from its file or, during the run, from the checkpoint."""
    if name == "evaluations" and folder.finished and not folder.table(name).is_file():
        flaws.append(Flaw(str(folder.table(name)), "", "not there: an older leanfed did not write it"))
        return pl.DataFrame()
    found = _read(flaws, folder.table(name), lambda: folder.read_table(name), pl.DataFrame())
    return found.sort("round", maintain_order=True) if "round" in found.columns else found


def _if_there(flaws: list[Flaw], path: Path, read: Callable[[Path], T], otherwise: T, missing: str | None = None) -> T:
    """Read a file that may be absent; its absence is a flaw if `missing` gives a reason."""
    if path.is_file():
        return _read(flaws, path, lambda: read(path), otherwise)
    if missing is not None:
        flaws.append(Flaw(str(path), "", missing))
    return otherwise


def _read(flaws: list[Flaw], path: Path, read: Callable[[], T], otherwise: T) -> T:
    """The result of `read`; if it fails, `otherwise`, and the error is added to the flaws."""
    try:
        return read()
    except LeanfedError as error:
        flaws.append(Flaw(str(path), "", str(error)))
    except Exception as error:  # libraries raise errors of any kind for damaged bytes
        flaws.append(Flaw(str(path), "", f"not readable: {type(error).__name__}: {error}"))
    return otherwise
