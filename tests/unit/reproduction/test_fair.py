"""The comparison at equal aids: its targets, its shares, and that nothing in it was chosen by its own seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import leanfed
import leanfed.reproduction.paper
from leanfed.files import read_json
from leanfed.reproduction.catalogue import ENTRIES, Measured, Scale
from leanfed.reproduction.judging import key_of
from leanfed.reproduction.library import content_key
from leanfed.reproduction.paper import fair
from leanfed.reproduction.paper.protocol import MNIST
from tests.unit.reproduction import finished

RESULTS = Path(__file__).resolve().parents[3] / "results"


def outcome(method: str, accuracy: Sequence[float], seconds: float, seed: int = 20) -> Any:
    return finished.outcome({"method": method, "partition": "Class-4"}, accuracy, seconds, seed)


def measured(*outcomes: Any) -> dict[Any, float | None]:
    found: Measured = fair.measure(outcomes, Scale((20,)))
    return {key_of(labels): value for labels, _, value in found.values}


def of(numbers: dict[Any, float | None], method: str, quantity: str, target: str = fair.END) -> float | None:
    return numbers.get(key_of(fair.cell(method, "Class-4", quantity, target)))


def test_the_target_is_halfway_between_alone_and_the_best() -> None:
    numbers = measured(
        outcome("Local", [0.5, *[0.9] * 5], 1.0),
        outcome("FedPer, equal", [0.5, *[0.98] * 5], 1.0),
        outcome(fair.FAST, [0.5, *[0.98] * 5], 0.25),
    )
    assert of(numbers, "target", fair.ACCURACY, fair.HALFWAY) == pytest.approx(0.94)
    assert of(numbers, "Local", fair.SUSTAINED, fair.HALFWAY) is None
    # linear from 0.5 after one round to 0.98 after two
    assert of(numbers, "FedPer, equal", fair.SUSTAINED, fair.HALFWAY) == pytest.approx(1 + 0.44 / 0.48)
    assert of(numbers, "FedPer, equal", fair.SHARE, fair.HALFWAY) == pytest.approx(0.25)
    assert of(numbers, "Local", fair.SHARE, fair.HALFWAY) is None
    assert of(numbers, "FedPer, equal", fair.PACE_S) == pytest.approx(1.0)


def test_damped_rows_are_set_against_the_damped_form() -> None:
    row = next(iter(fair.STEADY))
    curve = [0.5, *[0.98] * 5]
    numbers = measured(
        outcome("Local", [0.6] * 6, 1.0),
        outcome(row, curve, 1.0),
        outcome(fair.FAST, curve, 0.25),
        outcome(fair.DAMPED_FAST, curve, 0.5),
    )
    assert of(numbers, row, fair.SHARE, "90 %") == pytest.approx(0.5)


def everywhere(method: str, accuracy: Sequence[float], seconds: float) -> list[Any]:
    """The same run on all four partitions."""
    found = [outcome(method, accuracy, seconds) for _ in MNIST.partitions]
    for one, place in zip(found, MNIST.partitions, strict=True):
        one.job.labels["partition"] = place
    return found


def test_the_tuned_form_is_set_against_the_soonest_of_all_opponents() -> None:
    curve, claim = [0.5, *[0.98] * 5], fair._tuned_claims()[0]  # half of the soonest opponent's seconds
    late = {name: [0.6] * 6 for name in fair.OPPONENTS} | {"FedPer, equal": curve}

    def judged(*more: Any) -> tuple[str, float | None]:
        given = {outcome.job.labels["method"] for outcome in more}
        others = [one for name in late if name not in given for one in everywhere(name, late[name], 1.0)]
        found: Measured = fair.measure([*others, *more], Scale((20,)))
        book = ENTRIES["fair"].book(found)
        mine = book.ours(fair.cell(fair.OPT_TUNED, fair.ALL_FOUR, fair.OF_BEST, fair.HALFWAY))
        return claim.rule.judge(book).outcome, mine.get(20)

    tuned = everywhere(fair.OPT_TUNED, curve, 0.4)
    assert judged(*tuned) == ("holds", pytest.approx(0.4))
    assert judged(*tuned, *everywhere(fair.RULE, curve, 0.5)) == ("fails", pytest.approx(0.8))
    assert judged(*tuned, *everywhere(fair.DAMPED_FAST, curve, 0.1))[0] == "holds"  # a form of ours is no opponent
    assert judged(*everywhere(fair.OPT_TUNED, [0.6] * 6, 0.4)) == ("fails", None)
    assert judged(*tuned[1:])[0] == "not judged"  # a partition is missing
    assert judged(*tuned, *everywhere(fair.RULE, curve, 0.5)[1:])[0] == "not judged"  # an opponent, on one partition


def test_settings_are_chosen_on_other_seeds_and_on_samples_of_no_test() -> None:
    entry = ENTRIES["fair-development"]
    tried = entry.jobs(entry.scale(None, False))
    told = ENTRIES["fair"].jobs(ENTRIES["fair"].scale(None, False))
    assert {job.settings.seed for job in tried} == {10, 11}
    assert {job.settings.seed for job in told} == {20, 21, 22, 23, 24}
    assert {job.settings.task.test_on for job in tried} == {"held-back"}
    assert {job.settings.task.test_on for job in told} == {"test"}
    assert {job.settings.evaluation.every for job in told} == {1}
    assert {job.settings.radio.computation for job in told} == {"weights"}


def test_every_row_is_tried_at_every_rate() -> None:
    entry = ENTRIES["fair-development"]
    tried = {(job.labels["method"], job.labels["rate"]) for job in entry.jobs(entry.scale(1, False))}
    assert all((row, f"{rate:g}") in tried for row in fair.ROWS if row != fair.MASKS for rate in fair.TRIED)


def test_somebody_can_take_the_most_head_steps_in_a_quick_version() -> None:
    jobs = fair.development_jobs(Scale((10,), quick=True))
    (dearest,) = [job for job in jobs if job.labels["method"] == "FedPer + head steps + pace, 20 head steps"]
    run = leanfed.run(dearest.settings.model_copy(update={"rounds": 1}), progress=False)
    assert run.rounds["participants"].item() > 0


def test_the_papers_entries_share_the_runs_of_the_headline() -> None:
    """Their runs are found in those of `fair`: the same settings, evaluated less often or ended sooner."""
    there = {content_key(job.settings) for job in ENTRIES["fair"].jobs(ENTRIES["fair"].scale(1, False))}
    drawn = ENTRIES["mnist-accuracy"].jobs(ENTRIES["mnist-accuracy"].scale(1, False))
    assert {content_key(job.settings) for job in drawn} <= there
    assert MNIST.first_seed == ENTRIES["mnist-cost"].first_seed == 20


def test_what_was_chosen_is_what_scored_best() -> None:
    scores: dict[str, dict[str, float]] = {}
    for number in read_json(RESULTS / "fair-development" / "results.json")["numbers"]:
        if number["ours"]:
            scores.setdefault(number["labels"]["method"], {})[number["labels"]["rate"]] = number["mean"]
    for row in fair.ROWS:
        if row != fair.MASKS:
            settings = MNIST.job(row, fair.ROWS[row], "Class-4", 20, Scale((20,))).settings
            assert max(scores[row], key=scores[row].__getitem__) == f"{settings.training.learning_rate:g}", row
    for row in fair.STEPPED:
        tried = {steps: scores[f"{row}, {steps} head steps"]["0.1"] for steps in fair.TRIED_STEPS}
        best = max(tried, key=tried.__getitem__)
        assert f"algorithm.head_steps={best}" in fair.ROWS[row]
