"""A user's own arrays: shapes, types, users, labels, normalisation, and what is wrong with them in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import leanfed
from leanfed.errors import DataError, SettingsError
from leanfed.tasks.arrays import Rows
from leanfed.tasks.cache import load_samples
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.inventory import fetch_dataset, inventory
from leanfed.tasks.task import TaskSettings, build_task
from tests.registries import registered_for_now

X = np.arange(24, dtype=np.float64).reshape(12, 2)
Y = np.array([3, 5] * 6)
WHOSE = ["b"] * 5 + ["a"] * 7


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with registered_for_now():
        yield


def mlp(inputs: int) -> None:
    leanfed.add_model("mlp", lambda n: nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, n)), split="0")


def task_of(**more: Any) -> Any:
    partition = {"kind": "iid", "clients": 2, "min_samples": 1}
    return build_task(TaskSettings(**{"dataset": "mine", "model": "mlp", "partition": partition, **more}), 0)


def test_every_fifth_sample_of_each_user_is_for_testing_and_each_class_is_numbered() -> None:
    spec = leanfed.add_arrays("mine", X, Y, client=WHOSE)
    train, test = (load_samples("mine", split) for split in ("train", "test"))
    assert (spec.classes, spec.outputs, spec.shape, spec.users) == (2, 2, (2,), ("a", "b"))
    assert test.inputs[:, 0].tolist() == [8.0, 18.0]  # the fifth row of b, the fifth of a
    assert (test.users is not None, test.labels.tolist()) == (True, [0, 1])  # 3 -> 0, 5 -> 1
    assert len(train) + len(test) == 12
    assert [row["where"] for row in inventory(names=["mine"])] == ["in memory"] * 2
    with pytest.raises(DataError, match="in memory; there is nothing to fetch"):
        fetch_dataset("mine")


def test_a_client_for_each_user_with_the_users_own_samples() -> None:
    leanfed.add_arrays("mine", X, Y, client=WHOSE, test=(X[:3], Y[:3], ["a", "b", "b"]))
    mlp(2)
    task = task_of(partition={"kind": "column", "min_samples": 1})
    assert [rows.tolist() for rows in task.partition.train] == [[5, 6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4]]
    assert [rows.tolist() for rows in task.partition.test] == [[0], [1, 2]]
    assert task.gamma.tolist() == [7 / 12, 5 / 12]
    one = task_of(partition={"kind": "column", "min_samples": 1, "clients": 1})
    assert len(one.partition.train) == 1


def test_standard_scaling_is_by_channel_over_the_training_samples() -> None:
    series = np.stack([np.array([[0.0, 2.0], [10.0, 10.0]]), np.array([[4.0, 2.0], [10.0, 10.0]])])
    spec = leanfed.add_arrays("mine", series, [0, 1], test=(series, [0, 1]), normalise="standard")
    assert spec.scaling is not None
    assert spec.scaling.mean.tolist() == [2.0, 10.0]
    assert spec.scaling.deviation.tolist() == pytest.approx([2**0.5, 1.0])  # a constant is not divided
    drawn = Rows(series, np.array([0, 1]), spec.scaling).batch(np.array([1]))
    assert drawn.inputs[0].tolist() == [[pytest.approx(2**0.5), 0.0], [0.0, 0.0]]


def test_types_pixels_are_divided_tokens_stay_whole() -> None:
    pixels = torch.full((10, 1, 2, 2), 255, dtype=torch.uint8)
    spec = leanfed.add_arrays("pixels", pixels, torch.arange(10) % 2, normalise=(0, 255))
    assert Rows(pixels.numpy(), Y, spec.scaling).batch(np.arange(2)).inputs.unique().tolist() == [1.0]
    leanfed.add_arrays("tokens", np.ones((10, 7), dtype=np.int32), np.arange(10) % 2)
    tokens = load_samples("tokens", "train")
    assert Rows(tokens.inputs, tokens.labels).batch(np.arange(3)).inputs.dtype == torch.int64


def test_a_torch_dataset_and_a_mask() -> None:
    pairs = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10) % 2)
    assert dict(leanfed.add_arrays("pairs", pairs).rows) == {"train": 8, "test": 2}
    leanfed.add_arrays("mine", X, Y, test=np.arange(12) >= 10)
    assert load_samples("mine", "test").inputs[:, 0].tolist() == [20.0, 22.0]


def test_floats_are_numbers_to_predict_and_a_constant_is_judged_by_its_median() -> None:
    wanted = np.array([0.0, 0.0, 9.0, 4.0], dtype=np.float64)
    inputs = np.zeros((4, 2))
    leanfed.add_arrays("mine", inputs, wanted, client=[1, 1, 1, 1], test=(inputs[:2], wanted[2:], [1, 1]))
    mlp(2)
    task = task_of(partition={"kind": "column", "min_samples": 1})
    assert (task.classes, task.outputs, task.loss.judged_by) == (0, 1, "mae")
    assert task.constant_guess([0]).tolist() == [4.5]  # median of 0, 0, 4, 9 is 2: |9 - 2|, |4 - 2|
    with pytest.raises(SettingsError, match=r"task.loss = 'cross_entropy' is for classes.*'mse'"):
        task_of(loss="cross_entropy", partition={"kind": "column", "min_samples": 1})


def test_quantity_skew_gives_everybody_the_minimum_and_loses_no_sample() -> None:
    leanfed.add_arrays("mine", np.zeros((500, 2)), np.arange(500) % 2)
    mlp(2)
    sizes = task_of(partition={"kind": "quantity", "alpha": 0.2, "clients": 8, "min_samples": 5}).partition.sizes
    assert (sizes.sum(), sizes.min() >= 5) == (400, True)
    assert sizes.max() > 3 * np.median(sizes)  # skewed


def test_parquet_with_numbers_and_lists_from_settings_alone(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "x": [[float(row), 1.0, 2.0] for row in range(12)],
            "y": pl.Series([[0.0, float(row), 1.0] for row in range(12)], dtype=pl.Array(pl.Float32, 3)),
            "age": [20.5 + row for row in range(12)],
            "activity": ["walk", "sit"] * 6,
            "user": ["u1"] * 6 + ["u2"] * 6,
        }
    )
    table.write_parquet(tmp_path / "series.parquet")
    mlp(3)
    where = {"file": str(tmp_path / "series.parquet"), "label": "activity", "client": "user"}
    partition = {"kind": "column", "min_samples": 1}
    task = task_of(table={**where, "inputs": ["x"]}, partition=partition)
    assert (task.train.values.shape, task.classes, task.clients) == ((10, 3), 2, 2)
    assert task_of(table={**where, "inputs": ["x"]}, partition=partition).clients == 2  # the same table again
    with pytest.raises(SettingsError, match="another data set already"):
        task_of(table={**where, "inputs": ["y"]}, partition=partition)
    spec = leanfed.add_parquet("both", tmp_path / "series.parquet", inputs=["x", "y"], label="age", client="user")
    assert (spec.shape, spec.classes, spec.targets, spec.users) == ((2, 3), 0, 1, ("u1", "u2"))
    with pytest.raises(DataError, match=r"different lengths: 'x' \(3,\), 'age' \(\)"):
        leanfed.add_parquet("odd", tmp_path / "series.parquet", inputs=["x", "age"], label="activity")


def test_lists_of_different_lengths_and_gaps_are_explained(tmp_path: Path) -> None:
    pl.DataFrame({"x": [[1.0], [1.0, 2.0]], "g": [1.0, None], "label": [0, 1]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="lists of 1 to 2 values. Pad or cut"):
        leanfed.add_parquet("t", tmp_path / "t.parquet", inputs="x")
    with pytest.raises(DataError, match="1 gaps in 2 rows"):
        leanfed.add_parquet("t", tmp_path / "t.parquet", inputs="g")
    pl.DataFrame({"x": ["a", None], "y": [0.5, 1.0], "label": [0, 1], "who": ["a", None]}).write_parquet(
        tmp_path / "t.parquet"
    )
    for given in ({"inputs": "x"}, {"inputs": "y", "client": "who"}):
        with pytest.raises(DataError, match="1 gaps in 2 rows"):
            leanfed.add_parquet("t", tmp_path / "t.parquet", **given)
    pl.DataFrame({"x": [], "label": []}, schema={"x": pl.Float64, "label": pl.Int64}).write_parquet(
        tmp_path / "t.parquet"
    )
    with pytest.raises(DataError, match="'label' is named twice"):
        leanfed.add_parquet("t", tmp_path / "t.parquet", inputs=["x", "label"])
    with pytest.raises(DataError, match="has no samples"):
        leanfed.add_parquet("t", tmp_path / "t.parquet", inputs="x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": Y[:-1]}, "as many labels as samples.*X 12, y 11"),
        ({"client": WHOSE[1:]}, "X 12, y 12, client 11"),
        ({"X": np.where(X == 6, np.nan, X)}, "NaN or infinity in 1 of .* row 3"),
        ({"y": Y, "classes": 4}, "whole numbers from 0 to 3 .classes = 4., but holds 5"),
        ({"y": -Y, "classes": 9}, "but holds -3"),
        ({"y": np.where(Y == 3, np.nan, 1.0)}, "y of 'mine' has NaN in .* Fill the gaps"),
        ({"y": np.where(Y == 3, 1e300, 1.0)}, "float32 cannot hold"),
        ({"y": np.array([None, *Y[1:]], dtype=object)}, "None or NaN in 1 of 12 samples, first in row 0"),
        ({"y": np.array(["a", *Y[1:]], dtype=object)}, "holds numbers, words. Give words only, or numbers only"),
        ({"y": Y.astype(complex)}, "type complex128"),
        ({"y": Y, "classes": 1}, "classes is 1, but must be a whole number from 2 on"),
        ({"y": Y, "test": (X, Y.astype(str))}, "words in one of the training and test sets"),
        ({"X": X[:0], "y": Y[:0]}, "at least one, but has X 0, y 0"),
        ({"X": X[:, :0]}, "samples without a value"),
        ({"X": X * 1e300}, "float32 cannot hold in 12 of 12"),
        ({"X": np.full((12, 2), 2**64 - 1, dtype=np.uint64)}, "int64 cannot hold"),
        ({"X": X.astype(object)}, r"type object.*X\.astype\(float\)"),
        ({"X": np.array([[1.0], [1.0, 2.0]] * 6, dtype=object)}, "rows of one length"),
        ({"client": [None, *WHOSE[1:]]}, "client of 'mine' has None or NaN in 1 of 12"),
        ({"client": np.stack([Y, Y], 1)}, "one name or number for each sample"),
        ({"client": WHOSE, "test": (X, Y, np.arange(12))}, "words in one of the training and test sets"),
        ({"test": np.zeros(12, dtype=bool)}, "no sample for testing"),
        ({"test": np.ones(12, dtype=bool)}, "no sample for training"),
        ({"test": (X,)}, "`test` is a tuple of 1"),
        ({"normalise": 5}, r"must be \(mean, deviation\)"),
        ({"y": np.zeros(12, dtype=int)}, "one class only"),
        ({"X": X[:, 0]}, r"reshape\(-1, 1\)"),
        ({"X": X.astype(str)}, "Give numbers"),
        ({"X": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "differ in length"),
        ({"y": None}, "has no labels"),
        ({"normalise": "zscore"}, "must be 'none', 'standard' or"),
        ({"normalise": (0, 0)}, "deviations above zero"),
        ({"test": (X[:, :1], Y)}, r"shape \(1,\), those for training \(2,\)"),
        ({"test": X}, "a mask of 12 booleans"),
        ({"client": WHOSE, "test": (X, Y)}, "not of the test set"),
    ],
)
def test_bad_arrays_are_explained(given: dict[str, Any], message: str) -> None:
    values = {"X": X, "y": Y, **given}
    with pytest.raises(DataError, match=message):
        leanfed.add_arrays("mine", values.pop("X"), values.pop("y"), **values)
    assert "mine" not in DATASETS


def test_users_and_models_that_do_not_fit_are_explained() -> None:
    leanfed.add_arrays("mine", X, Y, client=WHOSE, test=(X[:2], Y[:2], ["a", "a"]))
    mlp(2)
    with pytest.raises(DataError, match="User 'b' has no sample left for testing"):
        task_of(partition={"kind": "column", "min_samples": 1})
    leanfed.add_arrays("newcomer", X, Y, client=WHOSE, test=(X, Y, ["c", *WHOSE[1:]]))
    with pytest.raises(DataError, match="User 'c' has no sample for training, only for testing"):
        task_of(dataset="newcomer", partition={"kind": "column", "min_samples": 1})
    with pytest.raises(DataError, match=r"User 'b' has 5 training samples, fewer than .*min_samples = 6"):
        task_of(partition={"kind": "column", "min_samples": 6})
    with pytest.raises(DataError, match="clients = 3 is more than the 2 users"):
        task_of(partition={"kind": "column", "clients": 3})
    leanfed.add_arrays("nobody's", X, Y)
    with pytest.raises(SettingsError, match="does not say. Name the users"):
        task_of(dataset="nobody's", partition={"kind": "column"})
    leanfed.add_arrays("numbers", X, Y.astype(float))
    with pytest.raises(SettingsError, match="deals out classes, but these labels are none"):
        task_of(dataset="numbers", partition={"kind": "class", "classes_per_client": 1, "clients": 2, "min_samples": 1})
    leanfed.add_arrays("whole", X.astype(int), Y)
    with pytest.raises(SettingsError, match="int64 of shape .2,.*whole numbers stay whole"):
        task_of(dataset="whole")
    leanfed.add_model("fixed", lambda n: nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 7)), split="0")
    with pytest.raises(DataError, match=r"outputs of shape \(2, 7\) for 2 samples, but their labels need \(2, 2\)"):
        task_of(model="fixed")
    leanfed.add_model("uncut", lambda n: nn.Linear(2, n))
    with pytest.raises(SettingsError, match="'uncut' has no cut: a single layer holds all its trainable weights"):
        task_of(model="uncut")
    leanfed.add_model("empty", lambda n: nn.Flatten())
    with pytest.raises(SettingsError, match="'empty' has no cut: it has no trainable weights"):
        task_of(model="empty")
    leanfed.add_model("no module", lambda n: 5)
    with pytest.raises(SettingsError, match="built as 5, which is no nn.Module"):
        task_of(model="no module")
    with pytest.raises(SettingsError, match="takes inputs of shape .1, 32, 32., but 'mine' has .2,."):
        task_of(model="lenet5")
