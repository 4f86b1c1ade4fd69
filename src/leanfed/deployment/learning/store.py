"""A node's state of a run (head, memories, round), written atomically with checksums, readable by its owner only.

There are at most two states: `committed`, which the server has applied, and `pending`, which it may not have applied.
An order names the client's last applied round: pending then becomes committed, or is dropped as if the client had not
taken part. Random streams depend on seed, client and round only, so nothing else needs to be stored. Where differences
of the base are sent, what the node has of it lies beside the states.
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

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from leanfed.algorithms.contract import ClientState
from leanfed.errors import StorageError
from leanfed.files import explained, is_partial_of, make_folder, owner_only, read_json, remove, write_json, write_new
from leanfed.locks import folder_lock

FORMAT = 1
MANIFEST = "manifest.json"
SENT = "sent.jsonl"
PRIVATE = "private"
MASKS, UNMASKED = "masks.json", "unmasked.json"  # of a masked sum under way, and marks of those that were unmasked
VIEW_DIGITS = 32  # of the SHA-256 that names a view
Standing = Literal["kept", "fresh", "ahead"]


@dataclass(frozen=True)
class Settled:
    """A client's state after it learned which of its updates the server applied."""

    state: ClientState | None  # None before its first round
    standing: Standing


class NodeStore:
    """One client's state in one run, in its own folder below the node's."""

    def __init__(self, root: Path, run: str, client: int, seed: int) -> None:
        if not re.fullmatch(r"[0-9a-f]{16,64}", run):
            raise StorageError(f"{run!r} cannot name a run in a store; it is 16 to 64 hexadecimal digits.")
        self.root = root
        self.folder = root / run
        self._who = {"run": run, "client": client, "seed": seed}

    @contextmanager
    def open(self) -> Iterator[NodeStore]:
        """Lock the folder, so that no other process writes to it; what a killed writer left half-written is swept."""
        with owner_only():
            make_folder(self.folder)
        for folder in (self.root, self.folder):
            _refuse_open(folder)
        with owner_only(), folder_lock(self.folder):
            for left in self.folder.glob(".*.partial"):
                if is_partial_of(left, {MANIFEST, MASKS, UNMASKED}):
                    remove(left)
            yield self

    @property
    def round(self) -> int:
        """The newest stored round, applied or not; -1 if there is none."""
        manifest = self._manifest()
        return max((entry["round"] for entry in _entries(manifest).values()), default=-1)

    def settle(self, applied: int, token: str) -> Settled:
        """Commit the pending state if the server applied it (its round and order token match), else drop it."""
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
        """Store the state after a round as pending, until the server says whether it applied the update."""
        tensors = {PRIVATE: state.private, **{f"memory.{name}": tensor for name, tensor in state.memory.items()}}
        content = save({name: tensor.contiguous().numpy() for name, tensor in tensors.items()})
        name = f"state-{number:06d}-{os.urandom(4).hex()}.safetensors"
        digest = write_new(self.folder / name, [content])
        entry = {"file": name, "round": number, "token": token, "sha256": digest}
        self._write_manifest(self._manifest().get("committed"), entry)

    @property
    def view_name(self) -> str | None:
        """The name of what the node has of the base; None where it has nothing, or nothing is kept."""
        return next((name for name, _ in self._whole_views()), None)

    def view(self) -> Tensor | None:
        """What the node has of the base; None also where its file is damaged: the server then sends the base."""
        content = next((content for _, content in self._whole_views()), None)
        return None if content is None else torch.from_numpy(np.frombuffer(content, "<f4").astype(np.float32))

    def keep_view(self, view: Tensor, name: str) -> None:
        """Store the view of this name in place of all others; a name is a digest, so the file vouches for itself."""
        if name != self.view_name:
            write_new(self.folder / f"view-{name}.f32", [view.numpy().astype("<f4").tobytes()])
        for path in self.folder.glob("view-*.f32"):
            if path.name != f"view-{name}.f32":
                remove(path)

    def _whole_views(self) -> Iterator[tuple[str, bytes]]:
        """(name, content) of the files whose content is what the name says; after a kill there may be two."""
        for path in sorted(self.folder.glob("view-*.f32")):
            with explained(path, "read"):
                content = path.read_bytes()
            name = path.stem.removeprefix("view-")
            if len(name) == VIEW_DIGITS and hashlib.sha256(content).hexdigest().startswith(name):
                yield name, content

    def masks(self) -> dict[str, Any]:
        """The secrets of the masked sum that is under way; empty where there is none."""
        path = self.folder / MASKS
        return read_json(path) if path.is_file() else {}

    def keep_masks(self, state: dict[str, Any]) -> None:
        """Keep secrets until the next message of the sum, in place of what was kept before."""
        write_json(self.folder / MASKS, state)

    def unmasked(self) -> list[str]:
        """Marks of the sums that this client has helped to unmask."""
        path = self.folder / UNMASKED
        return list(read_json(path)["marks"]) if path.is_file() else []

    def note_unmasked(self, mark: str, most: int) -> None:
        """Remember that a sum was unmasked, among the last `most`, then forget its secrets."""
        write_json(self.folder / UNMASKED, {"marks": [*self.unmasked(), mark][-most:]})
        remove(self.folder / MASKS)

    def note_sent(self, number: int, frame: bytes, **facts: int) -> None:
        """Log an update that is about to be sent."""
        line = {"round": number, "bytes": len(frame), "sha256": hashlib.sha256(frame).hexdigest(), **facts}
        with explained(self.folder / SENT), (self.folder / SENT).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _manifest(self) -> dict[str, Any]:
        """The manifest, checked to be this client's; empty before the first round."""
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
        """Replace the manifest in one step, then delete the files that it no longer names."""
        kept = {"committed": committed, "pending": pending}
        manifest = {"format": FORMAT, **self._who, **{name: entry for name, entry in kept.items() if entry}}
        write_json(self.folder / MANIFEST, manifest)
        named = {entry["file"] for entry in _entries(manifest).values()}
        for path in self.folder.glob("state-*.safetensors"):
            if path.name not in named:
                remove(path)

    def _read(self, entry: dict[str, Any]) -> ClientState:
        """A stored state, after checking its checksum."""
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
    """Refuse a folder that belongs to another user or is open to others: heads are private."""
    with explained(folder, "read"):
        status = folder.stat()
    if status.st_uid != os.getuid():
        raise StorageError(f"{folder} belongs to user {status.st_uid}. Choose a folder of your own for the store.")
    if status.st_mode & 0o077:
        mode = f"{status.st_mode & 0o777:04o}"
        raise StorageError(f"{folder} is open to others (mode {mode}). Run `chmod 700 {folder}`, or name a new folder.")
