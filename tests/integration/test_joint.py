"""FLPDSP-OPT in the loop: planned, trained, paid for, stopped and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import leanfed as package
from leanfed.results import RunFolder
from leanfed.runs.settings import Settings
from tests.integration.conftest import Leanfed
from tests.stops import Stop, stop_after


def joint(settings_file: Path, *more: str, **allocation: Any) -> Settings:
    """The small run planned jointly, on devices that stay as they are."""
    changes = [
        *more,
        "allocation.rule=joint",
        'radio.fleet.hold=["place", "cpu", "power"]',
        "participation.fraction=1.0",
        "theory.samples=32",  # theta of all samples would be most of a run's time
    ]
    return Settings.from_toml(
        settings_file, [*changes, *(f"allocation.{key}={val}" for key, val in allocation.items())]
    )


@pytest.mark.parametrize(
    "allocation",
    [
        pytest.param({"form": "plain"}, marks=pytest.mark.slow),  # the safe form remembers more
        {"form": "safe", "first_k": 0.3, "energy_total_j": 0.5},
        {"form": "safe", "theta": "estimated"},
        pytest.param(
            {"form": "fast", "within_rounds": 3, "energy_total_j": 0.5}, marks=pytest.mark.slow
        ),  # tuned: more
        {"form": "tuned", "within_rounds": 3, "first_within": 2, "energy_total_j": 0.5},
        {"rule": "own", "wait": "turns", "fastest": 0.4, "within_rounds": 3},
    ],
    ids=str,
)
def test_a_resumed_run_equals_an_unbroken_one(allocation: dict[str, Any], settings_file: Path, tmp_path: Path) -> None:
    measured = ["training.momentum=0.0", "theory={every=2, probes=2, samples=32}"] if "theta" in allocation else []
    paced = allocation.get("form") in ("fast", "tuned")
    by = ["radio.computation=operations"] if paced else []  # by weights nobody has the joules
    settings = joint(settings_file, *measured, *by, **allocation)
    whole = package.run(settings, tmp_path / "whole")
    for stop, call in ((2, package.run), (5, package.resume)):
        with pytest.raises(Stop):
            first = (settings, tmp_path / "broken") if call is package.run else (tmp_path / "broken",)
            call(*first, listen=stop_after(stop))
    resumed = package.resume(tmp_path / "broken")
    assert resumed.summary["sha256"] == whole.summary["sha256"]
    assert resumed.clients.equals(whole.clients)


def test_the_folder_tells_why_each_round_was_planned_so(settings_file: Path, tmp_path: Path) -> None:
    done = package.run(joint(settings_file, within_rounds=3), tmp_path / "run")
    plans = [event for event in RunFolder(tmp_path / "run").read_events() if event["event"] == "plan"]
    assert [event["round"] for event in plans] == list(range(6))
    slowest = done.clients.with_columns(s=pl.col("communication_s") + pl.col("computation_s"))
    for event, row in zip(plans, done.rounds.iter_rows(named=True), strict=True):
        assert event["seconds"] > 0
        assert event["participants"] == row["participants"] == 6 - len(event["excluded"])
        assert row["latency_s"] <= event["deadline_s"] * (1 + 1e-9)
        assert slowest.filter(pl.col("round") == row["round"])["s"].max() == pytest.approx(row["latency_s"])
        assert {"deadline_s", "k", "participants", "worth_per_s"} <= event["alternatives"][0].keys()
    assert done.clients.group_by("round").agg(pl.col("share").sum())["share"].max() <= 1 + 1e-9


def test_the_tuned_form_plans_by_what_clients_measured(settings_file: Path, tmp_path: Path) -> None:
    done = package.run(joint(settings_file, "rounds=4", form="tuned"), tmp_path / "run")
    plans = [event for event in RunFolder(tmp_path / "run").read_events() if event["event"] == "plan"]
    assert [event["head_steps"] for event in plans] == done.rounds["head_steps"].to_list()
    assert all("one more head step is worth" in event["words"] for event in plans)
    shares = done.rounds.select("kept_0003", "kept_001", "kept_003", "kept_01", "kept_03").to_numpy()
    assert ((shares > 0) & (shares <= 1)).all()
    assert (shares[:, 1:] >= shares[:, :-1]).all()
    measured = done.rounds["head_contraction"].drop_nulls()
    assert len(measured) and measured.is_between(0, 1).all()


def test_a_round_that_nobody_can_make_passes_and_the_run_goes_on(settings_file: Path, tmp_path: Path) -> None:
    measured = "theory={every=1, probes=2, samples=32}"
    settings = joint(settings_file, measured, form="safe", energy_total_j=0.02)  # spent before the last round
    done = package.run(settings, tmp_path / "run")
    idle = done.rounds.filter(pl.col("participants") == 0)
    assert 0 < idle.height < done.rounds.height
    assert idle["upload_bits"].sum() == idle["latency_s"].sum() == 0
    assert idle["train_loss"].null_count() == idle.height
    assert set(done.clients["round"]) == set(done.rounds.filter(pl.col("participants") > 0)["round"])


def test_the_settings_say_what_came_with_the_form(settings_file: Path, tmp_path: Path) -> None:
    package.run(joint(settings_file).model_copy(update={"rounds": 1}), tmp_path / "run")
    kept = RunFolder(tmp_path / "run").read_settings()
    assert kept["algorithm"]["prune"]["head_memory"] == "keep"
    assert kept["allocation"]["k_max"] == 0.05


def test_the_demo_plans_its_first_method_within_its_deadline(leanfed: Leanfed, tmp_path: Path) -> None:
    assert leanfed("demo", "--rounds", "2", "--out", "demo").returncode == 0
    planned = RunFolder(tmp_path / "demo/flpdsp")
    assert planned.read_settings()["name"] == "FLPDSP-OPT"
    deadline_s = planned.read_settings()["allocation"]["deadline_s"]
    assert planned.read_table("rounds")["latency_s"].max() <= deadline_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (["allocation.rule=joint", "allocation.deadline_s=0.001"], 3, "Raise allocation.deadline_s"),
        (["allocation.rule=joint", "algorithm={name='fedper'}"], 2, "plans k and r of the method 'flpdsp'"),
        (["allocation.rule=jont"], 2, "'own' or 'joint'"),
        (["allocation.dedline_s=1.0"], 2, "did you mean 'deadline_s'"),
    ],
)
def test_what_cannot_be_planned_is_explained(
    changes: list[str], code: int, message: str, leanfed: Leanfed, settings_file: Path
) -> None:
    sets = [part for change in changes for part in ("--set", change)]
    ended = leanfed("run", settings_file, "--out", "x", *sets)
    assert ended.returncode == code
    assert message in ended.stderr
