"""Damaged run folders: every verb and the served pages read them or say what is wrong.

Ten run always, `-m slow` two thousand.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.chaos.commands import Answer, command
from tests.chaos.damage import damaged, damaged_json
from tests.chaos.folders import TOGETHER, Pictures, Whole, answers, beside, whole_folders


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folders")


@pytest.fixture(scope="module")
def wholes(root: Path) -> list[Whole]:
    return whole_folders(root)


@pytest.fixture(scope="module")
def runs(root: Path, wholes: list[Whole]) -> Path:
    return beside(root)


def troubles(cases: range, wholes: list[Whole], runs: Path) -> list[str]:
    pictures, step = Pictures(), min(len(cases), TOGETHER)
    said = (each for first in cases[::step] for each in answers(range(first, first + step), wholes, runs, pictures))
    return [f"{told}: {verb}: {answer.trouble}" for verb, told, answer in said if answer.trouble is not None]


def test_some_damaged_folders_are_read_or_explained(wholes: list[Whole], runs: Path) -> None:
    assert troubles(range(1, 11), wholes, runs) == []


def test_a_folder_whose_settings_are_another_file_is_refused_in_words(root: Path) -> None:
    folder = root / "exchanged"
    folder.mkdir()
    for content in ({"format": 1}, {"name": ["x"], "rounds": "many"}):
        (folder / "settings.json").write_text(json.dumps(content))
        answer = command("resume", folder)
        assert answer.trouble is None
        assert answer.code == 2
        assert "settings.json" in answer.said


@pytest.mark.slow
def test_two_thousand_damaged_folders_are_read_or_explained(wholes: list[Whole], runs: Path) -> None:
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
