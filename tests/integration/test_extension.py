"""A new method, a new data set and a new model: one file and one line each, as CONTRIBUTING shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leanfed
from leanfed.algorithms import ALGORITHMS
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.models import MODELS

CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


def example(title: str) -> str:
    """The Python block under a heading of CONTRIBUTING."""
    text = CONTRIBUTING.read_text()
    return re.search(rf"### {title}.*?```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture
def extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The three examples of CONTRIBUTING as files, each imported by one line."""
    for module, title in [("halves", "A method"), ("stripes", "A data set"), ("perceptron", "A model")]:
        (tmp_path / f"{module}.py").write_text(example(title))
    monkeypatch.syspath_prepend(tmp_path)
    import halves  # noqa: F401
    import perceptron  # noqa: F401
    import stripes  # noqa: F401

    yield
    ALGORITHMS.remove("half-step")
    DATASETS.remove("stripes")
    MODELS.remove("perceptron")
    for module in ("halves", "stripes", "perceptron"):
        sys.modules.pop(module)


@pytest.mark.usefixtures("extended")
def test_the_examples_of_contributing_work_together() -> None:
    settings = leanfed.Settings.from_values(
        {
            "rounds": 30,
            "task": {
                "dataset": "stripes",
                "model": "perceptron",
                "partition": {"kind": "iid", "clients": 4},
            },
            "algorithm": {"name": "half-step", "shrink": 0.5},
        }
    )
    run = leanfed.run(settings)
    assert run.accuracy > 0.95
    assert run.summary["majority_guess"] < 0.7
