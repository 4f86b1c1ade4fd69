"""The entry that leaves parts of the tuned form out: what its rows change, and what they are set against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import leanfed.reproduction.paper  # noqa: F401  (fills the catalogue)
from leanfed.reproduction.catalogue import ENTRIES, Scale
from leanfed.reproduction.judging import key_of
from leanfed.reproduction.paper import parts
from leanfed.reproduction.paper.tuned import PAPERS, SLOW, TUNED, TURNS, cell
from tests.unit.reproduction import finished


def outcome(method: str, accuracy: Sequence[float], seconds: float) -> Any:
    return finished.outcome({"method": method, "partition": "Class-4", "fleet": PAPERS}, accuracy, seconds, 45)


def test_a_row_is_set_against_the_whole_form() -> None:
    curve = [0.5, *[0.98] * 5]
    runs = [outcome(TUNED, curve, 0.5), outcome("without turns", curve, 0.6), outcome("60 %", [0.6] * 6, 0.1)]
    found = {key_of(labels): value for labels, _, value in parts.measure(runs, Scale((45,))).values}
    shares = [found.get(key_of(cell(row, PAPERS, "Class-4", parts.SHARE, "90 %"))) for row in ("without turns", "60 %")]
    assert shares == [pytest.approx(1.2), None]
    assert key_of(cell(TUNED, PAPERS, "Class-4", parts.SHARE, "90 %")) not in found


def test_every_row_differs_from_the_whole_form_in_the_part_that_it_is_called_by() -> None:
    jobs = [job for job in ENTRIES["parts"].jobs(Scale((45,))) if job.labels["partition"] == "Class-4"]
    whole = {job.labels["fleet"]: job.settings for job in jobs if job.labels["method"] == TUNED}
    for job in jobs:
        fleet, method = job.labels["fleet"], job.labels["method"]
        mine, theirs = job.settings.resolved(), whole[fleet].resolved()
        changed = {name for name in mine if name != "name" and mine[name] != theirs[name]}
        if method == TUNED:
            assert not changed
        elif method == TURNS:
            assert changed == {"allocation", "algorithm"}  # a rule of its own
        else:
            assert len(changed) == 1 or "head steps" in method, method
    assert {job.labels["fleet"] for job in jobs} == set(parts.ALL)
    assert {job.settings.run.stop_at_seconds for job in jobs if job.labels["fleet"] == SLOW} == {60.0}
