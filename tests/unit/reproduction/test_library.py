"""Finished runs are found by what they are, wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import leanfed as package
from leanfed.files import read_json, write_json
from leanfed.reproduction.library import RunLibrary, content_key, job_digest, learning_key, two_currencies
from leanfed.runs.settings import Settings

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 6,
    "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
    "algorithm": {"name": "fedper"},
    "evaluation": {"every": 2},
    "run": {"threads": 1, "checkpoint_every": 6},
}


def tiny(**changes: Any) -> Settings:
    return Settings.from_values({**TINY, **changes})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run, two folders down."""
    folder = tmp_path_factory.mktemp("runs")
    package.run(tiny(), folder / "some" / "where")
    return folder


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"name": "other"}, True),
        ({"run": {"threads": 2, "checkpoint_every": 3, "stop_at_accuracy": 0.5}}, True),
        ({"rounds": 3, "evaluation": {"every": 1}}, True),
        (
            {"allocation": {"rule": "own", "form": "safe", "deadline_s": 3.0}},
            True,
        ),  # a method's own rates feel none of it
        ({"allocation": {"rule": "own", "bandwidth": "min-max"}}, False),
        ({"allocation": {"wait": "fastest"}}, False),
        ({"allocation": {"fastest": 0.3}}, True),
        ({"seed": 1}, False),
        ({"run": {"engine": "reference"}}, False),
        ({"run": {"engine": "streamed", "precision": "bfloat16"}}, False),
        ({"training": {"learning_rate": 0.05}}, False),
        ({"radio": {"cycles_per_sample": 9e6}}, False),
    ],
    ids=str,
)
def test_the_key_is_what_can_change_the_rounds(changes: dict[str, Any], same: bool) -> None:
    assert (content_key(tiny(**changes)) == content_key(tiny())) is same


def test_a_run_that_tested_a_panel_is_not_one_that_tested_everybody(tmp_path: Path) -> None:
    package.run(tiny(evaluation={"every": 2, "clients": 2}), tmp_path / "panel")
    library = RunLibrary(tmp_path)
    assert library.find(tiny(evaluation={"every": 2, "clients": 2})) is not None
    assert library.find(tiny()) is None


def test_a_joint_plan_feels_its_form() -> None:
    forms = [{"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint", "form": f}} for f in ("safe", "plain")]
    assert len({content_key(tiny(**form)) for form in forms}) == 2


@pytest.mark.parametrize(
    ("allocation", "same"),
    [({"form": "safe"}, True), ({"form": "fast", "settle": 0}, True), ({"form": "fast"}, False)],
    ids=str,
)
def test_rounds_count_where_plans_look_ahead(allocation: dict[str, Any], same: bool) -> None:
    joint = {"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint", **allocation}}
    assert (content_key(tiny(**joint, rounds=6)) == content_key(tiny(**joint, rounds=9))) is same


def test_who_is_waited_for_says_which_settings_count() -> None:
    def key(**allocation: Any) -> str:
        return content_key(tiny(allocation=allocation))

    assert key(wait="fastest") != key(wait="fastest", fastest=0.3)
    assert key(wait="fastest") == key(wait="fastest", deadline_s=3.0)
    assert key(wait="turns") != key(wait="turns", within_rounds=3)
    assert key(wait="turns") == key(wait="turns", settle=0.0)
    assert key(wait="pace") != key(wait="pace", deadline_s=3.0)
    assert key(wait="pace") == key(wait="pace", bandwidth="min-max")
    assert learning_key(tiny()) is not None
    assert learning_key(tiny(allocation={"wait": "pace"})) is None


def test_what_only_the_tuned_form_reads_makes_no_other_run_of_a_fast_one(tmp_path: Path) -> None:
    def joint(form: str, **allocation: Any) -> Settings:
        return tiny(algorithm={"name": "flpdsp"}, allocation={"rule": "joint", "form": form, **allocation}, rounds=2)

    assert content_key(joint("fast")) == content_key(joint("fast", head_steps_max=3))
    assert content_key(joint("tuned")) != content_key(joint("tuned", head_steps_max=3))
    package.run(joint("fast"), tmp_path / "run")
    kept = read_json(tmp_path / "run" / "settings.json")
    del kept["allocation"]["head_steps_max"]  # as before the form existed
    write_json(tmp_path / "run" / "settings.json", kept)
    assert RunLibrary(tmp_path).find(joint("fast")) is not None


@pytest.mark.parametrize(("section", "setting"), [("allocation", "settle"), ("algorithm", "head_steps")])
@pytest.mark.parametrize(("form", "found"), [("safe", True), ("fast", False)])
def test_a_fast_run_from_before_a_setting_existed_is_another_run(
    tmp_path: Path, form: str, found: bool, section: str, setting: str
) -> None:
    settings = tiny(algorithm={"name": "flpdsp"}, allocation={"rule": "joint", "form": form}, rounds=2)
    package.run(settings, tmp_path / "run")
    assert RunLibrary(tmp_path).find(settings) is not None
    kept = read_json(tmp_path / "run" / "settings.json")
    del kept[section][setting]
    write_json(tmp_path / "run" / "settings.json", kept)
    assert (RunLibrary(tmp_path).find(settings) is not None) is found


def test_a_fedmask_run_of_another_form_is_another_run(tmp_path: Path) -> None:
    settings = tiny(algorithm={"name": "fedmask", "pruning_steps": 1}, rounds=1)
    package.run(settings, tmp_path / "run")
    assert RunLibrary(tmp_path).find(settings) is not None
    kept = read_json(tmp_path / "run" / "settings.json")
    write_json(tmp_path / "run" / "settings.json", {**kept, "algorithm": {"name": "fedmask", "pruning_steps": 1}})
    assert RunLibrary(tmp_path).find(settings) is None


