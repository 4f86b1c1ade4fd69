"""A new method, data set, model and rule of aggregation: one file and one line each, as CONTRIBUTING shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leanfed
from leanfed.algorithms import ALGORITHMS
from leanfed.rounds.aggregation import AGGREGATIONS
from leanfed.runs.settings import Settings
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.models import MODELS
from leanfed.tasks.user_data import import_file
from tests.unit.deployment.fleets import Trial, settings_of
from tests.unit.deployment.identity import as_run_one

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
TITLES = {"prox": "A method", "stripes": "A data set", "perceptron": "A model", "bounded": "A rule of aggregation"}
ENGINES = ("reference", "streamed", "batched", "batched-torch")


def example(title: str) -> str:
    """The Python block under a heading of CONTRIBUTING."""
    text = CONTRIBUTING.read_text()
    return re.search(rf"### {title}\n.*?```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture
def extended(tmp_path: Path) -> Iterator[None]:
    """The examples of CONTRIBUTING as a user's own files, each named once by `--import`."""
    for name, title in TITLES.items():
        file = tmp_path / f"{name}.py"
        file.write_text(example(title))
        import_file(file)
    yield
    ALGORITHMS.remove("pulled")
    AGGREGATIONS.remove("bounded")
    DATASETS.remove("stripes")
    MODELS.remove("perceptron")


@pytest.mark.usefixtures("extended")
def test_the_examples_of_contributing_work_together() -> None:
    settings = Settings.from_values(
        {
            "rounds": 30,
            "task": {"dataset": "stripes", "model": "perceptron", "partition": {"kind": "iid", "clients": 4}},
            "algorithm": {"name": "pulled", "mu": 0.01},
            "aggregation": {"name": "bounded", "norm": 5.0},
        }
    )
    run = leanfed.run(settings)
    assert run.accuracy > 0.95
    assert run.summary["majority_guess"] < 0.7


@pytest.mark.usefixtures("extended")
def test_a_method_and_a_rule_of_ones_own_run_on_every_engine_and_on_a_fleet(tmp_path: Path) -> None:
    training = {"batch_size": 8, "local_steps": 3}
    own = {"algorithm": {"name": "pulled"}, "aggregation": {"name": "bounded"}, "training": training}
    losses = {}
    for engine in ENGINES:
        settings = settings_of(**own, run={"engine": engine, "threads": 1})
        losses[engine] = leanfed.run(settings).rounds["train_loss"].to_list()
    trial = Trial(settings_of(**own), tmp_path, {"fleet": "profile"})
    with as_run_one():
        trial.play()
    assert trial.losses() == losses["reference"] == losses["streamed"]
    for engine in ENGINES[2:]:
        assert losses[engine] == pytest.approx(losses["reference"], rel=1e-4)
    whole = leanfed.run(settings_of(**own | {"aggregation": {"name": "mean"}})).rounds["train_loss"].to_list()
    assert whole != losses["reference"]


def test_in_the_package_each_is_one_file_and_one_line(tmp_path: Path) -> None:
    """The package is copied, a file and a line added for each; nothing else is touched, and it is known by name."""
    package = tmp_path / "leanfed"
    shutil.copytree(ROOT / "src" / "leanfed", package, ignore=shutil.ignore_patterns("__pycache__"))
    for title, room, name in (
        ("A method", "algorithms", "prox"),
        ("A rule of aggregation", "rounds", "bounded"),
        ("An allocator", "allocation", "by_weight"),
    ):
        (package / room / f"{name}.py").write_text(example(title))
        with (package / room / "__init__.py").open("a") as init:
            init.write(f"import leanfed.{room}.{name}\n")
    joint = {"solver": "by-weight", "form": "safe", "rule": "joint"}
    checks = ({"algorithm": {"name": "pulled"}}, {"aggregation": {"name": "bounded"}}, {"allocation": joint})
    code = (
        "from leanfed.runs.settings import Settings; import leanfed; print(leanfed.__file__)\n"
        f"for check in {checks!r}: Settings(**check)"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
