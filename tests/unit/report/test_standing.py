"""What the list of runs says of settings that somebody has damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leanfed.report.live.progress import standing
from leanfed.results import RunFolder
from leanfed.runs.settings import Settings


@pytest.mark.parametrize("change", [{"seed": 1e999}, {"rounds": 1e999}, {"allocation": 5}, {"task": []}], ids=str)
def test_damaged_settings_are_said_to_be(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({**Settings().resolved(), **change}))
    told = standing("a", RunFolder(tmp_path)).to_json()
    assert told["state"] == "unreadable"
    assert "settings.json" in json.dumps(told)
