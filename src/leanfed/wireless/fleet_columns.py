"""The columns a fleet file may have: their unit, what they become in SI, and which values make sense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from leanfed.errors import DataError, nearest
from leanfed.wireless.units import Array, db_to_ratio, dbm_to_w

Sign = Literal["any", "zero or more", "above zero"]


@dataclass(frozen=True)
class Column:
    """One way to give a quantity: its unit is in its name."""

    quantity: str
    sign: Sign
    to_si: Callable[[Array], Array] = lambda values: values


# A distance becomes a gain under the settings' path loss, which only the reader knows.
COLUMNS = {
    "gain": Column("gain", "zero or more"),
    "gain_db": Column("gain", "any", db_to_ratio),
    "distance_m": Column("gain", "above zero"),
    "power_w": Column("power", "zero or more"),
    "power_dbm": Column("power", "any", dbm_to_w),
    "cpu_hz": Column("cpu", "above zero"),
    "cpu_ghz": Column("cpu", "above zero", lambda values: values * 1e9),
    "energy_coefficient": Column("energy_coefficient", "zero or more"),
    "bandwidth_hz": Column("bandwidth", "above zero"),
    "bandwidth_mhz": Column("bandwidth", "above zero", lambda values: values * 1e6),
}
LABELS = ("round", "device")
REQUIRED = ("gain", "power", "cpu")


def columns_of(quantity: str) -> list[str]:
    """The names under which a quantity may be given."""
    return [name for name, column in COLUMNS.items() if column.quantity == quantity]


def choose_columns(path: Path, names: list[str]) -> dict[str, str]:
    """Which column gives each quantity; refuses unknown, doubled and missing ones."""
    chosen: dict[str, str] = {}
    for name in names:
        if name in LABELS:
            continue
        quantity = _known(path, name).quantity
        if quantity in chosen:
            raise DataError(
                f"{path} gives the {quantity} twice, as {chosen[quantity]!r} and {name!r}. Keep one of them."
            )
        chosen[quantity] = name
    _refuse_missing(path, names, chosen)
    return chosen


def check_values(path: Path, name: str, values: Array) -> None:
    """Refuse the first value that is not finite or has a sign its column cannot have, naming row and field."""
    sign = COLUMNS[name].sign
    wrong = ~np.isfinite(values)
    if sign != "any":
        wrong |= (values < 0.0) if sign == "zero or more" else (values <= 0.0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        allowed = "a finite number" if sign == "any" else f"a finite number, {sign}"
        raise DataError(
            f"{path} row {row + 1}: {name} is {values[row]}, but must be {allowed}. Correct or drop the row."
        )


def _known(path: Path, name: str) -> Column:
    """The column of that name; a known quantity in an unknown unit has its own message."""
    if name in COLUMNS:
        return COLUMNS[name]
    stem, _, unit = name.rpartition("_")
    if any(known.rpartition("_")[0] == stem for known in COLUMNS if stem):
        allowed = ", ".join(known for known in COLUMNS if known.startswith(stem))
        raise DataError(f"{path} column {name!r} has the unknown unit {unit!r}. Convert it to one of: {allowed}.")
    hint = nearest(name, [*LABELS, *COLUMNS])
    raise DataError(f"{path} has the unknown column {name!r}; {hint} Rename or remove it.")


def _refuse_missing(path: Path, names: list[str], chosen: dict[str, str]) -> None:
    if "device" not in names:
        raise DataError(f"{path} has no column 'device'; its columns are {names}. Add one that names each device.")
    for quantity in REQUIRED:
        if quantity not in chosen:
            options = " or ".join(repr(option) for option in columns_of(quantity))
            raise DataError(f"{path} has no column for the {quantity}; its columns are {names}. Add {options}.")