def test_the_digest_of_a_job_knows_where_it_ends() -> None:
    others = [{"rounds": 5}, {"evaluation": {"every": 3}}, {"run": {"stop_at_accuracy": 0.5}}]
    others += [{"run": {"stop_at_seconds": 5.0}}, {"run": {"stop_at_joules": 5.0}}]
    assert len({job_digest(tiny(**change)) for change in ({}, *others)}) == 6
    assert job_digest(tiny(name="x")) == job_digest(tiny())


@pytest.mark.parametrize(
    ("changes", "rounds", "tested"),
    [
        ({}, 6, [1, 3, 5]),
        ({"name": "other name", "run": {"threads": 2}}, 6, [1, 3, 5]),
        ({"rounds": 4}, 4, [1, 3]),
        ({"rounds": 6, "evaluation": {"every": 4}}, 6, [3, 5]),
        ({"run": {"stop_at_accuracy": 0.01}}, 2, [1]),
        ({"rounds": 9, "run": {"stop_at_accuracy": 0.01}}, 2, [1]),
    ],
    ids=str,
)
def test_a_run_serves_what_it_holds(runs: Path, changes: dict[str, Any], rounds: int, tested: list[int]) -> None:
    found = RunLibrary(runs).find(tiny(**changes))
    assert found is not None
    assert found.rounds.height == rounds
    assert found.rounds.filter(found.rounds["accuracy"].is_not_null())["round"].to_list() == tested
    assert found.core_seconds > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 7},
        {"rounds": 5},  # its last round was not evaluated
        {"evaluation": {"every": 1}},
        {"evaluation": {"every": 2, "per_client": True}},
        {"seed": 1},
        {"rounds": 9, "run": {"stop_at_accuracy": 1.0}},
    ],
    ids=str,
)
def test_a_run_does_not_serve_what_it_lacks(runs: Path, changes: dict[str, Any]) -> None:
    assert RunLibrary(runs).find(tiny(**changes)) is None


def test_a_stopped_run_is_the_beginning_of_the_whole_one(runs: Path, tmp_path: Path) -> None:
    asked = tiny(run={"threads": 1, "checkpoint_every": 6, "stop_at_accuracy": 0.01})
    stopped = package.run(asked, tmp_path / "stopped")
    assert stopped.summary["rounds"] == 2
    cut = RunLibrary(runs).find(asked)
    assert cut is not None
    assert cut.rounds.equals(stopped.rounds)
    assert RunLibrary(tmp_path).find(tiny()) is None
    assert package.run(asked).rounds.equals(stopped.rounds)  # in memory too
    assert package.resume(tmp_path / "stopped").rounds.equals(stopped.rounds)


def test_a_run_that_ended_with_its_budget_is_found_and_one_with_less_is_not(runs: Path, tmp_path: Path) -> None:
    spent = RunLibrary(runs).find(tiny())
    assert spent is not None
    seconds = spent.rounds["latency_s"].cum_sum()
    asked, less = (tiny(run={**TINY["run"], "stop_at_seconds": s}) for s in (seconds[3] - 1e-9, seconds[1] - 1e-9))
    found = RunLibrary(runs).find(asked)  # the beginning of the whole run
    package.run(asked, tmp_path / "own")
    alone = RunLibrary(tmp_path).find(asked)
    assert found is not None
    assert alone is not None
    assert found.rounds["round"].to_list() == alone.rounds["round"].to_list() == [0, 1, 2, 3]
    assert found.rounds["accuracy"].to_list() == alone.rounds["accuracy"].to_list()
    shorter = RunLibrary(tmp_path).find(less)
    assert shorter is not None
    assert shorter.rounds.height == 2
    assert RunLibrary(tmp_path).find(tiny(run={**TINY["run"], "stop_at_seconds": 1e6})) is None


def test_what_is_not_finished_or_not_understood_is_passed_over(runs: Path, tmp_path: Path) -> None:
    package.run(tiny(), tmp_path / "a")
    settings = read_json(tmp_path / "a" / "settings.json")
    write_json(tmp_path / "a" / "settings.json", {**settings, "unknown": 1})
    assert RunLibrary(tmp_path).find(tiny()) is None
    write_json(tmp_path / "a" / "settings.json", settings)
    assert RunLibrary(tmp_path).find(tiny()) is not None
    (tmp_path / "a" / "summary.json").unlink()
    assert RunLibrary(tmp_path).find(tiny()) is None
    assert RunLibrary(tmp_path / "nowhere").find(tiny()) is None


@pytest.mark.parametrize(
    ("old", "algorithm", "allocation", "mixed"),
    [
        ("operations", {"name": "flpdsp", "head_steps": 20}, {"rule": "own"}, True),
        ("operations", {"name": "flpdsp"}, {"rule": "joint", "form": "fast"}, True),  # the form chooses the steps
        ("operations", {"name": "flpdsp", "head_steps": 1}, {"rule": "joint", "form": "safe"}, False),
        ("operations", {"name": "fedper"}, {"rule": "own"}, False),
        ("weights", {"name": "flpdsp", "head_steps": 20}, {"rule": "own"}, False),
        (None, {"name": "flpdsp", "head_steps": 20}, {"rule": "own"}, False),
    ],
)
def test_runs_that_were_charged_in_two_currencies_are_not_taken_for_todays(
    old: str | None, algorithm: dict[str, object], allocation: dict[str, object], mixed: bool
) -> None:
    radio = {} if old is None else {"head_step": old}
    assert two_currencies({"radio": radio, "algorithm": algorithm, "allocation": allocation}) is mixed
