"""axe-core, the accessibility checker: fetched once by npm into the test cache, never kept in the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

RELEASE = "4.14.0"
FOLDER = Path(tempfile.gettempdir()) / f"leanfed-axe-{RELEASE}-{os.getuid()}"
GRAVE = ("serious", "critical")


def axe_script() -> str:
    """The checker's script; the test is skipped where it can be had neither from the cache nor from npm."""
    script = FOLDER / "axe.min.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed, and axe-core has not been fetched before")
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        fetched = subprocess.run(
            [npm, "pack", f"axe-core@{RELEASE}"], cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False
        )
        if fetched.returncode:
            pytest.skip(f"npm cannot fetch axe-core: {fetched.stderr.strip().splitlines()[-1:]}")
        with tarfile.open(FOLDER / f"axe-core-{RELEASE}.tgz") as packed:
            content = packed.extractfile("package/axe.min.js")
            assert content is not None
            script.write_bytes(content.read())
    return script.read_text(encoding="utf-8")


def grave_faults(page: Page) -> list[str]:
    """Serious and critical faults of a page as it stands, one line each; the page must be opened with bypass_csp."""
    page.add_script_tag(content=axe_script())
    run = "axe.run(document, {resultTypes: ['violations']}).then((told) => told.violations)"
    found: list[dict[str, Any]] = page.evaluate(run)
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'][:160] for node in fault['nodes'][:4]]}"
        for fault in found
        if fault["impact"] in GRAVE
    ]
