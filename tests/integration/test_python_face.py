"""The Python face: names, types, reading runs, their look, methods and packages of one's own."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import leanfed
from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.errors import InputError, SettingsError, StorageError
from leanfed.rounds.aggregation import AGGREGATIONS
from leanfed.runs.packaged import packaged, settings_file
from leanfed.runs.watching import round_bar
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.models import MODELS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
TOYS = """
from typing import Literal

import numpy as np
import torch
from torch import nn

import leanfed
from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import Updates
from leanfed.algorithms.local import local_steps
from leanfed.algorithms.uploads import Dense
from leanfed.rounds.aggregation import Aggregation


class Halved(Algorithm):
    name: Literal["halved"] = "halved"

    def client_update(self, shared, cohort, learner):
        run = local_steps(shared, cohort, learner)
        return Updates(Dense(run.gradient / 2, len(shared)), run.private, run.memory, run.loss, run.samples)


class Middle(Aggregation):
    name: Literal["middle"] = "middle"

    def combine(self, size, gamma, uploads):
        return torch.stack([upload.dense() for upload in uploads]).median(0).values


def add_dots():
    inputs = np.random.default_rng(0).normal(size=(100, 2))
    leanfed.add_arrays("dots", inputs, (inputs.sum(1) > 0).astype(int), client=np.arange(100) % 4)


def add_dot():
    leanfed.add_model("dot", lambda n: nn.Sequential(nn.Linear(2, 4), nn.Linear(4, n)), split="0")


def forgets():
    pass
"""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    registries = (DATASETS, MODELS, ALGORITHMS, AGGREGATIONS)
    before = [dict(registry._members) for registry in registries]
    yield
    for registry, members in zip(registries, before, strict=True):
        registry._members = members


def block(mark: str) -> str:
    return re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)[1]


def test_names_complete_and_checkers_see_the_same() -> None:
    names = set(leanfed._PUBLIC)
    assert names <= set(dir(leanfed))
    tree = ast.parse((ROOT / "src/leanfed/__init__.py").read_text())
    seen = {
        alias.asname: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name: module for name, module in seen.items() if name} == leanfed._PUBLIC
    assert (ROOT / "src/leanfed/py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        leanfed.nothing  # noqa: B018


def test_a_run_is_read_back_short_in_a_line_and_whole_in_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(block("example: read"), scope)
    run, again, (only,), frame = (scope[name] for name in ("run", "again", "everything", "frame"))
    assert repr(run) == repr(again).replace("PosixPath", "")
    assert run.rounds.equals(again.rounds)
    assert only.summary == {**run.summary, "format": 1}
    line = repr(run)
    assert len(line) < 300
    assert line.startswith("<Run 'run': flpdsp on mnist-5k (IID), 2 rounds: accuracy 0.")
    assert "<th>majority guess</th>" in run._repr_html_()
    assert frame["accuracy"].tolist() == run.rounds["accuracy"].to_list()
    # A run that was stopped is read as far as it got.
    for name in ("summary.json", "rounds.parquet", "clients.parquet", "evaluations.parquet"):
        (tmp_path / "runs/first" / name).unlink()
    stopped = leanfed.read("runs/first")
    assert not stopped.finished
    assert stopped.score == run.score
    assert stopped.summary["energy_j"] == pytest.approx(run.summary["energy_j"])
    with pytest.raises(StorageError, match="holds no run"):
        (tmp_path / "empty").mkdir()
        leanfed.runs(tmp_path / "empty")


def test_a_bar_follows_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    with round_bar("a run", 3) as listen:
        listen(SimpleNamespace(row={"accuracy": 0.5, "loss": 1.0}, progress=SimpleNamespace(round=2)))
    assert "a run" in capsys.readouterr().err


def test_only_methods_are_methods() -> None:
    with pytest.raises(InputError, match="must be a subclass"):
        leanfed.add_method("odd", dict)  # type: ignore[arg-type]


def test_the_method_of_the_page_is_fedprox() -> None:
    scope: dict[str, Any] = {}
    exec(block("example: method"), scope)
    assert scope["run"].settings.algorithm.model_dump() == {"pull": 0.5, "name": "pulled"}
    assert issubclass(ALGORITHMS["pulled"], Algorithm)


def test_a_package_outside_the_tree_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip would install it: a module, and its metadata with the entry points of the page."""
    (tmp_path / "leanfed_toys.py").write_text(TOYS)
    about = tmp_path / "leanfed_toys-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: leanfed-toys\nVersion: 1.0\n")
    lines = re.sub(r'\[project\.entry-points\."(.*?)"\]', r"[\1]", block("entry points"))
    lines = re.sub(r'= "(.*?)".*', r"= \1", lines) + "[leanfed.losses]\n"
    more = "\n[leanfed.datasets]\n" if "[leanfed.datasets]" not in lines else ""
    broken = lines.replace(
        "[leanfed.models]", "absent = leanfed_toys:nothing\nlazy = leanfed_toys:forgets\n[leanfed.models]"
    )
    (about / "entry_points.txt").write_text(broken + more)
    assert "halved" not in ALGORITHMS
    monkeypatch.syspath_prepend(tmp_path)
    assert {"halved", "middle", "dots", "dot"} <= {*ALGORITHMS, *AGGREGATIONS, *DATASETS, *MODELS}
    task = {"dataset": "dots", "model": "dot", "partition": {"kind": "column"}}
    values = {"rounds": 3, "task": task, "algorithm": {"name": "halved"}, "aggregation": {"name": "middle"}}
    run = leanfed.run(leanfed.Settings.from_values(values))
    assert (run.summary["algorithm"], run.summary["dataset"], run.summary["clients"]) == ("halved", "dots", 4)
    with pytest.raises(SettingsError, match="of the package 'leanfed-toys' cannot be loaded"):
        DATASETS["absent"]
    with pytest.raises(SettingsError, match="called to register the data set 'lazy', and did not"):
        DATASETS["lazy"]
    with pytest.raises(SettingsError, match="did you mean 'halved'"):
        ALGORITHMS["halve"]


def test_packaged_settings_have_names(tmp_path: Path) -> None:
    assert leanfed.Settings.from_toml(settings_file("mnist_class2")).task.dataset == "mnist"
    assert "joint_class2" in packaged()
    with pytest.raises(StorageError, match="did you mean 'mnist_class2'"):
        settings_file("mnist_clas2")
    assert settings_file(tmp_path / "own.toml") == tmp_path / "own.toml"


def test_the_bare_command_helps() -> None:
    done = subprocess.run([sys.executable, "-m", "leanfed"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert "--install-completion" in done.stdout
