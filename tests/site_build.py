"""The documentation site, built once for all workers of a test run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.shared import common_folder

ROOT = Path(__file__).resolve().parents[1]


def built_site(factory: pytest.TempPathFactory) -> Path:
    """The folder of `mkdocs build --strict`; whoever asks first builds it, a failure is told to everyone who asks."""
    common = common_folder(factory)
    site, failed = common / "site", common / "site-failed.txt"
    with FileLock(common / "site.lock"):
        if failed.exists():
            pytest.fail(failed.read_text(encoding="utf-8"))
        if not (site / "index.html").exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                failed.write_text(done.stdout + done.stderr, encoding="utf-8")
                pytest.fail(done.stdout + done.stderr)
    return site
