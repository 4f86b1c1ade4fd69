"""Runs that are killed at any flush and folders that are damaged anywhere: the same result to the last bit, or a word.

Every case follows from its number. A few dozen run always; `-m slow` runs hundreds.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import leanfed
from leanfed.errors import LeanfedError
from leanfed.runs.settings import Settings
from tests.stops import Stop, killed_at_flush, stop_after

ROUNDS = 4
FLUSHES = 40  # of a whole run, about
KINDS: tuple[dict[str, Any], ...] = (
    {"algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}}},
    {"algorithm": {"name": "fedavg"}, "run": {"checkpoint_every": 2}},
    {"algorithm": {"name": "fedper"}, "participation": {"fraction": 0.5}, "training": {"momentum": 0.5}},
)
FEW, MANY = range(16), range(16, 200)


@cache
def settings_of(kind: int) -> Settings:
    partition = {"kind": "class", "classes_per_client": 2, "clients": 5}
    return Settings.from_values(
        {"rounds": ROUNDS, "seed": kind, "task": {"partition": partition}, "evaluation": {"every": 2}, **KINDS[kind]}
    )


@cache
def sums_of(kind: int, folder: Path) -> dict[str, str]:
    """What an unbroken run ends with."""
    return dict(leanfed.run(settings_of(kind), folder / str(kind)).summary["sha256"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@contextmanager
def perhaps_killed(flush: int) -> Iterator[None]:
    """Killed at a flush, or done before it."""
    try:
        with killed_at_flush(flush):
            yield
    except pytest.fail.Exception:  # it did not get that far
        pass


def take_up(settings: Settings, path: Path) -> leanfed.Run:
    """What a user does after any stop."""
    return leanfed.resume(path) if (path / "settings.json").is_file() else leanfed.run(settings, path)


def kill_and_take_up(case: int, whole: Path, path: Path) -> None:
    chance = random.Random(case)
    kind = chance.randrange(len(KINDS))
    settings = settings_of(kind)
    for _ in range(chance.randint(1, 3)):
        with perhaps_killed(chance.randint(1, FLUSHES)):
            take_up(settings, path)
    assert take_up(settings, path).summary["sha256"] == sums_of(kind, whole)
    assert not list(path.rglob(".*.partial"))


def damage_and_resume(case: int, whole: Path, path: Path) -> None:
    chance = random.Random(1_000 + case)
    kind = chance.randrange(len(KINDS))
    with pytest.raises(Stop):
        leanfed.run(settings_of(kind), path, listen=stop_after(chance.randint(2, ROUNDS)))
    file = chance.choice(sorted(file for file in (path / "checkpoint").iterdir()))
    damage(file, chance)
    try:
        resumed = leanfed.resume(path)
    except LeanfedError as error:
        assert error.exit_code == 2
        assert "checkpoint" in str(error)
    else:
        assert resumed.summary["sha256"] == sums_of(kind, whole)


def damage(file: Path, chance: random.Random) -> None:
    """Lose a file, cut it short, or flip a bit of it."""
    content = bytearray(file.read_bytes())
    match chance.choice(("lose", "cut", "flip", "flip")):
        case "lose":
            file.unlink()
        case "cut":
            file.write_bytes(content[: chance.randrange(len(content))])
        case "flip":
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)


@pytest.mark.parametrize("case", FEW)
def test_kills_lose_nothing(case: int, whole: Path, tmp_path: Path) -> None:
    kill_and_take_up(case, whole, tmp_path / "run")


@pytest.mark.parametrize("case", FEW)
def test_damage_is_mended_or_named(case: int, whole: Path, tmp_path: Path) -> None:
    damage_and_resume(case, whole, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("case", MANY)
def test_many_kills_and_damages(case: int, whole: Path, tmp_path: Path) -> None:
    kill_and_take_up(case, whole, tmp_path / "killed")
    damage_and_resume(case, whole, tmp_path / "damaged")
    shutil.rmtree(tmp_path)
