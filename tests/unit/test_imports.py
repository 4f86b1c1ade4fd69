"""The drawing of the rooms stays true: imports only go down, and the light rooms stay light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "leanfed"
VOCABULARY = {
    "errors",
    "files",
    "interpreter",
    "locks",
    "manifest",
    "quantities",
    "records",
    "registry",
    "results",
    "streams",
}
MAY_IMPORT = {
    "tasks": VOCABULARY,
    "compression": VOCABULARY,
    "wireless": VOCABULARY,
    "theory": VOCABULARY | {"tasks"},
    "charts": VOCABULARY,
    "allocation": VOCABULARY | {"theory", "wireless"},
    "algorithms": VOCABULARY | {"tasks", "compression"},
}
MAY_IMPORT["rounds"] = VOCABULARY | {"algorithms", "allocation", "theory", "tasks", "compression", "wireless"}
MAY_IMPORT["simulation"] = MAY_IMPORT["rounds"] | {"rounds"}
MAY_IMPORT["runs"] = MAY_IMPORT["simulation"] | {"simulation", "charts"}
MAY_IMPORT["reproduction"] = MAY_IMPORT["runs"] | {"runs"}
MAY_IMPORT["deployment"] = MAY_IMPORT["runs"] | {"runs"}
MAY_IMPORT["report"] = VOCABULARY | {"charts", "allocation", "wireless"}
MAY_IMPORT["cli"] = MAY_IMPORT["runs"] | {"runs", "reproduction", "deployment", "report"}
VOCABULARY_MAY_IMPORT = {
    "errors": set(),
    "interpreter": set(),
    "streams": set(),
    "quantities": {"errors"},
    "records": {"errors"},
    "registry": {"errors"},
    "files": {"errors"},
    "locks": {"errors", "files"},
    "manifest": {"errors", "files"},
    "results": {"errors", "files", "locks", "manifest", "quantities"},
}
LIGHT = [
    *("leanfed", "leanfed.results", "leanfed.wireless", "leanfed.allocation", "leanfed.cli"),
    *("leanfed.charts.curves", "leanfed.charts.cell", "leanfed.theory.bound", "leanfed.theory.recorded"),
    *("leanfed.deployment.door.proxy", "leanfed.deployment.operations.launch", "leanfed.deployment.operations.child"),
    *("leanfed.report.page", "leanfed.report.data", "leanfed.report.live.server", "leanfed.report.planner.curves"),
    *("leanfed.allocation.bench", "leanfed.allocation.what_if", "leanfed.allocation.energy"),
    *("leanfed.deployment.operations.status", "leanfed.tasks.inventory"),
]


def imported_rooms(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("leanfed.")}
    return found


@pytest.mark.parametrize("room", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"))
def test_a_room_imports_only_downwards(room: str) -> None:
    for file in (PACKAGE / room).rglob("*.py"):
        upward = imported_rooms(file) - MAY_IMPORT[room] - {room}
        assert not upward, f"{file.relative_to(PACKAGE)} imports {sorted(upward)}"


@pytest.mark.parametrize("module", sorted(VOCABULARY))
def test_the_vocabulary_knows_no_room(module: str) -> None:
    assert imported_rooms(PACKAGE / f"{module}.py") <= VOCABULARY_MAY_IMPORT[module]


def test_every_module_at_the_top_is_known() -> None:
    top = {p.stem for p in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert top == VOCABULARY


def test_only_the_planner_of_the_report_knows_allocation_and_wireless() -> None:
    report = PACKAGE / "report"
    for file in report.rglob("*.py"):
        if file.relative_to(report).parts[0] not in ("planner", "live"):
            assert not imported_rooms(file) & {"allocation", "wireless"}, file.relative_to(PACKAGE)


def test_a_report_is_made_without_the_solver() -> None:
    check = "import sys, leanfed.report.page, leanfed.report.data; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numba", "cvxpy", "scipy", "leanfed.allocation", "leanfed.wireless"} & set(told)


def test_light_modules_do_not_load_torch() -> None:
    """In one process, for starting Python costs more than the imports; it names the first that loads torch."""
    check = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(name)
"""
    ended = subprocess.run([sys.executable, "-c", check], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_linear_algebra_is_asked_for_bits_that_do_not_depend_on_neighbours() -> None:
    """With AVX-512 it would take other paths for other numbers of clients; what the user asked for stays."""
    told = "import os, leanfed; print(os.environ['MKL_CBWR'])"
    asked = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    for given, expected in (({}, "AUTO,STRICT"), ({"MKL_CBWR": "COMPATIBLE"}, "COMPATIBLE")):
        ended = subprocess.run([sys.executable, "-c", told], env={**asked, **given}, capture_output=True, check=True)
        assert ended.stdout.decode().strip() == expected
