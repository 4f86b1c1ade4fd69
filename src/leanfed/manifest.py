"""The manifest of a checkpoint: which files are one whole state, with their sums and its own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanfed.errors import StorageError
from leanfed.files import read_json

MANIFEST = "manifest.json"
BEFORE = "manifest-before.json"  # of the save before, whose files are kept too
FORMAT = 3  # 2 had no digest of itself
FILE = re.compile(r"(state|rows|client-\d{6,})-(\d{6,})\.safetensors")
KEYS = {"format", "round", "fingerprint", "server", "clients", "rows", "sha256", "extra"}


class DamagedError(StorageError):
    """A checkpoint, or the manifest that vouches for it, is not as it was written."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with the digest of all that it says."""
    plain = json.loads(json.dumps({**values, "format": FORMAT}, allow_nan=False))  # keys as they will be read
    return {**plain, "digest": _digest(plain)}


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest that is as it was written; one of format 2, without a digest, must at least agree with itself."""
    try:
        values = read_json(path)
    except StorageError as error:
        raise DamagedError(str(error)) from error
    trouble = _trouble(values)
    if trouble is not None:
        raise DamagedError(f"{path} is damaged: {trouble}.")
    return values


def newest_manifest(folder: Path) -> dict[str, Any] | None:
    """The newest manifest that can be trusted, or None where no checkpoint was saved."""
    found = [path for path in (folder / MANIFEST, folder / BEFORE) if path.is_file()]
    for path in found:
        try:
            return read_newer(path) or read_manifest(path)
        except DamagedError:
            if path == found[-1]:
                raise
    return None


def read_newer(path: Path) -> dict[str, Any] | None:
    """A manifest of a format that is newer than ours, whose rows may be read, though nobody here can vouch for it."""
    try:
        values = read_json(path)
    except StorageError as error:
        raise DamagedError(str(error)) from error
    number, rows = values.get("format"), values.get("rows")
    if type(number) is not int or number <= FORMAT or not isinstance(rows, list):
        return None
    return values if all(isinstance(name, str) and FILE.fullmatch(name) for name in rows) else None


def saves_seen(folder: Path) -> int:
    """How many saves the files of a checkpoint folder come from: the first may lack its manifest, a later one not."""
    if not folder.is_dir():
        return 0
    return len({match[2] for path in folder.iterdir() if (match := FILE.fullmatch(path.name))})


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _trouble(values: dict[str, Any]) -> str | None:
    """What is wrong with a manifest, or None."""
    number = values.get("format")
    if type(number) is not int or number not in (2, FORMAT):
        return f"its format is {number!r}, not 2 or {FORMAT}"
    said = {key: value for key, value in values.items() if key != "digest" or number == 2}
    if number == FORMAT and values.get("digest") != _digest(said):
        return "its digest is not that of its content"
    if set(said) | {"extra"} != KEYS:
        return f"its keys are {', '.join(sorted(said))}"
    return _contradiction(said)


def _contradiction(said: Mapping[str, Any]) -> str | None:
    """Where the entries of a manifest have the wrong type or contradict each other."""
    kinds = {"fingerprint": str, "server": str, "clients": dict, "rows": list, "sha256": dict, "extra": dict}
    for key, kind in kinds.items():
        if not isinstance(said.get(key, {}), kind):
            return f"{key} is a {type(said[key]).__name__}"
    clients, rows = said["clients"], said["rows"]
    named = [said["server"], *clients, *rows]
    if not all(isinstance(name, str) and FILE.fullmatch(name) for name in named):
        return "it names a file that no checkpoint has"
    if type(said["round"]) is not int or said["server"] != f"state-{said['round']:06d}.safetensors":
        return f"round is {said['round']!r}, but the server's state is {said['server']}"
    if set(named) != set(said["sha256"]) or len(set(rows)) != len(rows):
        return "the files that it names are not those that it has sums of"
    holders = [client for held in clients.values() for client in (held if isinstance(held, list) else [None])]
    if any(type(client) is not int or client < 0 for client in holders) or len(set(holders)) != len(holders):
        return "its clients are not each in one file"
    return None
