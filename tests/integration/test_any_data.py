"""The examples of docs/any-data.md, and runs on arrays from settings to comparison, page and resumption."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import leanfed
from leanfed.errors import StorageError
from leanfed.tasks.datasets import DATASETS
from tests.integration.conftest import Leanfed
from tests.registries import registered_for_now

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "any-data.md").read_text(encoding="utf-8")
MODEL = """
import leanfed
from torch import nn
leanfed.add_model("mlp", lambda n: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, n)), split="0")
"""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with registered_for_now():
        yield


def block(mark: str) -> str:
    return re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.mark.parametrize(("kind", "ratio"), [("series", 2.0), ("table", 0.5), ("text", 1.3)])
def test_fewer_than_fifteen_lines_beat_the_best_constant_guess(kind: str, ratio: float) -> None:
    """By the factors that the examples reach with room to spare; an error must be below the guess's."""
    code, scope = block(f"example: {kind}"), dict[str, Any]()
    assert len([line for line in code.splitlines() if line.strip()]) < 15
    exec(block(f"data: {kind}"), scope)
    exec(code, scope)
    run = scope["run"]
    assert run.settings.allocation.rule == "joint"
    better = run.score / run.guess
    assert better > ratio if run.main == "accuracy" else better < ratio
    if kind == "text":
        assert 1 < run.summary["perplexity"] < 8  # of twelve letters
        assert run.summary["perplexity"] == pytest.approx(np.exp(run.summary["loss"]))


@pytest.mark.usefixtures("undrawn")
def test_a_table_of_numbers_goes_from_settings_to_a_page(leanfed: Leanfed, tmp_path: Path) -> None:
    def call(*words: str) -> str:
        with registered_for_now():
            done = leanfed(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(200, 3))
    columns = dict(zip(("hour", "load", "temperature"), inputs.T, strict=True))
    wanted = inputs @ [1.0, 2.0, 3.0]
    table = pl.DataFrame({**columns, "next_load": wanted, "site": [f"s{row % 4}" for row in range(200)]})
    table.write_parquet(tmp_path / "meters.parquet")
    (tmp_path / "meters.toml").write_text(block("settings"))
    (tmp_path / "model.py").write_text(MODEL)
    common = ("--import", "model.py", "--set", "evaluation.every=1", "--set", "training.learning_rate=0.1")
    told = json.loads(call("run", "meters.toml", "--out", "runs/a", "--json", *common))
    assert (told["accuracy"], told["clients"], told["partition"]) == (None, 4, "by user")
    assert told["rmse"] >= told["mae"] > 0
    shown = call("run", "meters.toml", "--out", "runs/b", "--seed", "1", *common)
    assert re.search(r"mean absolute error\s+\d", shown)
    assert re.search(r"best constant guess\s+\d", shown)
    compared = json.loads(call("compare", "runs", "--json", "--target", str(told["mae"] + 0.01)))
    rows = {row["name"]: row for row in compared["runs"]}
    assert [row["mae"] for row in compared["runs"]] == sorted(row["mae"] for row in compared["runs"])  # best first
    assert rows["run"]["constant_guess"] == pytest.approx(told["constant_guess"], rel=0.5)
    assert next(iter(compared["runs"][0]["sustained_time_to_accuracy"].values())) is not None
    text = call("compare", "runs")
    assert "mean absolute error" in text
    assert "root mean square error" in text
    assert "majority" not in text
    made = call("report", "runs", "--out", "page.html", "--figures", "png", "--json", "--target", "9")
    assert json.loads(made)["flaws"] == []
    data = json.loads((tmp_path / "page.html").read_text().partition('id="data">')[2].partition("</script>")[0])
    assert data["main"]["name"] == "mae"
    assert next(iter(data["scores"])) == "mae"
    assert data["runs"][0]["final"]["mae"] == pytest.approx(told["mae"])
    assert data["runs"][0]["clients"]["score"] == "mae"
    assert data["targets"][0]["rows"][0]["reached"] == 2  # two seeds, one group
    assert "no labels to count" in data["runs"][0]["labels"]["missing"]
    assert "mean absolute error" in (tmp_path / "page-figures/targets.tex").read_text()


def add_steps(seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    leanfed.add_arrays("steps", rng.normal(size=(120, 3, 20)), rng.integers(0, 3, 120), client=np.arange(120) % 4)


class Recurrent(nn.Module):
    """A convolution, a recurrent layer and a head, not in a sequence."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv, self.gru = nn.Conv1d(3, 4, 3), nn.GRU(4, 8, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.conv(x).relu().transpose(1, 2))[0][:, -1])


def settings(**more: Any) -> leanfed.Settings:
    task = {"dataset": "steps", "model": "gru", "partition": {"kind": "column"}}
    return leanfed.Settings(**{"rounds": 4, "task": task, "evaluation": {"every": 2, "per_client": True}, **more})


def test_engines_agree_and_a_run_on_other_arrays_is_not_resumed(tmp_path: Path) -> None:
    add_steps()
    leanfed.add_model("gru", Recurrent, split="gru")
    streamed = leanfed.run(settings(run={"threads": 2}), tmp_path / "run")
    plain = leanfed.run(settings(run={"engine": "reference"}))
    assert streamed.rounds.equals(plain.rounds)
    assert streamed.summary["shared_size"] == 3 * 4 * 3 + 4 + 3 * 8 * (4 + 8 + 2)
    stopped = tmp_path / "run" / "summary.json"
    stopped.unlink()
    (tmp_path / "run" / "rounds.parquet").unlink()
    DATASETS.remove("steps")
    add_steps(1)
    with pytest.raises(StorageError, match="data"):
        leanfed.resume(tmp_path / "run")
    DATASETS.remove("steps")
    add_steps()
    assert leanfed.resume(tmp_path / "run").rounds.equals(streamed.rounds)


def quarter(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs - labels).square().square().mean()


def test_a_loss_of_ones_own_is_what_the_run_is_judged_by() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 2))
    leanfed.add_arrays("two", inputs, inputs * [1.0, -1.0])
    leanfed.add_model("linear", lambda n: nn.Sequential(nn.Linear(2, 4), nn.Linear(4, n)), split="0")
    task = {"dataset": "two", "model": "linear", "loss": quarter, "partition": {"kind": "iid", "clients": 4}}
    run = leanfed.run(
        leanfed.Settings(rounds=60, task=task, training={"learning_rate": 0.02}, algorithm={"name": "fedavg"})
    )
    assert run.main == "loss"
    assert run.score < run.guess / 2
    assert run.rounds["worst_decile"].drop_nulls()[-1] >= run.score
