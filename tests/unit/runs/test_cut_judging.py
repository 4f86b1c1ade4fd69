"""How `benchmarks/cuts.py` judges a choice of a cut against every cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cuts import final, judged, mean_curve, reached, repeated


def seed(seconds: float = 24.0, **ways: str) -> dict[str, Any]:
    """Three cuts: good is at 0.9 after 6 s, near ends half a point below but later, bad ends at 0.5."""
    curves = {
        "good": [(6.0, 0.9), (24.0, 0.9)],
        "near": [(6.0, 0.7), (12.0, 0.895), (24.0, 0.895)],
        "bad": [(6.0, 0.4), (24.0, 0.5)],
    }
    return {"seconds": seconds, "curves": curves, "cost": "good", "gain": "near", "own": "bad", **ways}


def test_a_choice_must_be_as_good_and_as_soon_as_the_best_cut() -> None:
    found = judged([seed()])
    assert found["best"] == "good"
    assert [found[by]["holds"] for by in ("cost", "gain", "own")] == [True, False, False]
    assert found["gain"]["within_a_point"]
    assert not found["gain"]["as_soon"]
    assert found["gain"]["points_behind"] == pytest.approx(0.5)
    assert found["own"]["seconds_over_best"] is None  # it never gets there


def test_curves_meet_at_common_instants_and_are_averaged_over_seeds() -> None:
    both = [seed(), seed(cost="bad")]
    seconds, accuracy = mean_curve(both, ["good", "bad"])
    assert seconds[-1] == 24
    assert accuracy[-1] == pytest.approx((0.9 + 0.5) / 2)
    assert accuracy[2] == pytest.approx((0.45 + 0.2) / 2)  # after 3 s both are halfway to their first test
    assert judged(both)["cost"]["chosen"] == ["bad", "good"]


def test_the_best_cut_of_another_seed_is_judged_on_this_one() -> None:
    other = seed()
    other["curves"] = {**other["curves"], "good": [(24.0, 0.1)]}  # there near is the best: on the first seed too late
    assert repeated({"a": [seed(), other]}) == {"cases": 2, "cost": 1, "best_of_another_seed": 0}
    assert repeated({"a": [seed(), seed(cost="bad")]}) == {"cases": 2, "cost": 1, "best_of_another_seed": 2}
    assert repeated({"a": [seed()]})["cases"] == 0


def test_a_target_is_reached_between_two_instants() -> None:
    curve = mean_curve([seed()], ["good"])
    assert reached(curve, 0.6) == pytest.approx(4.0)
    assert reached(curve, 0.91) is None
    assert final(curve) == pytest.approx(0.9)


def test_the_counts_that_the_documents_tell_are_those_of_the_table() -> None:
    root = Path(__file__).resolve().parents[3]
    table = json.loads((root / "results/cuts/cuts.json").read_text())
    cases, single = table["cases"].values(), table["single_seeds"]
    held = [sum(case[by]["holds"] for case in cases) for by in ("cost", "gain", "own")]
    assert (len(cases), held) == (14, [6, 2, 2])
    page = (root / "docs/models.md").read_text()
    assert '`"auto"` holds in 6, `"auto:gain"` and the model\'s own cut in 2' in page
    assert f'On single seeds `"auto"` holds in {single["cost"]} of {single["cases"]}.' in page
    assert f"holds in {single['best_of_another_seed']} of {single['cases']}. So at this size" in page


def test_how_far_choices_end_behind_is_told_as_in_the_table() -> None:
    root = Path(__file__).resolve().parents[3]
    table = json.loads((root / "results/cuts/cuts.json").read_text())
    behind = {by: [case[by]["points_behind"] for case in table["cases"].values()] for by in ("cost", "own")}
    tried = [
        judged([{**seed, "cost": seed["trial"]} for seed in runs.values()])["cost"] for runs in table["runs"].values()
    ]
    page = (root / "docs/models.md").read_text().replace("\n", " ")
    mean, most = (sum(behind["cost"]) / 14, max(behind["cost"]))
    assert f"By cost it ends {mean:.1f} points behind the best cut on average and {most:.1f} at most" in page
    assert f"the model's own cut {sum(behind['own']) / 14:.1f} and {max(behind['own']):.1f}" in page
    ends = sum(case["points_behind"] for case in tried) / 14
    assert f"holds in {sum(case['holds'] for case in tried)} of the same 14 and ends {ends:.1f} points" in page
