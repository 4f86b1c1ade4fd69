"""Where settings come from: every tag is about a setting that exists, and about the value it has."""

from __future__ import annotations

import pytest

from leanfed.results import leaves
from leanfed.runs.settings import Settings
from leanfed.runs.sources import OURS, PAPER, source_of, sources

PARTITIONS = [
    {"kind": "class", "classes_per_client": 2, "clients": 100},
    {"kind": "dirichlet", "alpha": 0.1, "clients": 100},
]
DEFAULTS = dict(leaves(Settings().resolved()))
FAST = dict(leaves(Settings.from_values({"allocation": {"rule": "joint", "form": "fast"}}).resolved()))


@pytest.mark.parametrize("key", sorted({*PAPER, *OURS}))
def test_every_tag_is_about_a_setting(key: str) -> None:
    known = [dict(leaves(Settings.from_values({"task": {"partition": p}}).resolved())) for p in PARTITIONS]
    assert any(key in values for values in known)


@pytest.mark.parametrize("key", sorted(OURS))
def test_our_values_are_the_defaults(key: str) -> None:
    assert (FAST if key == "algorithm.head_steps" else DEFAULTS)[key] == OURS[key][0]


def test_a_settings_meaning_that_says_assumed_or_estimated_is_tagged_so() -> None:
    for key, about in sources(Settings()).items():
        for tag in ("assumed", "estimated"):
            if tag in about["meaning"].lower() and about["source"] == "chosen":
                assert not isinstance(DEFAULTS[key], float | int), (key, about)


def test_a_changed_value_is_no_longer_the_papers() -> None:
    assert source_of("training.batch_size", 32) == "paper"
    assert source_of("training.batch_size", 33) == "chosen"
    assert source_of("training.learning_rate", 0.01) == "paper"
    assert source_of("training.learning_rate", 0.1) == "assumed"
    assert source_of("radio.fleet.cpu_hz", [0.5e9, 3.0e9]) == "paper"


def test_every_setting_has_a_source_and_a_meaning() -> None:
    told = sources(Settings())
    assert told.keys() == DEFAULTS.keys()
    assert {about["source"] for about in told.values()} <= {"paper", "estimated", "assumed", "chosen", "default"}
    assert told["training.batch_size"]["meaning"] == "b, samples per step."
