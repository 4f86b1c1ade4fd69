"""Every example in a docstring is run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
MODULES = [
    ".".join(file.relative_to(SOURCE).with_suffix("").parts)
    for file in sorted(SOURCE.rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0
