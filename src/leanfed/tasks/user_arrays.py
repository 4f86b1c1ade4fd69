"""Registration of a user's own arrays: series, tables, token numbers, pictures already scaled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from leanfed.errors import DataError
from leanfed.tasks.arrays import Array, standard_scaling
from leanfed.tasks.datasets import DATASETS, DatasetSpec, MemorySource, Samples, Scaling
from leanfed.tasks.given import LARGEST, Given, checked
from leanfed.tasks.user_splits import every_fifth

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import Dataset

    ArrayLike = npt.ArrayLike | Tensor

Normalise = Literal["none", "standard"] | tuple[Any, Any]


def add_arrays(
    name: str,
    X: ArrayLike | Dataset[Any],
    y: ArrayLike | None = None,
    *,
    client: ArrayLike | Sequence[object] | None = None,
    test: ArrayLike | Sequence[Any] | Dataset[Any] | None = None,
    normalise: Normalise = "none",
    classes: int | None = None,
) -> DatasetSpec:
    """Register arrays of any shape and type as a data set; the first axis counts the samples.

    `X` and `y` are NumPy arrays or tensors, or `X` is a `torch.utils.data.Dataset` of (sample, label) pairs. Labels
    with a fraction (float) are numbers to predict; whole numbers and words are classes, in sorted order, or with
    `classes` the numbers from 0 to classes - 1. Labels (n, places) are one class for each place, for models with
    outputs (n, classes, places).

    `client` names the user of each sample, for `task.partition.kind = "column"`. `test` is the test set, (X, y) or
    (X, y, client), or a mask of the rows that are for testing; without it every fifth sample of each user, else of
    each class, is for testing.

    `normalise` is "none" (as given), "standard" (mean 0 and deviation 1 of each channel, the first axis of a sample,
    over all training samples), or (mean, deviation), such as (0, 255) for pixels.

    >>> spec = add_arrays("steps", np.zeros((10, 6, 50)), np.arange(10) % 2, client=list("aaaaabbbbb"))
    >>> spec.shape, spec.classes, spec.users, dict(spec.rows)
    ((6, 50), 2, ('a', 'b'), {'train': 8, 'test': 2})
    >>> DATASETS.remove("steps")
    """
    whole = _given(X, y, client, f"{name!r}")
    parts = _parts(test, len(whole.labels))
    if parts is None:
        splits = divided(whole, None if test is None else _array(test, "test"))
    else:
        splits = {"train": whole, "test": _given(*parts, f"the test set of {name!r}")}
    return register(name, splits, normalise=normalise, classes=classes)


def divided(whole: Given, held: Array | None = None) -> dict[str, Given]:
    """Samples for training and for testing, by a mask of those for testing or, without one, as `add_arrays` says."""
    mask = _held(whole) if held is None else held
    return {"train": whole[np.flatnonzero(~mask)], "test": whole[np.flatnonzero(mask)]}


def register(
    name: str,
    splits: Mapping[str, Given],
    *,
    normalise: Normalise = "none",
    classes: int | None = None,
    columns: Sequence[str] = ("X",),
) -> DatasetSpec:
    """Check both splits, and make a data set of them."""
    shape = splits["train"].inputs.shape[1:]
    for split, given in splits.items():
        if not len(given.labels):
            left = "training" if split == "train" else "testing"
            raise DataError(f"{name!r} has no sample for {left}. Give more samples, or say in `test` which are for it.")
        if given.inputs.shape[1:] != shape:
            raise DataError(
                f"The test samples of {name!r} have the shape {given.inputs.shape[1:]}, those for training {shape}. "
                "Give both the same shape."
            )
    labels, count, targets = _labels({split: given.labels for split, given in splits.items()}, classes, name)
    users, names = _users({split: given.users for split, given in splits.items()}, name)
    samples = {split: Samples(given.inputs, labels[split], None, users[split]) for split, given in splits.items()}
    spec = DatasetSpec(
        MemorySource(samples),
        tuple(columns),
        count,
        {split: len(part) for split, part in samples.items()},
        shape=tuple(shape),
        arrays=True,
        scaling=_scaling(normalise, splits["train"].inputs),
        targets=targets,
        users=names,
    )
    return DATASETS.add(name, spec)


def _is_dataset(value: object) -> bool:
    return (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and type(value).__module__ != "numpy"
        and not (hasattr(value, "shape") or isinstance(value, (list, tuple, np.ndarray)))
    )


def _parts(test: object, rows: int) -> tuple[object, object, object] | None:
    """(X, y, client) of a test set; None where nothing is given, or a mask that says row by row what is for testing."""
    if test is None:
        return None
    if _is_dataset(test):
        return test, None, None
    if isinstance(test, list | tuple) and len(test) in (2, 3) and all(np.ndim(part) for part in test[:2]):
        features, labels, *users = test
        return features, labels, users[0] if users else None
    found = np.zeros(()) if isinstance(test, tuple) else _array(test, "test")
    if found.dtype == bool and found.shape == (rows,):
        return None
    given = f"a tuple of {len(test)}" if isinstance(test, tuple) else f"of shape {found.shape} and type {found.dtype}"
    raise DataError(f"`test` is {given}. Give (X, y) or (X, y, client), or a mask of {rows} booleans.")


def _array(value: object, what: str) -> Array:
    """A NumPy array of what a user gave; a tensor is brought to the CPU."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(
            f"{what} is no array: its rows differ in length. Pad them, or cut them to one length."
        ) from error


