"""Prometheus reads every run of a board; what the Grafana board shows is what is exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import leanfed
from leanfed.quantities import SCHEMA
from leanfed.report.live.board import Board
from leanfed.report.live.metrics import STANDING, Metrics
from leanfed.report.live.processes import Processes

BOARD = Path(__file__).resolve().parents[3] / "examples" / "grafana.json"
RUN = {
    "rounds": 3,
    "task": {"partition": {"kind": "iid", "clients": 4}},
    "training": {"batch_size": 8},
    "evaluation": {"every": 2},
    "run": {"threads": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    leanfed.run(leanfed.Settings.from_values(RUN), folder / "deep" / "done")
    (folder / "broken").mkdir()
    (folder / "broken" / "settings.json").write_text("{")
    return folder


def scraped(metrics: Metrics) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {(sample.name, sample.labels["run"]): sample.value for family in families for sample in family.samples}


def test_every_column_is_a_gauge_with_its_last_value(runs: Path) -> None:
    found = scraped(Metrics(Board(runs, Processes(None))))
    rows = leanfed.read(runs / "deep" / "done").rounds
    assert found["leanfed_round_train_loss", "deep/done"] == rows["train_loss"][-1]
    assert found["leanfed_round_accuracy", "deep/done"] == rows["accuracy"].drop_nulls()[-1]
    assert found["leanfed_run_rounds_done", "deep/done"] == found["leanfed_run_rounds", "deep/done"] == 3
    assert found["leanfed_run_going_on", "deep/done"] == 0
    assert (found["leanfed_run_readable", "deep/done"], found["leanfed_run_readable", "broken"]) == (1, 0)
    assert not any(name.startswith("leanfed_round_") for name, run in found if run == "broken")


def test_rows_are_read_again_only_when_they_have_changed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(Board(runs, Processes(None)))
    first = scraped(metrics)
    monkeypatch.setattr("leanfed.report.live.metrics._last_values", lambda folder: pytest.fail("read again"))
    assert scraped(metrics) == first


def test_the_board_shows_what_is_exported() -> None:
    board = json.loads(BOARD.read_text())
    asked = {name for target in _targets(board) for name in re.findall(r"leanfed_\w+", target)}
    known = {*STANDING, *(f"leanfed_round_{column}" for column in SCHEMA)}
    assert asked
    assert asked <= known


def _targets(board: dict) -> list[str]:
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*shown, *(one["query"] for one in board["templating"]["list"])]
