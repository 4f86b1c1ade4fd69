"""Which missing run is carried out first: by the turn of the jobs that read it, then the longest."""

from __future__ import annotations

from pathlib import Path

import leanfed.reproduction.paper  # noqa: F401  (fills the catalogue)
from leanfed.reproduction.catalogue import ENTRIES, Job
from leanfed.reproduction.headline import SHORT
from leanfed.reproduction.library import RunLibrary
from leanfed.reproduction.reproduce import missing
from leanfed.runs.settings import Settings


def job(turn: int, *, seed: int = 0, rounds: int = 2) -> Job:
    return Job({}, Settings.from_values({"seed": seed, "rounds": rounds}), turn=turn)


def test_a_lower_turn_goes_first_then_the_longer_run_then_the_order_of_the_jobs(tmp_path: Path) -> None:
    jobs = [job(1, seed=1), job(0, seed=2), job(0, seed=3, rounds=5), job(1, seed=4, rounds=9), job(0, seed=5)]
    assert [one.seed for one in missing(jobs, RunLibrary(tmp_path))] == [3, 2, 5, 4, 1]


def test_a_run_that_two_jobs_read_has_the_lower_turn_and_the_greater_length(tmp_path: Path) -> None:
    jobs = [job(0, seed=1), job(1, seed=2, rounds=3), job(2, seed=2, rounds=7), job(1, seed=3, rounds=5)]
    found = missing(jobs, RunLibrary(tmp_path))
    assert [(one.seed, one.rounds) for one in found] == [(1, 2), (2, 7), (3, 5)]


def test_the_rows_of_readme_are_run_on_all_seeds_before_the_rest_of_their_table(tmp_path: Path) -> None:
    jobs = ENTRIES["fair"].jobs(ENTRIES["fair"].scale(2, quick=False))
    first = missing(jobs, RunLibrary(tmp_path))[:80]  # ten rows, four partitions, two seeds
    assert [one.seed for one in first] == [20] * 40 + [21] * 40
    named = {one.name.rpartition(", ")[0] for one in first}
    assert set(SHORT) <= named and len(named) == 10
