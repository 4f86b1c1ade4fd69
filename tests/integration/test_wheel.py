"""The built wheel, installed apart from the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_built_wheel_works_outside_the_source_tree(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("leanfed-*.whl")
    target = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    # -P and the first path entry keep the source tree out: the wheel must bring every module and settings file.
    check = (
        f"import sys; sys.path.insert(0, {str(target)!r}); import leanfed, leanfed.cli; "
        f"assert leanfed.__file__.startswith({str(target)!r}), leanfed.__file__; "
        "sys.argv = ['leanfed', '--help']; leanfed.cli.main()"
    )
    shown = subprocess.run(
        [sys.executable, "-P", "-c", check], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert "demo" in shown.stdout
    assert list(target.glob("leanfed/reproduction/configs/*.toml"))


@pytest.mark.slow
def test_the_same_tree_gives_the_same_bytes(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"]
    built = []
    for name, umask in (("here", 0o022), ("elsewhere", 0o077)):
        tree = tmp_path / name / "tree"
        tree.mkdir(parents=True)
        for part in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / part, tree / part)  # without its date
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", tree / "src", ignore=ignored, copy_function=shutil.copyfile)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        command = [*pip, "--wheel-dir", tree.parent, tree]
        subprocess.run(command, check=True, env=environment, umask=umask)
        (wheel,) = tree.parent.glob("leanfed-*.whl")
        built.append(wheel.read_bytes())
    assert built[0] == built[1]
