"""What a user gave for one split, and what is refused of it: each in words, with the row as it was given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leanfed.errors import DataError
from leanfed.tasks.arrays import Array

LARGEST = float(np.finfo(np.float32).max)  # models compute in float32
LARGEST_WHOLE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Given:
    """Samples, labels and users as arrays of one length."""

    inputs: Array
    labels: Array
    users: Array | None

    def __getitem__(self, rows: Array) -> Given:
        return Given(self.inputs[rows], self.labels[rows], None if self.users is None else self.users[rows])


def checked(inputs: Array, labels: Array, users: Array | None, what: str) -> Given:
    """One split; refused where no model could compute with it or nobody could tell labels or users apart."""
    if not len(inputs):
        raise DataError(f"{what} has no samples. Give at least one for training and one for testing.")
    _check_inputs(inputs, what)
    labels = _comparable(labels, f"y of {what}")
    if users is not None:
        users = _comparable(users, f"client of {what}")
        if users.ndim != 1:
            raise DataError(f"client of {what} has the shape {users.shape}. Give one name or number for each sample.")
    return Given(inputs, labels, users)


def _check_inputs(inputs: Array, what: str) -> None:
    kind = inputs.dtype.kind
    if kind not in "biuf":
        raise DataError(
            f"X of {what} is of the type {inputs.dtype}. Give numbers in rows of one length (X.astype(float) if they "
            "are numbers already); words first become token numbers."
        )
    if inputs.ndim < 2:
        raise DataError(
            f"X of {what} has the shape {inputs.shape}. Give (samples, ...): X.reshape(-1, 1) for one number each."
        )
    if not inputs.size:
        raise DataError(f"X of {what} has the shape {inputs.shape}: samples without a value. Give each at least one.")
    if kind == "f":
        _refuse(~np.isfinite(inputs), f"X of {what} has NaN or infinity", "Fill the gaps")
        if inputs.dtype.itemsize > 4:
            _refuse(np.abs(inputs) > LARGEST, f"X of {what} has values that float32 cannot hold", "Scale them")
    if kind == "u" and inputs.dtype.itemsize > 4:
        _refuse(inputs > LARGEST_WHOLE, f"X of {what} has values that int64 cannot hold", "Scale them")


def _refuse(wrong: Array, why: str, fix: str) -> None:
    """Refuse samples (n, ...) of which some are wrong."""
    rows = wrong.reshape(len(wrong), -1).any(axis=1)
    if rows.any():
        raise DataError(
            f"{why} in {int(rows.sum())} of {len(wrong)} samples, first in row {int(rows.argmax())}. {fix}, or leave "
            "these samples out."
        )


def _comparable(values: Array, what: str) -> Array:
    """Labels or users as words or as numbers; gaps, and words among numbers, are refused.

    Floats are left as they are but for NaN, which is nobody's name and no label.
    """
    if values.dtype.kind == "f":
        _refuse(np.isnan(values), f"{what} has NaN", "Fill the gaps")
    if values.dtype.kind != "O":
        return values
    flat = values.reshape(-1).tolist()
    gaps = np.array([value is None or (isinstance(value, float) and value != value) for value in flat])
    _refuse(gaps.reshape(values.shape), f"{what} has None or NaN", "Fill the gaps")
    kinds = {_kind(value) for value in flat}
    if kinds == {"words"}:
        return values.astype(str)
    numbers = np.array(flat) if kinds == {"numbers"} else values
    if numbers.dtype.kind == "O":
        raise DataError(f"{what} mixes or holds {', '.join(sorted(kinds))}. Give words only, or numbers only.")
    return numbers.reshape(values.shape)


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "words"
    return "numbers" if isinstance(value, int | float | np.number | np.bool_) else type(value).__name__
