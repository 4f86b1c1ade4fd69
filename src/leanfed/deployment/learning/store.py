"""What a node keeps of a run: its head, memories and round; whole or absent, checked, for its owner alone.

Two states at most: `committed`, which the server has applied, and `pending`, which it may not have. An order tells the
last round that was applied; then pending becomes committed, or is forgotten as if the client had sat that round out.
Random streams follow from seed, client and round, so these are all that they need.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from leanfed.algorithms.contract import ClientState
from leanfed.errors import StorageError
from leanfed.files import explained, folder_lock, make_folder, owner_only, read_json, write_json, write_new

FORMAT = 1
MANIFEST = "manifest.json"
SENT = "sent.jsonl"
PRIVATE = "private"
Standing = Literal["kept", "fresh", "ahead"]


@dataclass(frozen=True)
class Settled:
    """Where a client stands after it heard what the server applied."""

    state: ClientState | None  # nothing before its first round
    standing: Standing


class NodeStore:
    """One client's state of one run, in a folder of its own below the node's."""

    def __init__(self, root: Path, run: str, client: int, seed: int) -> None:
        if not re.fullmatch(r"[0-9a-f]{16,64}", run):
            raise StorageError(f"{run!r} cannot name a run in a store; it is 16 to 64 hexadecimal digits.")
        self.root = root
        self.folder = root / run
        self._who = {"run": run, "client": client, "seed": seed}

    @contextmanager
    def open(self) -> Iterator[NodeStore]:
        """Hold the folder; nobody else may write it meanwhile."""
        with owner_only():
            make_folder(self.folder)
        for folder in (self.root, self.folder):
            _refuse_open(folder)
        with owner_only(), folder_lock(self.folder):
            yield self

    @property
    def round(self) -> int:
        """The newest round that is kept, applied or not; -1: none."""
        manifest = self._manifest()
        return max((entry["round"] for entry in _entries(manifest).values()), default=-1)

    def settle(self, applied: int, token: str) -> Settled:
        """Take over what the server applied (a round, and the token of its order), forget what it did not."""
        manifest = self._manifest()
        committed, pending = manifest.get("committed"), manifest.get("pending")
        if pending is not None:
            if (pending["round"], pending["token"]) == (applied, token):
                committed = pending
            self._write_manifest(committed, None)
        if committed is None:
            return Settled(None, "kept" if applied < 0 else "fresh")
        standing: Standing = "ahead" if committed["round"] > applied else "kept"
        return Settled(self._read(committed), standing)

    def hold(self, state: ClientState, number: int, token: str) -> None:
        """Keep the state after a round until the server says whether it applied it."""
        tensors = {PRIVATE: state.private, **{f"memory.{name}": tensor for name, tensor in state.memory.items()}}
        content = save({name: tensor.contiguous().numpy() for name, tensor in tensors.items()})
        name = f"state-{number:06d}-{os.urandom(4).hex()}.safetensors"
        write_new(self.folder / name, content)
        digest = hashlib.sha256(content).hexdigest()
        entry = {"file": name, "round": number, "token": token, "sha256": digest}
        self._write_manifest(self._manifest().get("committed"), entry)

    def note_sent(self, number: int, frame: bytes) -> None:
        """Write down what is about to leave the device."""
        line = {"round": number, "bytes": len(frame), "sha256": hashlib.sha256(frame).hexdigest()}
        with explained(self.folder / SENT), (self.folder / SENT).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _manifest(self) -> dict[str, Any]:
        """What is kept; empty before the first round."""
        path = self.folder / MANIFEST
        if not path.is_file():
            return {}
        manifest = read_json(path)
        found = {key: manifest.get(key) for key in self._who}
        if manifest.get("format") != FORMAT or found != self._who:
            raise StorageError(
                f"{path} belongs to {found}, not to {self._who}. Give every node a store of its own, or choose another."
            )
        return manifest

    def _write_manifest(self, committed: dict[str, Any] | None, pending: dict[str, Any] | None) -> None:
        """Replace the manifest in one step, then sweep what it no longer names."""
        kept = {"committed": committed, "pending": pending}
        manifest = {"format": FORMAT, **self._who, **{name: entry for name, entry in kept.items() if entry}}
        write_json(self.folder / MANIFEST, manifest)
        named = {entry["file"] for entry in _entries(manifest).values()}
        for path in self.folder.glob("state-*.safetensors"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _read(self, entry: dict[str, Any]) -> ClientState:
        """A state whose bytes are the ones that were written."""
        path = self.folder / entry["file"]
        with explained(path, "read"):
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise StorageError(f"{path} is damaged: its checksum does not match. Restore it, or remove {self.folder}.")
        try:
            tensors = {name: torch.from_numpy(array.copy()) for name, array in load(content).items()}
        except SafetensorError as error:
            raise StorageError(f"{path} is damaged ({error}). Restore it, or remove {self.folder}.") from error
        memory = {name.removeprefix("memory."): tensor for name, tensor in tensors.items() if name != PRIVATE}
        return ClientState(tensors[PRIVATE], memory)


def _entries(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: manifest[name] for name in ("committed", "pending") if name in manifest}


def _refuse_open(folder: Path) -> None:
    """A store that others can read, or that is not ours, is no place for a head."""
    with explained(folder, "read"):
        status = folder.stat()
    if status.st_uid != os.getuid():
        raise StorageError(f"{folder} belongs to user {status.st_uid}. Choose a folder of your own for the store.")
    if status.st_mode & 0o077:
        mode = f"{status.st_mode & 0o777:04o}"
        raise StorageError(f"{folder} is open to others (mode {mode}). Run `chmod 700 {folder}`, or name a new folder.")
