"""What is dear to make and only read: made once for all workers of a test run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of this test run share."""
    own = factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills: whoever asks first makes it, the others wait, nobody may change it."""
    folder = common_folder(factory) / name
    done = folder.with_name(f"{name}.done")
    with FileLock(folder.with_name(f"{name}.lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # half made by a test that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
