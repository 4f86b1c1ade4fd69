"""Settings drawn from the schema, valid and damaged: taken, or refused in words, in time.

A few hundred run always, those of tests/corpora/settings every time; `-m slow` draws ten thousand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.draws import Draws, draw
from tests.chaos.generated import _damaged

CORPUS = sorted((Path(__file__).parents[1] / "corpora" / "settings").glob("*.json"))


def test_some_settings_are_taken_or_refused_and_run_or_say_why_not(tmp_path: Path) -> None:
    checked = Draws(tmp_path, every=30)
    draw(200, 1, checked)
    assert checked.wrong == []
    assert min(checked.counts["taken"], checked.counts["refused"]) > 20


@pytest.mark.slow
def test_ten_thousand_settings_are_taken_or_refused_and_run_or_say_why_not(tmp_path: Path) -> None:
    checked = Draws(tmp_path, every=1)
    draw(10_000, 0, checked)
    assert checked.wrong == []
    assert checked.counts["settings"] == 10_000


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_settings_that_once_failed(file: Path, tmp_path: Path) -> None:
    checked = Draws(tmp_path, every=1)
    checked.check(json.loads(file.read_text(encoding="utf-8")))
    checked.look()
    assert checked.wrong == []


def test_a_wrong_table_put_twice_is_never_put_into_itself() -> None:
    wrong: list[Any] = [{}, None, None]
    wrong[1] = wrong[2] = wrong[0]
    made = _damaged({}, [0, 1, 1], wrong)
    assert wrong[0] == {}
    assert json.loads(json.dumps(made)) == made
