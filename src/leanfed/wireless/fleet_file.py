"""A real fleet's measurements: CSV or Parquet, one row per device (and per round, for a trace over time)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from leanfed.errors import DataError
from leanfed.files import check_file, explained, parquet_table, read_text, write_frame
from leanfed.wireless.fleet import Fleet, FleetSettings, FleetState, bandwidth_in_round, path_gain
from leanfed.wireless.fleet_columns import COLUMNS, check_values, choose_columns
from leanfed.wireless.units import Array, dbm_to_w

if TYPE_CHECKING:
    import polars as pl


@final
@dataclass(frozen=True, eq=False)
class MeasuredFleet(Fleet):
    """Devices read from a file; a measurement holds from its round until the next one, the last to the end."""

    settings: FleetSettings  # noise, and what the file does not give
    seed: int
    names: tuple[str, ...]
    rounds: tuple[int, ...]  # ascending
    measured: Mapping[str, Array]  # quantity -> (rounds, devices), SI

    @property
    @override
    def devices(self) -> int:
        return len(self.names)

    @override
    def state(self, number: int) -> FleetState:
        at = max(bisect_right(self.rounds, number) - 1, 0)
        zeta = self.measured.get("energy_coefficient")
        band = self.measured.get("bandwidth")
        drawn = bandwidth_in_round(self.settings, self.seed, number) if band is None else band[at, 0]
        return FleetState(
            gain=self.measured["gain"][at],
            power_w=self.measured["power"][at],
            cpu_hz=self.measured["cpu"][at],
            energy_coefficient=np.full(self.devices, self.settings.energy_coefficient) if zeta is None else zeta[at],
            bandwidth_hz=np.asarray(drawn),
            noise_w_per_hz=float(dbm_to_w(self.settings.noise_dbm_per_hz)),
        )


def read_fleet(path: Path, settings: FleetSettings, *, clients: int | None = None, seed: int = 0) -> MeasuredFleet:
    """Read a fleet; every value is checked before anything is returned.

    Columns: `device`; `gain`, `gain_db` or `distance_m`; `power_w` or `power_dbm`; `cpu_hz` or `cpu_ghz`; and
    where measured `round`, `energy_coefficient`, `bandwidth_hz` or `bandwidth_mhz`. With more devices than
    `clients`, the first ones are taken.
    """
    return _checked_fleet(path, _read_table(path), settings, clients, seed)


def read_fleet_text(
    name: str, text: str, settings: FleetSettings, *, clients: int | None = None, seed: int = 0
) -> MeasuredFleet:
    """A fleet from the text of a CSV file, checked as `read_fleet` does; `name` is what refusals call it."""
    path = Path(name)
    if _kind(path) != ".csv":
        raise DataError(f"{path} is not a text file. Give the fleet as CSV.")
    return _checked_fleet(path, _parsed(path, text), settings, clients, seed)


def _checked_fleet(
    path: Path, table: pl.DataFrame, settings: FleetSettings, clients: int | None, seed: int
) -> MeasuredFleet:
    """The devices of a table whose every value makes sense."""
    chosen = choose_columns(path, table.columns)
    values = {quantity: _si_values(path, table, name, settings) for quantity, name in chosen.items()}
    names = _texts(path, table, "device")
    numbers = _round_numbers(path, table)
    devices, rounds = tuple(dict.fromkeys(names)), tuple(sorted(set(numbers)))
    if len(devices) < (clients or 1):
        raise DataError(
            f"{path} holds {len(devices)} devices for {clients or 1} clients. Add devices or ask for fewer."
        )
    cells = _cells(path, names, numbers, devices, rounds)
    measured = {quantity: column[cells][:, :clients] for quantity, column in values.items()}
    if "bandwidth" in measured:
        _refuse_uneven_bandwidth(path, chosen["bandwidth"], measured["bandwidth"], rounds)
    return MeasuredFleet(settings, seed, devices[:clients], rounds, measured)


def write_fleet(path: Path, states: Sequence[FleetState], numbers: Sequence[int] | None = None) -> None:
    """Write the states of the rounds `numbers` (0, 1, ...) as a trace that `read_fleet` reads back the same."""
    import polars as pl

    rounds = range(len(states)) if numbers is None else numbers
    table = pl.concat([_state_table(number, state) for number, state in zip(rounds, states, strict=True)])
    csv = _kind(path) == ".csv"
    write_frame(path, lambda partial: table.write_csv(partial) if csv else table.write_parquet(partial))


def _state_table(number: int, state: FleetState) -> pl.DataFrame:
    import polars as pl

    devices = len(state.gain)
    columns = {
        "round": np.full(devices, number),
        "device": np.arange(devices),
        "gain": state.gain,
        "power_w": state.power_w,
        "cpu_hz": state.cpu_hz,
        "energy_coefficient": state.energy_coefficient,
        "bandwidth_hz": np.full(devices, state.bandwidth_hz),
    }
    return pl.DataFrame(columns)


def _kind(path: Path) -> str:
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"{path} ends in {path.suffix!r}; a fleet file is .csv or .parquet. Rename or convert it.")
    return path.suffix


def _read_table(path: Path) -> pl.DataFrame:
    """The file as text (CSV) or as typed columns (Parquet); numbers are parsed where row and field can be named."""
    if _kind(path) == ".csv":
        return _parsed(path, read_text(path))
    check_file(path)
    with explained(path, "read"):
        return _parsed(path)


def _parsed(path: Path, text: str | None = None) -> pl.DataFrame:
    """The table of a Parquet file, or of a CSV file's text."""
    import polars as pl

    try:
        return parquet_table(path) if text is None else pl.read_csv(BytesIO(text.encode()), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path} is not a readable table ({error}). Export it again as CSV or Parquet.") from error


