"""How `benchmarks/anywhere.py` judges the form that tunes itself on other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.anywhere import CASES, METHODS, MIDDLE, NEARLY, OPPONENTS, judged, mean, register, targets
from benchmarks.anywhere import page as shown

from leanfed.files import read_json
from leanfed.reproduction.paper.tuned import FASTEST_60, TUNED, TURNS
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.models import MODELS

ROOT = Path(__file__).resolve().parents[3]
ALIKE = ("training", "radio", "task", "participation", "evaluation", "run")


def run(late: int = 0, end: float = 0.9) -> dict[str, Any]:
    """At the guess, 0.5, for some tests, then at its end; a test every second."""
    accuracy = [0.5] * (1 + late) + [end] * (20 - late)
    return {"seconds": [*range(1, 22)], "accuracy": accuracy, "guess": 0.5, "worst_decile": end - 0.1}


def rows(**changed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: run(late=4) for name in METHODS} | changed


def test_targets_lie_halfway_from_the_guess_to_the_best_end_and_just_below_it() -> None:
    assert targets(rows()) == pytest.approx({MIDDLE: 0.7, NEARLY: 0.88})


def test_the_tuned_form_must_be_sooner_than_the_soonest_opponent_in_the_mean_of_seeds() -> None:
    first = {TUNED: run(late=2)}
    found = judged([rows(**first), rows(**first)])
    assert found[MIDDLE]["sooner"]
    assert found[NEARLY]["sooner"]
    assert found[MIDDLE]["seconds"][TUNED] == [pytest.approx(3.5)] * 2  # halfway between two tests
    late = judged([rows(**first), rows(**{TUNED: run(late=9)})])
    assert not late[MIDDLE]["sooner"]
    assert found["accuracy"][TUNED] == pytest.approx(0.9)


def test_as_soon_as_an_opponent_is_not_sooner() -> None:
    assert not judged([rows()])[MIDDLE]["sooner"]


def test_a_form_that_only_guesses_is_never_sooner() -> None:
    found = judged([rows(**{TUNED: run(end=0.5)})])
    assert found[NEARLY]["seconds"][TUNED] == [None]
    assert not found[MIDDLE]["sooner"]
    assert not found[NEARLY]["sooner"]


def test_a_target_that_an_opponent_keeps_in_one_seed_only_is_not_kept() -> None:
    lost = rows(**{name: run(end=0.5) for name in OPPONENTS}, **{TUNED: run(late=9)})
    assert judged([rows(**{TUNED: run(late=9)}), lost])[MIDDLE]["sooner"]
    assert judged([lost])[NEARLY]["opponent"] in OPPONENTS


def test_a_swing_is_not_a_target_kept() -> None:
    swings = run(late=0)
    swings["accuracy"][10] = 0.6
    found = judged([rows(**{FASTEST_60: swings})])
    assert found[NEARLY]["seconds"][FASTEST_60][0] > 11


def test_rows_of_a_case_differ_in_nothing_but_method_and_plan() -> None:
    register()
    try:
        for case in CASES.values():
            made = [case.settings(method, 1) for method in METHODS]
            assert (
                len({(s.training.model_dump_json(), s.radio.model_dump_json(), s.task.model_dump_json()) for s in made})
                == 1
            )
            assert len({(s.evaluation.every, s.run.stop_at_seconds, s.seed) for s in made}) == 1
    finally:
        DATASETS.remove("series")
        MODELS.remove("colour-net")
        MODELS.remove("step-net")


def test_what_the_documents_tell_is_what_was_found() -> None:
    kept = read_json(ROOT / "results/anywhere/anywhere.json")
    ahead = [sum(case[name]["sooner"] for case in kept["cases"].values()) for name in (MIDDLE, NEARLY)]
    page = " ".join((ROOT / "docs/concepts.md").read_text().split())
    assert f"sooner than every opponent in {ahead[0]} of {len(kept['cases'])} cases" in page
    assert f"in {ahead[1]} to nearly the best end" in page
    rule, ours = (mean(kept["cases"]["SVHN"][NEARLY]["seconds"][row]) for row in (FASTEST_60, TUNED))
    assert f"{ours:.1f} s to nearly the best end, the plain rule {rule:.1f}" in page
    swings = kept["cases"]["CIFAR-10"][MIDDLE]["seconds"]
    first, second = swings[TUNED]
    assert f"the tuned form takes {first:.1f} s with one seed and {second:.1f} with the other" in page
    assert f"the rule with turns {swings[TURNS][0]:.1f} and {swings[TURNS][1]:.1f}" in page
    held = kept["cases"]["MNIST, held"]
    turns, tuned = ([mean(held[name]["seconds"][row]) for name in (MIDDLE, NEARLY)] for row in (TURNS, TUNED))
    assert f"{turns[0]:.1f} s halfway and {turns[1]:.1f} s to nearly the best end" in page
    assert f"where the tuned form takes {tuned[0]:.1f} and {tuned[1]:.1f}." in page
    assert (ROOT / "results/anywhere/README.md").read_text() == shown(kept["cases"], kept["seeds"])
    whole = [list(seeds.values()) for seeds in kept["runs"].values()]
    assert [judged(seeds) for seeds in whole] == [kept["cases"][case] for case in kept["runs"]]
