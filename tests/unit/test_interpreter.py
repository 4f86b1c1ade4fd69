"""No process runs a module that merely lies in the current folder."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leanfed.deployment.operations.commands import environment
from leanfed.deployment.operations.supervise import ChildEndedError, Supervisor
from leanfed.interpreter import command, safe_children
from tests.planted import executed, plant

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "leanfed"
SPAWN = """
import multiprocessing
from leanfed.interpreter import safe_children
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=print, args=("in",))
    with safe_children():
        worker.start()
    worker.join()
"""
NESTED = "import random, subprocess, sys; subprocess.run([sys.executable, '-c', 'import click'])"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules in it that write down that they were run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return plant(tmp_path)


def test_planted_files_are_run_by_a_plain_python(hostile: Path) -> None:
    subprocess.run([sys.executable, "-c", "import random"], check=False)
    assert executed(hostile) == ["random"]


def test_a_module_of_ours_is_run_without_them(hostile: Path) -> None:
    told = subprocess.run(command("leanfed.cli", "--version"), capture_output=True, text=True, check=True).stdout
    assert told.startswith("leanfed ")
    assert executed(hostile) == []


def test_python_m_leanfed_leaves_the_current_folder(hostile: Path) -> None:
    call = [sys.executable, "-m", "leanfed", "--version"]
    assert subprocess.run(call, capture_output=True, text=True, check=True).stdout.startswith("leanfed ")
    assert executed(hostile) == []


def test_supervised_programs_and_their_children_run_without_them(hostile: Path) -> None:
    supervisor = Supervisor(hostile / "logs")
    with pytest.raises(ChildEndedError, match="code 0"), supervisor():
        supervisor.start("one", [sys.executable, "-c", NESTED], environment(hostile))
        supervisor.run(every=0.05)
    assert executed(hostile) == []


def test_spawned_workers_run_without_them(hostile: Path) -> None:
    file = hostile / "spawning.py"
    file.write_text(SPAWN)
    told = subprocess.run([sys.executable, "-P", str(file)], capture_output=True, text=True, check=True).stdout
    assert told == "in\n"
    assert executed(hostile) == []


def test_the_environment_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with safe_children():
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ


def test_every_start_of_a_process_goes_through_the_one_helper() -> None:
    for file in PACKAGE.rglob("*.py"):
        if file.name == "interpreter.py":
            continue
        lists = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, (ast.List, ast.Tuple))]
        texts = [item.value for node in lists for item in node.elts if isinstance(item, ast.Constant)]
        assert "-m" not in texts, f"{file.relative_to(PACKAGE)} starts Python by itself"
        if "get_context" in file.read_text():
            assert "safe_children()" in file.read_text(), f"{file.relative_to(PACKAGE)} starts workers by itself"
