"""The study over all methods takes the learning rates that its development chose."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STUDY, DEVELOPMENT = (
    tomllib.loads((ROOT / "examples" / f"{name}.toml").read_text()) for name in ("methods", "methods-development")
)
SCORES: dict[str, dict[str, float]] = json.loads((ROOT / "results" / "methods" / "development.json").read_text())


def test_every_row_has_the_rate_that_scored_best() -> None:
    for name, row in STUDY["methods"].items():
        scores = SCORES[name]
        assert f"{row['training']['learning_rate']:g}" == max(scores, key=scores.__getitem__), name


def test_the_development_tries_the_rows_of_the_study_on_another_seed() -> None:
    bare = {name: {k: v for k, v in row.items() if k != "training"} for name, row in STUDY["methods"].items()}
    assert bare == DEVELOPMENT["methods"]
    assert SCORES.keys() == bare.keys()
    assert not set(STUDY["seeds"]) & set(DEVELOPMENT["seeds"])
    tried = {f"{rate:g}" for rate in DEVELOPMENT["grid"]["training.learning_rate"]}
    assert all(set(scores) <= tried for scores in SCORES.values())
