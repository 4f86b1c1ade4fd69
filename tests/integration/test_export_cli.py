"""The verb `leanfed export`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import leanfed as package
from tests.integration.conftest import Leanfed


def test_the_verb_tells_what_it_made(leanfed: Leanfed, tmp_path: Path) -> None:
    task = {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}}
    package.run(package.Settings.from_values({"rounds": 1, "task": task}), tmp_path / "run")
    run, path = str(tmp_path / "run"), tmp_path / "two.pt2"
    made = leanfed("export", run, "--client", "2", "--format", "torch", "--out", str(path), "--json")
    told = json.loads(made.stdout)
    assert told["file"]["bytes"] == path.stat().st_size
    assert told["judged_by"] == "accuracy"
    refused = leanfed("export", run, "--format", "onyx")
    assert refused.returncode == 2
    assert "did you mean 'onnx'?" in refused.stderr
