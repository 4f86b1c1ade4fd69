"""Damaged run folders: every verb and the served pages read them or say what is wrong.

Ten run always, `-m slow` two thousand.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.chaos.commands import Answer
from tests.chaos.damage import damaged, damaged_json
from tests.chaos.folders import answers, beside, whole_folders


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folders")


@pytest.fixture(scope="module")
def wholes(root: Path) -> list[Path]:
    return whole_folders(root)


@pytest.fixture(scope="module")
def runs(root: Path, wholes: list[Path]) -> Path:
    return beside(root)


def troubles(cases: range, wholes: list[Path], runs: Path) -> list[str]:
    said = (each for case in cases for each in answers(case, wholes, runs))
    return [f"{what}: {answer.trouble}" for what, answer in said if answer.trouble is not None]


def test_some_damaged_folders_are_read_or_explained(wholes: list[Path], runs: Path) -> None:
    assert troubles(range(1, 11), wholes, runs) == []


@pytest.mark.slow
def test_two_thousand_damaged_folders_are_read_or_explained(wholes: list[Path], runs: Path) -> None:
    assert troubles(range(2_000), wholes, runs) == []


def test_a_traceback_a_hang_and_a_silent_failure_are_troubles() -> None:
    assert Answer(0, "").trouble is None
    assert Answer(2, "error: no").trouble is None
    for bad in (Answer(None, "hung: more than 60 s"), Answer(None, "raw: x"), Answer(1, "error: ours"), Answer(2, "")):
        assert bad.trouble is not None


def test_damage_follows_from_its_generator_and_changes_something() -> None:
    content = bytes(range(200))
    made = [damaged(content, random.Random(case)) for case in range(100)]
    assert made == [damaged(content, random.Random(case)) for case in range(100)]
    assert sum(one != content for one in made) > 90
    text = json.dumps({"a": 1, "b": {"c": [1, 2]}}).encode()
    assert len({damaged_json(text, random.Random(case)) for case in range(100)}) > 30
