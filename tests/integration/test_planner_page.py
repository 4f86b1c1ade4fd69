"""The planner page's answers: the same numbers as `leanfed plan`, clear refusals, plain JSON."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from leanfed.errors import InputError
from leanfed.report.planner.answers import MOST_CLIENTS, Question, answer, presets
from leanfed.report.planner.curves import BANDS, curves
from tests.integration.conftest import Leanfed

CSV = "device,distance_m,power_dbm,cpu_ghz,bandwidth_mhz\n" + "\n".join(
    f"node {n},{20 + 15 * n},23,{0.6 + 0.2 * n:.1f},0.5" for n in range(8)
)
QUESTIONS: list[dict[str, Any]] = [
    {},
    {"clients": 12, "seed": 3, "radius_m": 350.5, "changes": {"bandwidth_hz": 1.3e6, "deadline_s": 0.35}},
    {
        "clients": 7,
        "model": "resnet18",
        "payload": "paper",
        "form": "plain",
        "changes": {"energy_budget_j": None, "theta1": 0.4},
    },
    {
        "clients": 9,
        "form": "safe",
        "changes": {"base_size": 20000, "head_size": 5000, "k_min": 0.02, "bandwidth_hz": 2e6},
    },
    {"clients": 5, "changes": {"deadline_s": 0.001}},
    {"fleet": {"name": "my fleet.csv", "text": CSV}},
    {"fleet": {"name": "C:\\data\\-odd; name.csv", "text": CSV}, "clients": 4, "changes": {"theta2": 2.5}},
]


@pytest.mark.parametrize("asked", QUESTIONS, ids=range(len(QUESTIONS)))
def test_the_command_and_the_problem_file_give_the_same_plan(
    leanfed: Leanfed, tmp_path: Path, asked: dict[str, Any]
) -> None:
    told = json.loads(json.dumps(answer(Question.of(asked)), allow_nan=False))
    words = shlex.split(told["command"])
    if "fleet" in asked:
        (tmp_path / words[words.index("--fleet") + 1]).write_text(CSV)
    (tmp_path / "problem.json").write_text(told["problem_file"])
    by_command = leanfed(*words[1:])
    way = ("--payload", asked.get("payload", "exact"), "--form", asked.get("form", "fast"))
    by_file = leanfed("plan", "problem.json", *way, "--json")
    assert by_command.returncode == (3 if told["plan"]["status"] == "infeasible" else 0), by_command.stderr
    for done in (by_command, by_file):
        assert {**json.loads(done.stdout), "seconds": 0} == {**told["plan"], "seconds": 0}


def test_names_stand_for_places() -> None:
    told = answer(
        Question.of({"form": "safe", "fleet": {"name": "f.csv", "text": CSV}, "changes": {"deadline_s": 0.3}})
    )
    assert [entry["name"] for entry in told["excluded"]] == [
        told["clients"]["name"][entry["client"]] for entry in told["plan"]["excluded"]
    ]
    assert told["excluded"][0]["name"] == "node 0"  # the slowest CPU
    assert "a deadline of 0.3 s is below" in told["excluded"][0]["why"]
    assert told["start"]["bandwidth_hz"] == 5e5


def test_the_joint_plan_is_the_best_of_the_rules() -> None:
    rules = {
        row["solver"]: row
        for row in answer(Question.of({"form": "safe", "clients": 30, "aim": {"k": 0.2, "r": 1}}))["rules"]
    }
    assert rules["certified"]["objective"] <= min(rules[name]["objective"] for name in ("equal", "fixed", "fastest"))
    assert rules["fast"]["worth_per_s"] >= max(rules[name]["worth_per_s"] for name in ("certified", "equal", "fixed"))
    assert rules["fixed"]["mean_k"] <= 0.2 + 1e-9
    assert rules["fastest"]["slowest_s"] <= rules["fixed"]["slowest_s"] + 1e-9


def test_the_price_is_the_slope_of_the_objective() -> None:
    question = Question.of({"form": "safe", "clients": 40})
    told, worth = answer(question), curves(question)["worth"]
    middle = BANDS // 2
    assert worth["objective"][middle] == told["plan"]["objective"]
    assert worth["price_per_mhz"][middle] == told["price_per_mhz"]
    wider = answer(Question.of({"form": "safe", "clients": 40, "changes": {"bandwidth_hz": 1.001e7}}))
    slope = (told["plan"]["objective"] - wider["plan"]["objective"]) / 0.01
    assert slope == pytest.approx(told["price_per_mhz"], rel=0.05)
    assert worth["objective"] == sorted(worth["objective"], reverse=True)


def test_the_sliders_start_at_the_problem_of_the_command_line() -> None:
    start = presets()
    shared = {name: start["shared"][name] for name in ("bandwidth_hz", "theta1", "theta2")} | start["forms"]["fast"]
    moved = answer(Question.of({"changes": {**shared, **start["models"]["lenet5"]}, "radius_m": 200}))
    assert moved["command"] == "leanfed plan --fleet paper --model lenet5 --seed 0 --json"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"clients": 0}, "clients: Input should be greater than or equal to 1"),
        ({"clients": MOST_CLIENTS + 1}, f"clients: Input should be less than or equal to {MOST_CLIENTS}"),
        ({"model": "lenet"}, "did you mean 'lenet5'"),
        ({"payload": "exakt"}, "did you mean 'exact'"),
        ({"changes": {"deadline": 1}}, "did you mean 'deadline_s'"),
        ({"changes": {"channel_gain": 1}}, "Unknown slider"),
        ({"changes": {"theta1": float("nan")}}, "finite"),
        ({"changes": {"base_size": 0}}, "base_size of client 0 is 0"),
        ({"colour": 1}, "colour: Extra inputs"),
        ([], "the question"),
        ({"radius_m": 0.5}, "radius_m is 0.5"),
        ({"fleet": {"name": "f.txt", "text": CSV}}, "does not end in .csv"),
        ({"fleet": {"name": "f.csv", "text": ""}}, "f.csv is not a readable table"),
        ({"fleet": {"name": "f.csv", "text": CSV.replace(",23,", ",loud,", 1)}}, "f.csv row 1: power_dbm is 'loud'"),
        ({"fleet": {"name": "f.csv", "text": CSV}, "clients": 9}, "holds 8 devices for 9 clients"),
        ({"fleet": {"name": "f.csv", "text": CSV}, "radius_m": 100}, "Leave one of them out"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(asked: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer(Question.of(asked))


def test_a_fleet_beyond_the_pages_limit_is_sent_to_the_command_line() -> None:
    rows = "\n".join(f"{n},1e-10,0.1,1e9" for n in range(MOST_CLIENTS + 1))
    with pytest.raises(InputError, match="which has no such limit"):
        answer(Question.of({"fleet": {"name": "f.csv", "text": "device,gain,power_w,cpu_hz\n" + rows}}))
