"""What runs measure, as Prometheus reads it: one gauge for each column of the rounds, and how far every run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from leanfed.errors import InputError, LeanfedError
from leanfed.quantities import SCHEMA
from leanfed.report.live.board import Board
from leanfed.report.live.progress import data_version
from leanfed.results import RunFolder

PREFIX = "leanfed_round_"
STANDING: Final[Mapping[str, tuple[str, Callable[[dict[str, Any]], float | None]]]] = {
    "leanfed_run_going_on": ("1 while a process carries the run out", lambda row: float(row["state"] == "running")),
    "leanfed_run_readable": ("0 if the run's folder is damaged", lambda row: float(row["state"] != "unreadable")),
    "leanfed_run_rounds_done": ("rounds that have ended", lambda row: float(row["round"])),
    "leanfed_run_rounds": ("rounds of the whole run", lambda row: float(row["rounds"])),
    "leanfed_run_seconds_per_round": (
        "median of the last rounds' wall-clock time",
        lambda row: row["seconds_per_round"],
    ),
}
"""Gauge -> what it says, and its value from a row of the board; none where that is None."""


class Metrics:
    """The gauges of all runs of a board; a run's rows are read again only when they have changed."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._last: dict[str, tuple[str, dict[str, float]]] = {}  # run -> (version, column -> last value)

    def text(self) -> bytes:
        """All gauges in Prometheus' text format."""
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError:
            raise InputError("/metrics needs prometheus-client. Install it: pip install 'leanfed[watch]'.") from None
        registry: Any = CollectorRegistry()
        registry.register(self)  # a collector is whatever has `collect`
        return generate_latest(registry)

    def collect(self) -> Iterator[Any]:
        """A family of gauges for each quantity, labelled by run."""
        from prometheus_client.core import GaugeMetricFamily

        folders = self._board.folders()
        rows = {name: self._board.row(name, folder) for name, folder in folders.items()}
        for gauge, (said, value_of) in STANDING.items():
            family = GaugeMetricFamily(gauge, said, labels=["run"])
            for name, row in rows.items():
                if (value := value_of(row)) is not None:
                    family.add_metric([name], value)
            yield family
        columns = {name: self._columns(name, folder) for name, folder in folders.items()}
        self._last = {name: self._last[name] for name in folders}  # not of runs that are gone
        for column in sorted({column for known in columns.values() for column in known}):
            said = f"{SCHEMA[column].label} [{SCHEMA[column].unit}] of the last round that has it"
            family = GaugeMetricFamily(PREFIX + column, said, labels=["run"])
            for name, known in columns.items():
                if column in known:
                    family.add_metric([name], known[column])
            yield family

    def _columns(self, name: str, folder: RunFolder) -> dict[str, float]:
        """The last known value of every column of a run's rounds; nothing of a run without rounds."""
        version = data_version(folder)
        if self._last.get(name, ("",))[0] != version:
            self._last[name] = (version, _last_values(folder))
        return self._last[name][1]


def _last_values(folder: RunFolder) -> dict[str, float]:
    try:
        rounds = folder.read_table("rounds")
    except LeanfedError:
        return {}
    known = (name for name in rounds.columns if name in SCHEMA)
    lasts = {name: rounds[name].drop_nulls() for name in known}
    return {name: float(values[-1]) for name, values in lasts.items() if len(values)}
