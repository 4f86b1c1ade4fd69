"""Runs in parallel processes: what a dead one held is carried out by another."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from leanfed.files import sha256_of
from leanfed.runs.build import run
from leanfed.runs.settings import Settings
from leanfed.runs.workers import carry_out_all

RUN = {
    "rounds": 4,
    "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
    "training": {"batch_size": 4},
    "run": {"threads": 1, "engine": "streamed"},
}


@pytest.mark.waits
def test_the_run_of_a_killed_worker_is_resumed_by_another(tmp_path: Path) -> None:
    settings = Settings.from_values(RUN)
    killed, done = [], []

    def tell() -> None:
        if not killed:
            killed.extend(multiprocessing.active_children()[:1])
            os.kill(killed[0].pid, signal.SIGKILL)

    work = [(settings, tmp_path / name) for name in ("a", "b")]
    failures = carry_out_all(work, processes=2, data_dir=None, tell=tell, done=done.append)
    assert failures == []
    assert sorted(done) == [tmp_path / "a", tmp_path / "b"]
    run(settings, tmp_path / "undisturbed", progress=False)
    sums = {sha256_of(tmp_path / name / "weights.safetensors") for name in ("a", "b", "undisturbed")}
    assert len(sums) == 1
