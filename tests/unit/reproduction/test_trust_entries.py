"""The entries on privacy and on rules under attack: their runs, their numbers, and claims that are about them."""

from __future__ import annotations

from pathlib import Path

import pytest

import leanfed
import leanfed.reproduction.paper  # fills the catalogue
from leanfed.reproduction.catalogue import ENTRIES, Job, Outcome
from leanfed.reproduction.judging import key_of
from leanfed.reproduction.library import FinishedRun
from leanfed.results import RunFolder
from leanfed.runs.settings import Settings


@pytest.mark.parametrize(("name", "runs", "claims"), [("privacy", 60, 3), ("robust", 368, 8)])
def test_every_number_of_a_claim_is_one_of_the_entrys(name: str, runs: int, claims: int) -> None:
    entry = ENTRIES[name]
    scale = entry.scale(1, quick=False)
    jobs = list(entry.jobs(scale))
    assert scale.seeds == (50,)
    assert len(jobs) == runs == len({key_of(job.labels) for job in jobs})
    known = {key_of(job.labels) for job in jobs}
    assert len(entry.claims) == claims
    for claim in entry.claims:
        for labels in claim.rule.cells():
            assert key_of({k: v for k, v in labels.items() if k != "quantity"}) in known


def test_a_quick_run_of_each_is_measured() -> None:
    for name, found in (("privacy", {"accuracy", "worst decile"}), ("robust", {"backdoor success"})):
        entry = ENTRIES[name]
        scale = entry.scale(None, quick=True)
        job = next(job for job in entry.jobs(scale) if name == "privacy" or job.labels["attack"] == "backdoor")
        measured = entry.measure([Outcome(job, finished(job))], scale)
        assert found <= {labels["quantity"] for labels, _, _ in measured.values}
        assert len(measured.lines) == (name == "privacy")


def finished(job: Job) -> FinishedRun:
    shorter = Settings.from_values({**job.settings.resolved(), "rounds": 5})
    run = leanfed.run(shorter, progress=False)
    return FinishedRun(run.settings, RunFolder(Path("nowhere")), run.rounds)
