"""A new allocator: one file and one line, as CONTRIBUTING shows, in a plan, in a run and in the conformance battery."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from leanfed.allocation import ALLOCATORS
from leanfed.tasks.user_data import import_file
from tests.conformance import test_allocators as battery
from tests.integration.conftest import Leanfed
from tests.integration.test_extension import example

SETTINGS = """
rounds = 2
[task.partition]
kind = "iid"
clients = 4
[allocation]
rule = "joint"
form = "safe"
solver = "by-weight"
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Iterator[Path]:
    """The example of CONTRIBUTING as a user's own file; it is taken out of the registry again."""
    file = tmp_path / "by_weight.py"
    file.write_text(example("An allocator"))
    yield file
    if "by-weight" in ALLOCATORS:
        ALLOCATORS.remove("by-weight")


def test_a_plan_is_made_with_it(leanfed: Leanfed, own_file: Path) -> None:
    cell = ("plan", "--fleet", "paper", "--clients", "4", "--solver", "by-weight", "--json")
    done = leanfed(*cell, "--import", own_file)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["solver"], told["l"]) == ("by-weight", [0.25] * 4)
    assert told["relative_gap"] >= 0


def test_a_run_is_planned_by_it(leanfed: Leanfed, own_file: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    done = leanfed("run", tmp_path / "settings.toml", "--out", tmp_path / "run", "--import", own_file, "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["solver"] for event in events if event["event"] == "plan"] == ["by-weight"] * 2


def test_without_its_file_the_name_is_refused_with_the_known_ones(leanfed: Leanfed, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    done = leanfed("run", tmp_path / "settings.toml", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "allocation.solver is 'by-weight', but no allocator has that name: known: certified, dca," in done.stderr
    assert leanfed("plan", "--fleet", "paper", "--solver", "by-weight").returncode == 2


def test_the_help_of_plan_lists_what_is_registered(leanfed: Leanfed) -> None:
    shown = " ".join(leanfed("plan", "--help").stdout.replace("│", " ").split())
    assert f"are planned: {', '.join(ALLOCATORS)}; or your own" in shown


def test_the_battery_takes_it_in(own_file: Path) -> None:
    import_file(own_file)
    for name in battery.PROBLEMS:
        for payload in ("exact", "paper"):
            battery.test_plans_are_feasible_and_say_so_truly("by-weight", name, payload)
    battery.test_the_same_input_gives_the_same_plan_and_stays_as_it_was("by-weight")
    battery.test_nobody_feasible_is_a_status_for_everyone("by-weight")
    battery.test_output_is_plain_json("by-weight")