def _si_values(path: Path, table: pl.DataFrame, name: str, settings: FleetSettings) -> Array:
    """One column as checked numbers in SI units."""
    values = _numbers(path, table, name)
    check_values(path, name, values)
    with np.errstate(over="ignore", divide="ignore"):
        found = path_gain(settings, values) if name == "distance_m" else COLUMNS[name].to_si(values)
    if not np.isfinite(found).all():
        row, quantity = int(np.flatnonzero(~np.isfinite(found))[0]), COLUMNS[name].quantity
        raise DataError(
            f"{path} row {row + 1}: {name} is {values[row]}, an infinite {quantity}. Correct or drop the row."
        )
    return found


def _numbers(path: Path, table: pl.DataFrame, name: str) -> Array:
    import polars as pl

    if not table[name].dtype.is_numeric() and table[name].dtype not in (pl.String, pl.Null):
        raise DataError(f"{path} column {name} holds values of type {table[name].dtype}, not numbers. Export it again.")
    parsed = table[name].cast(pl.Float64, strict=False)
    if parsed.null_count():
        row = int(parsed.is_null().arg_max() or 0)
        given = "empty" if table[name][row] is None else f"{table[name][row]!r}, not a number"
        raise DataError(f"{path} row {row + 1}: {name} is {given}. Fill it in or drop the row.")
    return parsed.to_numpy()


def _texts(path: Path, table: pl.DataFrame, name: str) -> list[str]:
    import polars as pl

    if table[name].dtype.is_nested() or table[name].dtype == pl.Binary:
        raise DataError(f"{path} column {name} holds values of type {table[name].dtype}, not names. Export it again.")
    column = table[name].cast(pl.String)
    if column.null_count():
        raise DataError(f"{path} row {int(column.is_null().arg_max() or 0) + 1}: {name} is empty. Name every device.")
    return column.to_list()


def _round_numbers(path: Path, table: pl.DataFrame) -> list[int]:
    """The round of each row; all zero without a `round` column."""
    if "round" not in table.columns:
        return [0] * table.height
    values = _numbers(path, table, "round")
    wrong = np.flatnonzero(~((values >= 0) & (values == np.floor(values)) & np.isfinite(values)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(f"{path} row {row + 1}: round is {values[row]}, but must be 0, 1, 2, ... Correct the row.")
    return [int(value) for value in values]


def _cells(
    path: Path, names: list[str], numbers: list[int], devices: tuple[str, ...], rounds: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """Row of each (round, device); every device must be measured exactly once in every round given."""
    row_of: dict[tuple[int, str], int] = {}
    for row, key in enumerate(zip(numbers, names, strict=True)):
        if key in row_of:
            first = row_of[key] + 1
            raise DataError(f"{path} row {row + 1}: device {key[1]!r} in round {key[0]} is also row {first}. Keep one.")
        row_of[key] = row
    # One at a time: a file with a new device in every row has as many gaps as the square of its rows.
    gaps = ((number, name) for number in rounds for name in devices if (number, name) not in row_of)
    if (gap := next(gaps, None)) is not None:
        number, name = gap
        raise DataError(f"{path} has no row for device {name!r} in round {number}. Add it, or drop that round.")
    return np.array([[row_of[number, name] for name in devices] for number in rounds], dtype=np.intp)


def _refuse_uneven_bandwidth(path: Path, name: str, band_hz: Array, rounds: tuple[int, ...]) -> None:
    uneven = np.flatnonzero((band_hz != band_hz[:, :1]).any(axis=1))
    if uneven.size:
        raise DataError(
            f"{path} column {name} differs between devices in round {rounds[uneven[0]]}, but the band is one for all. "
            "Give each round a single value."
        )
