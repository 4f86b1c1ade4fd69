"""A manifest vouches for itself: no single flipped bit passes for another state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leanfed.manifest import BEFORE, MANIFEST, DamagedError, newest_manifest, read_manifest, sealed

VALUES: dict[str, Any] = {
    "round": 12,
    "fingerprint": "5f3a",
    "server": "state-000012.safetensors",
    "clients": {"state-000011.safetensors": [0, 3], "state-000012.safetensors": [1, 2]},
    "rows": ["rows-000011.safetensors", "rows-000012.safetensors"],
    "sha256": {
        f"{kind}-{number}.safetensors": f"{kind}{number}"
        for kind in ("state", "rows")
        for number in ("000011", "000012")
    },
    "extra": {"members": {3: 0.1}},
}


def test_every_single_bit_flip_is_seen_or_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / MANIFEST
    whole = sealed(VALUES)
    content = json.dumps(whole, indent=2).encode()
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            found = read_manifest(file)
        except DamagedError:
            continue
        assert found == whole  # a blank of another kind


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": -1}, "round is -1, but the server's state is state-000012"),
        ({"round": True}, "round is True"),
        ({"rows": []}, "not those that it has sums of"),
        ({"rows": "rows-000012"}, "rows is a str"),
        ({"server": "../../secret"}, "a file that no checkpoint has"),
        ({"clients": {"state-000011.safetensors": [0, 1], "state-000012.safetensors": [1]}}, "each in one file"),
        ({"format": 2}, "its keys are"),
        ({"format": "3"}, "its format is '3'"),
        ({"digest": None}, "its digest"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    resealed = change if {"format", "digest"} & set(change) else {}
    (tmp_path / MANIFEST).write_text(json.dumps({**sealed({**VALUES, **change}), **resealed}))
    with pytest.raises(DamagedError, match=words):
        read_manifest(tmp_path / MANIFEST)


def test_readers_take_the_manifest_before_where_the_newest_is_damaged(tmp_path: Path) -> None:
    assert newest_manifest(tmp_path) is None
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DamagedError, match="not valid JSON"):
        newest_manifest(tmp_path)
    (tmp_path / BEFORE).write_text(json.dumps(sealed(VALUES)))
    assert newest_manifest(tmp_path) == sealed(VALUES)
