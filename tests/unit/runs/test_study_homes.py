"""Where a study looks for a run."""

from __future__ import annotations

import json
from pathlib import Path

from leanfed.runs.settings import Settings
from leanfed.runs.study import home_of

SETTINGS = Settings.from_values({"name": "FedAvg, tuned", "rounds": 3})


def kept(folder: Path, name: str, values: dict[str, object]) -> Path:
    home = folder / name
    home.mkdir(parents=True)
    (home / "settings.json").write_text(json.dumps(values))
    return home


def test_a_run_of_an_older_version_is_found_without_settings_that_are_new(tmp_path: Path) -> None:
    values = SETTINGS.resolved()
    del values["radio"]["values"]
    home = kept(tmp_path, "fedavg-tuned-0-0123456789", values)
    assert home_of(SETTINGS, tmp_path) == home


def test_a_run_of_other_content_is_not_taken(tmp_path: Path) -> None:
    values = {**SETTINGS.resolved(), "rounds": 4}
    other = kept(tmp_path, "fedavg-tuned-0-0123456789", values)
    unreadable = kept(tmp_path, "fedavg-tuned-0-9876543210", {"rounds": "many"})
    assert home_of(SETTINGS, tmp_path) not in (other, unreadable)
    assert home_of(SETTINGS, tmp_path).name.startswith("fedavg-tuned-0-")
