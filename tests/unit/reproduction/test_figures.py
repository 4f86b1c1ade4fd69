"""What figures read off finished runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import leanfed
from leanfed.reproduction.catalogue import Job, Outcome, Scale
from leanfed.reproduction.judging import key_of
from leanfed.reproduction.library import FinishedRun
from leanfed.reproduction.paper.figures import FINAL, GUESS, cell, figure
from leanfed.reproduction.paper.protocol import Study
from leanfed.reproduction.paper.svhn import BANDS, FAST, FIXED, STUDY, with_rates
from leanfed.results import RunFolder
from leanfed.runs.settings import Settings

SMALL = Study("digits", {"Class-2": ("joint_class2", ())}, {"Class-2": (0.5,)}, ())


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Fixed rates on the embedded digits, four clients, two rounds."""
    partition = {"kind": "iid", "clients": 4}
    settings = Settings.from_values({"rounds": 2, "task": {"partition": partition}}, "here")
    run = leanfed.run(settings, out=tmp_path_factory.mktemp("runs") / "fixed")
    labels = {"method": FIXED, "partition": "Class-2"}
    return Outcome(Job(labels, settings), FinishedRun(settings, RunFolder(Path(run.folder)), run.rounds))


def test_the_majority_guess_stands_beside_the_methods(outcome: Outcome) -> None:
    measured = figure(SMALL, "accuracy", (), place="here").measure([outcome], Scale((0,)))
    values = {key_of(labels): value for labels, _, value in measured.values}
    assert values[key_of(cell(GUESS, "Class-2", FINAL))] == outcome.run.rounds["majority_guess"][-1]
    assert values[key_of(cell(FIXED, "Class-2", FINAL))] == outcome.run.rounds["accuracy"][-1]
    assert [line.label for line in measured.lines] == ["FLPDSP"]


def test_figures_of_losses_have_no_guess(outcome: Outcome) -> None:
    measured = figure(SMALL, "loss", (), place="here").measure([outcome], Scale((0,)))
    assert GUESS not in {labels["method"] for labels, _, _ in measured.values}


def test_rates_are_averaged_over_the_rounds(outcome: Outcome) -> None:
    entry = with_rates(figure(SMALL, "accuracy", (), place="here"))
    values = {key_of(labels): value for labels, _, value in entry.measure([outcome], Scale((0,))).values}
    assert values[key_of(cell(FIXED, "Class-2", "mean k"))] == pytest.approx(0.74)
    assert values[key_of(cell(FIXED, "Class-2", "mean r"))] == pytest.approx(0.82)


def test_longer_runs_end_at_the_same_learning_rate() -> None:
    joint, fixed = (
        next(job.settings for job in STUDY.jobs(STUDY.drawn, Scale((0,))) if job.labels["method"] == method)
        for method in (FAST, FIXED)
    )
    assert joint.rounds == 2 * fixed.rounds == joint.run.checkpoint_every
    last = [one.training.learning_rate_decay**one.rounds for one in (joint, fixed)]
    assert last[0] == pytest.approx(last[1], rel=0.02)


def test_svhn_is_run_under_every_band() -> None:
    widths = {
        job.labels["partition"]: job.settings.radio.fleet.bandwidth_hz for job in STUDY.jobs(STUDY.drawn, Scale((0,)))
    }
    assert widths.keys() == BANDS.keys()
    assert widths["10~50 MHz"] == (1e6, 5e6)
