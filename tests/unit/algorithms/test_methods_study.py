"""The study over all methods: every method is in it, and its page is made from its results."""

from __future__ import annotations

import runpy
from pathlib import Path

from leanfed.algorithms import ALGORITHMS
from leanfed.files import read_json
from leanfed.runs.study import read_study

ROOT = Path(__file__).resolve().parents[3]


def test_every_method_is_in_the_study() -> None:
    study, jobs = read_study(ROOT / "examples" / "methods.toml")
    names = {job.settings.algorithm.model_dump()["name"] for job in jobs}
    assert names == set(ALGORITHMS) - {"fedbn"}  # it refuses LeNet-5
    assert len(jobs) == 2 * len(study.seeds) * len(study.methods)


def test_the_page_is_made_from_the_committed_results() -> None:
    page = runpy.run_path(str(ROOT / "benchmarks" / "methods_page.py"))["page"]
    home = ROOT / "results" / "methods"
    assert (home / "README.md").read_text() == page(read_json(home / "study.json"))
