"""Bytes from elsewhere, mutated: codec frames, manifests, fleet files, messages of a fleet.

They are read, or refused by an error that explains itself; nothing else is raised. A few hundred run always, `-m slow`
twenty thousand of each.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leanfed.compression.codec import decode, decode_mask, encode, encode_mask
from leanfed.compression.frame import FrameError
from leanfed.errors import LeanfedError
from leanfed.manifest import read_manifest, sealed
from leanfed.wireless.fleet import FleetSettings, SampledFleet
from leanfed.wireless.fleet_file import read_fleet, write_fleet
from tests.chaos.damage import damaged, damaged_json
from tests.chaos.generated import WRONG

FEW, MANY = 200, 20_000
MANIFEST = {
    "round": 2,
    "fingerprint": "ab",
    "server": "state-000002.safetensors",
    "clients": {"state-000002.safetensors": [0, 1]},
    "rows": ["rows-000002.safetensors"],
    "sha256": {"state-000002.safetensors": "0" * 64, "rows-000002.safetensors": "1" * 64},
    "extra": {},
}
Check = Callable[[random.Random, Path], None]


def frames(chance: random.Random, folder: Path) -> None:
    size = chance.randint(1, 300)
    rng = np.random.default_rng(chance.randrange(2**32))
    mask = rng.random(size) < 0.2
    places = np.flatnonzero(mask)
    content = encode_mask(mask) if chance.random() < 0.3 else encode(size, places, rng.random(len(places)))
    for read in (decode, decode_mask):
        with suppress(FrameError):
            read(damaged(content, chance), max_size=1_000)


def manifests(chance: random.Random, folder: Path) -> None:
    text = json.dumps(sealed(MANIFEST)).encode()
    (folder / "manifest.json").write_bytes((damaged if chance.random() < 0.5 else damaged_json)(text, chance))
    with suppress(LeanfedError):
        found = read_manifest(folder / "manifest.json")
        assert {key: found[key] for key in MANIFEST} == MANIFEST  # what changed nothing may pass


def fleets(chance: random.Random, folder: Path) -> None:
    file = folder / chance.choice(("fleet.csv", "fleet.parquet"))
    settings = FleetSettings(devices=3)
    write_fleet(file, [SampledFleet(settings, seed=1).state(number) for number in range(2)])
    file.write_bytes(damaged(file.read_bytes(), chance))
    with suppress(LeanfedError):
        read_fleet(file, settings, clients=3).state(1)


def messages(chance: random.Random, folder: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, RecordDict

    from leanfed.deployment.learning.messages import Answer, Hello, Order, unpack

    kind = chance.choice((Answer, Hello, Order))
    values: dict[str, Any] = {name: chance.choice((0, 1, 0.5, "kept", "ab", True, b"x")) for name in kind.model_fields}
    values[chance.choice(list(values))] = chance.choice([*WRONG, b"", 2**63, -(2**63)])
    try:
        record = ConfigRecord(values)
    except (TypeError, ValueError, OverflowError):
        return  # Flower cannot carry it
    with suppress(LeanfedError):
        unpack(RecordDict({"answer": record}), "answer", kind)


@pytest.mark.parametrize("check", [frames, manifests, fleets, messages], ids=lambda check: check.__name__)
def test_mutated_bytes_are_read_or_refused(check: Check, tmp_path: Path) -> None:
    for case in range(FEW):
        check(random.Random(case), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("check", [frames, manifests, fleets, messages], ids=lambda check: check.__name__)
def test_many_mutated_bytes_are_read_or_refused(check: Check, tmp_path: Path) -> None:
    for case in range(FEW, FEW + MANY):
        check(random.Random(case), tmp_path)
