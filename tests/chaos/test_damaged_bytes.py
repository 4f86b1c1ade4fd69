"""Bytes from elsewhere, mutated: codec frames, manifests, fleet files, messages of a fleet.

They are read, or refused by an error that explains itself, in time and in little memory; nothing else is raised. Those
of tests/corpora and a few hundred mutations of them run always, `-m slow` twenty thousand of each.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import pytest

from leanfed.errors import LeanfedError
from leanfed.manifest import read_manifest, sealed
from tests.chaos.commands import within
from tests.chaos.damage import damaged, damaged_json
from tests.chaos.readers import MANIFEST, READERS

CORPORA = Path(__file__).parents[1] / "corpora"
CORPUS = [file for name in READERS for file in sorted((CORPORA / name).iterdir())]
FEW, MANY = 300, 20_000
LIMIT_S, LARGEST_BYTES = 20.0, 32 * 2**20
TRIED = [name for name in READERS if name != "messages" or find_spec("flwr") is not None]


def tried(name: str, content: bytes, folder: Path) -> str | None:
    """What refuses these bytes, in words; None where they are taken."""
    reader = READERS[name]
    file = folder / f"damaged{reader.suffix}"
    file.write_bytes(content)
    try:
        with within(LIMIT_S):
            reader.read(file)
    except LeanfedError as error:
        assert error.exit_code == 2
        return str(error)
    return None


def mutate(name: str, cases: range, folder: Path) -> dict[bool, int]:
    """Read so many mutations, of what is fresh and of the corpus; how many were refused and taken."""
    reader, counts = READERS[name], {True: 0, False: 0}
    known = [file.read_bytes() for file in CORPUS if file.parent.name == name]
    for case in cases:
        chance = random.Random(case)
        content = chance.choice(known) if chance.random() < 0.3 else reader.fresh(chance, folder)
        for _ in range(chance.choice((1, 1, 2, 3))):
            content = reader.changed(content, chance)
        said = tried(name, content, folder)
        assert said is None or len(said) > 10, f"case {case}: refused without a word"
        counts[said is not None] += 1
    return counts


@pytest.mark.parametrize("name", TRIED)
def test_mutated_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        counts = mutate(name, range(FEW), tmp_path)
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts[True] > FEW / 3, "hardly anything was refused: are the mutations too tame?"
    assert largest < LARGEST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_many_mutated_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    mutate(name, range(FEW, FEW + MANY), tmp_path)


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_what_once_failed_or_is_odd_is_taken_or_refused_as_its_name_says(file: Path, tmp_path: Path) -> None:
    if file.parent.name not in TRIED:
        pytest.skip("flwr is not installed")
    said = tried(file.parent.name, file.read_bytes(), tmp_path)
    assert (said is None) == file.stem.startswith("taken"), said


def test_a_manifest_with_anything_changed_is_refused_by_its_digest(tmp_path: Path) -> None:
    whole = json.dumps(sealed(MANIFEST)).encode()
    for case in range(FEW):
        chance = random.Random(case)
        (tmp_path / "manifest.json").write_bytes((damaged if case % 2 else damaged_json)(whole, chance))
        try:
            found = read_manifest(tmp_path / "manifest.json")
        except LeanfedError:
            continue
        assert {key: found[key] for key in MANIFEST} == MANIFEST  # what changed nothing may pass