def _given(X: object, y: object, client: object, what: str) -> Given:
    """One split as arrays of one length."""
    if y is None:
        if not _is_dataset(X):
            raise DataError(f"{what} has no labels. Give y, or a torch Dataset of (sample, label) pairs as X.")
        pairs = [X[row] for row in range(len(X))]  # type: ignore[index,arg-type]
        if any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs):
            raise DataError(f"{what} is a Dataset whose items are no pairs. Let it give (sample, label).")
        X, y = ([_array(pair[place], what) for pair in pairs] for place in (0, 1))
    inputs, labels = _array(X, f"X of {what}"), _array(y, f"y of {what}")
    users = None if client is None else _array(client, f"client of {what}")
    lengths = {"X": inputs, "y": labels, **({} if users is None else {"client": users})}
    counts = {part: len(values) if values.ndim else 0 for part, values in lengths.items()}
    if len(set(counts.values())) > 1 or not counts["X"]:
        told = ", ".join(f"{part} {count}" for part, count in counts.items())
        raise DataError(f"{what} must have as many labels as samples, and at least one, but has {told}. Check them.")
    return checked(inputs, labels, users, what)


def _labels(given: Mapping[str, Array], classes: int | None, name: str) -> tuple[dict[str, Array], int, int]:
    """Labels by split as class numbers or float32, the number of classes (0: numbers), and how many numbers."""
    every = list(given.values())
    numbers = any(labels.dtype.kind == "f" for labels in every)
    for labels in every:
        if labels.dtype.kind == "f" and (np.abs(labels) > LARGEST).any():
            raise DataError(
                f"y of {name!r} has {int((np.abs(labels) > LARGEST).sum())} labels that are infinite or that float32 "
                "cannot hold. Scale them, or drop these samples."
            )
        if labels.dtype.kind not in "biufUS":
            raise DataError(
                f"y of {name!r} is of the type {labels.dtype}. Give whole numbers or words, or floats to predict."
            )
    if numbers and classes is None:
        targets = int(np.prod(every[0].shape[1:]))
        return {split: labels.astype(np.float32) for split, labels in given.items()}, 0, targets
    if classes is not None:
        return {split: _in_range(labels, classes, name) for split, labels in given.items()}, classes, 0
    known = _in_order(every, f"y of {name!r}")
    if len(known) < 2:
        raise DataError(
            f"y of {name!r} holds one class only, {known}. Give at least two, or numbers to predict as floats."
        )
    places = np.array(known)
    return {split: np.searchsorted(places, labels).astype(np.int64) for split, labels in given.items()}, len(known), 0


def _in_range(labels: Array, classes: int, name: str) -> Array:
    """Labels that must be whole numbers from 0 to classes - 1."""
    if not isinstance(classes, int | np.integer) or classes < 2:
        raise DataError(f"classes is {classes!r}, but must be a whole number from 2 on. Leave it out to count them.")
    try:
        whole = labels.astype(np.int64)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"y of {name!r} holds words, but classes = {classes} is for numbers. Leave `classes` out."
        ) from error
    wrong = (whole != labels) | (whole < 0) | (whole >= classes)
    if wrong.any():
        raise DataError(
            f"y of {name!r} must hold whole numbers from 0 to {classes - 1} (classes = {classes}), but holds "
            f"{labels[wrong].reshape(-1)[0]}. Raise `classes`, or leave it out to number the labels as they are."
        )
    return whole


def _in_order(given: Iterable[Array], what: str) -> list[Any]:
    """All values that occur, sorted; words in one split and numbers in the other are refused."""
    try:
        return sorted({value for values in given for value in np.unique(values).tolist()})
    except TypeError as error:
        raise DataError(
            f"{what} holds words in one of the training and test sets and numbers in the other. Give both alike."
        ) from error


def _users(
    given: Mapping[str, Array | None], name: str
) -> tuple[dict[str, npt.NDArray[np.int64] | None], tuple[str, ...]]:
    """The user of each sample by split, as places in the sorted names."""
    found = {split: users for split, users in given.items() if users is not None}
    if not found:
        return dict.fromkeys(given), ()
    if missing := [split for split in given if split not in found]:
        raise DataError(
            f"{name!r} names the users of some samples, but not of the {missing[0]} set. Give test=(X, y, client)."
        )
    known = _in_order(found.values(), f"client of {name!r}")
    places = np.array(known)
    numbers = {split: np.searchsorted(places, users).astype(np.int64) for split, users in found.items()}
    return {split: numbers[split] for split in given}, tuple(str(value) for value in known)


def _held(given: Given) -> npt.NDArray[np.bool_]:
    """Every fifth sample of each user for testing, and at least one; without users, of each class or of all."""
    count = len(given.labels)
    if given.users is not None:
        return every_fifth(given.users, at_least_one=True)
    classes = given.labels.ndim == 1 and given.labels.dtype.kind != "f"
    return every_fifth(given.labels if classes else np.zeros(count, dtype=np.int64))


def _scaling(normalise: Normalise, inputs: Array) -> Scaling | None:
    """What inputs are scaled by."""
    if isinstance(normalise, str):
        if normalise not in ("none", "standard"):
            raise DataError(
                f"normalise is {normalise!r}, but must be 'none', 'standard' or (mean, deviation). Choose one."
            )
        return standard_scaling(inputs) if normalise == "standard" else None
    channels = inputs.shape[1]
    try:
        mean, deviation = (np.atleast_1d(np.asarray(part, dtype=np.float32)) for part in normalise)
        fits = all(part.shape in ((1,), (channels,)) and np.isfinite(part).all() for part in (mean, deviation))
    except (TypeError, ValueError):
        fits = False
    if not fits or not (deviation > 0).all():
        raise DataError(
            f"normalise = {normalise!r} must be (mean, deviation) with one number or {channels} each, and deviations "
            "above zero. Correct it."
        )
    return Scaling(mean, deviation)
