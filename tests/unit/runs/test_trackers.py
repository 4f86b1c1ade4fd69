"""Trackers hear of every round; the real packages are used where they are installed."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

import leanfed
from leanfed.errors import MissingExtraError
from leanfed.runs import trackers

TASK = {"partition": {"kind": "iid", "clients": 3}}


def settings(rounds: int = 2, **track: str) -> leanfed.Settings:
    return leanfed.Settings(rounds=rounds, task=TASK, evaluation={"every": 1}, run={"track": track})


def test_a_csv_file_has_a_row_for_each_round(tmp_path: Path) -> None:
    run = leanfed.run(settings(csv=str(tmp_path / "logs" / "rounds.csv")))
    with (tmp_path / "logs" / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [0, 1]
    assert [float(row["accuracy"]) for row in rows] == run.rounds["accuracy"].to_list()


def test_a_run_that_goes_on_repeats_no_row(tmp_path: Path) -> None:
    """The run ends after its second round, which the CSV file has heard of and no checkpoint has."""

    class Stop(Exception):
        pass

    def stop(record: object) -> None:
        if record.row["round"] == 1:
            raise Stop

    given = settings(3, csv=str(tmp_path / "rounds.csv"))
    given = given.model_copy(update={"run": given.run.model_copy(update={"checkpoint_every": 3})})
    with pytest.raises(Stop):
        leanfed.run(given, tmp_path / "run", listen=stop)
    leanfed.resume(tmp_path / "run")
    with (tmp_path / "rounds.csv").open(newline="") as file:
        assert [int(row["round"]) for row in csv.DictReader(file)] == [0, 1, 2]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = leanfed.run(settings(tensorboard=str(tmp_path)))
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = events.Scalars("accuracy")
    assert [event.step for event in found] == [0, 1]
    assert [event.value for event in found] == pytest.approx(run.rounds["accuracy"].to_list())


@pytest.mark.filterwarnings("ignore")  # of packages that MLflow brings
def test_mlflow_finds_the_run_with_its_settings(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = leanfed.run(settings(mlflow=store), tmp_path / "run")
    client = MlflowClient(tracking_uri=store)
    (found,) = client.search_runs([client.get_experiment_by_name("leanfed").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["training.batch_size"] == "32"
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert [metric.value for metric in history] == pytest.approx(run.rounds["accuracy"].to_list())


@pytest.mark.slow  # by the command line; test_lost_trackers.py has a process that needs wandb anyway
def test_wandb_writes_a_run_without_a_network(tmp_path: Path) -> None:
    """In a process of its own: the package writes its file when the process ends."""
    pytest.importorskip("wandb")
    (tmp_path / "digits.toml").write_text(
        'rounds = 2\ntask.partition = {kind = "iid", clients = 3}\nrun.track.wandb = "digits"\n'
    )
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "leanfed", "run", "digits.toml", "--out", "run", "--json"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **offline}, check=True, capture_output=True)
    (record,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"worst_decile" in record.read_bytes()


def test_a_missing_package_is_refused_before_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"run.track.wandb needs the package wandb.*leanfed\[track\]"):
        leanfed.run(settings(wandb="digits"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
