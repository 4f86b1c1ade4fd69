"""What SECURITY.md says of the long searches is what their last counts say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNTS: dict[str, dict[str, Any]] = json.loads((ROOT / "results" / "chaos" / "counts.json").read_text())
SECURITY = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
SAID = {
    "walk": lambda counts: f"{counts['walked']:,} faults in {len(counts['variants'])} kinds of runs of six rounds",
    "settings": lambda counts: f"{counts['settings']:,} settings drawn from the schema",
    "folders": lambda counts: f"{counts['folders']:,} damaged run folders",
    "kills": lambda counts: f"{counts['kills']:,} kills at random instants, {counts['unborn']:,} of them before",
}


@pytest.mark.parametrize("search", COUNTS)
def test_the_document_repeats_the_count_and_the_command(search: str) -> None:
    assert SAID[search](COUNTS[search]) in SECURITY
    assert COUNTS[search]["command"] in SECURITY
    assert COUNTS[search]["command"] in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("search", COUNTS)
def test_nothing_was_found_the_last_time(search: str) -> None:
    assert set(COUNTS[search]["found"].values()) == {0}


def test_the_walk_was_over_everything() -> None:
    walk = COUNTS["walk"]
    assert walk["walked"] == walk["cases"] == sum(sum(each["faults"].values()) for each in walk["variants"].values())
