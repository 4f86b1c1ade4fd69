"""Checkpoints that are whole or absent: files first, then one manifest that vouches for them, then the broom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from leanfed.algorithms.base import ServerState
from leanfed.errors import StorageError
from leanfed.files import explained, read_json, sha256_of, write_atomically, write_json
from leanfed.results import write_table
from leanfed.simulation.clients import ClientStore
from leanfed.simulation.rounds import Progress
from leanfed.simulation.world import World

MANIFEST = "manifest.json"
MOST_PARTS = 24  # files of one kind before they are merged


class Checkpoints:
    """The checkpoint folder of one run.

    A save writes the server, the clients that changed and the new rows under new names, and replaces the manifest in
    one step; files that it no longer names are swept. At any instant the manifest on disk describes a whole state.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        self._sums: dict[str, str] = {}  # file -> SHA-256
        self._live: dict[str, list[int]] = {}  # clients file -> clients whose newest state it holds
        self._rows: dict[str, list[str]] = {"rounds": [], "clients": []}  # table -> parts in order

    def save(self, progress: Progress, rounds: pl.DataFrame, clients: pl.DataFrame) -> None:
        """Make `progress` and the rows since the last save durable."""
        tag = f"{progress.round:06d}"
        server = self._write_tensors(f"server-{tag}.safetensors", _server_tensors(progress.server))
        self._save_clients(progress.clients, f"clients-{tag}.safetensors")
        self._add_rows("rounds", tag, rounds)
        self._add_rows("clients", tag, clients)
        named = {server, *self._live, *(part for parts in self._rows.values() for part in parts)}
        self._sums = {name: self._sums[name] for name in sorted(named)}
        manifest = {
            "format": 1,
            "round": progress.round,
            "fingerprint": self.fingerprint,
            "server": server,
            "clients": self._live,
            "rows": self._rows,
            "sha256": self._sums,
        }
        write_json(self.folder / MANIFEST, manifest)
        progress.clients.changed.clear()
        self._sweep(named | {MANIFEST})

    def load(self, world: World) -> Progress | None:
        """The newest whole state, or nothing when there is none yet."""
        if not (self.folder / MANIFEST).is_file():
            return None
        manifest = read_json(self.folder / MANIFEST)
        self._check(manifest)
        self._sums, self._live, self._rows = manifest["sha256"], manifest["clients"], manifest["rows"]
        store = world.new_clients()
        for name, clients in self._live.items():
            wanted = {str(client) for client in clients}
            tensors = self._read_tensors(name)
            store.restore({key: value for key, value in tensors.items() if key.partition(".")[0] in wanted})
        return Progress(manifest["round"], _server_state(self._read_tensors(manifest["server"])), store)

    def tables(self) -> dict[str, pl.DataFrame]:
        """All rows saved so far."""
        return {
            name: pl.concat([pl.read_parquet(self.folder / part) for part in parts])
            for name, parts in self._rows.items()
        }

    def _check(self, manifest: dict[str, Any]) -> None:
        """Refuse a damaged checkpoint, or one of other data."""
        if manifest.get("fingerprint") != self.fingerprint:
            raise StorageError(
                f"The checkpoint in {self.folder} was made with other data or another split of it. "
                "Point --data-dir (or LEANFED_DATA) at the data the run began with."
            )
        for name, expected in manifest["sha256"].items():
            path = self.folder / name
            if not path.is_file() or sha256_of(path) != expected:
                raise StorageError(f"{path} is missing or damaged. Restore it from a copy, or start a new run.")

    def _save_clients(self, clients: ClientStore, name: str) -> None:
        """Write the changed clients, or every started one when too many files have piled up."""
        chosen = clients.started() if len(self._live) >= MOST_PARTS else sorted(clients.changed)
        if not chosen:
            return
        self._write_tensors(name, clients.tensors(chosen))
        replaced = set(chosen)
        left = {file: [c for c in held if c not in replaced] for file, held in self._live.items() if file != name}
        self._live = {**{file: held for file, held in left.items() if held}, name: chosen}

    def _add_rows(self, table: str, tag: str, rows: pl.DataFrame) -> None:
        """Add a part with the new rows; many parts become one."""
        parts = self._rows[table]
        name = f"{table}-{tag}.parquet"
        if len(parts) >= MOST_PARTS:
            rows = pl.concat([*(pl.read_parquet(self.folder / part) for part in parts), rows])
            parts = []
        write_table(self.folder / name, rows)
        self._sums[name] = sha256_of(self.folder / name)
        self._rows = {**self._rows, table: [*parts, name]}

    def _write_tensors(self, name: str, tensors: dict[str, Tensor]) -> str:
        write_tensors(self.folder / name, tensors)
        self._sums[name] = sha256_of(self.folder / name)
        return name

    def _read_tensors(self, name: str) -> dict[str, Tensor]:
        path = self.folder / name
        with explained(path, "read"):
            try:
                return {key: torch.from_numpy(array) for key, array in load_file(path).items()}
            except SafetensorError as error:
                raise StorageError(f"{path} is damaged ({error}). Start a new run.") from error

    def _sweep(self, named: set[str]) -> None:
        """Remove files that the manifest does not name."""
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors atomically, in the order of their names."""
    arrays: dict[str, npt.NDArray[np.float32]] = {name: tensors[name].numpy() for name in sorted(tensors)}

    def write(partial: Path) -> None:
        try:
            save_file(arrays, partial)
        except SafetensorError as error:  # how the library reports a full disk
            raise OSError(str(error)) from error

    write_atomically(path, write)


def all_tensors(progress: Progress) -> dict[str, Tensor]:
    """Server and clients of a state under one set of names."""
    everyone = range(progress.clients.clients)
    progress.clients.start_all(everyone)
    clients = progress.clients.tensors(everyone)
    return {**_server_tensors(progress.server), **{f"client.{name}": tensor for name, tensor in clients.items()}}


def _server_tensors(server: ServerState) -> dict[str, Tensor]:
    return {"shared": server.shared, **{f"memory.{name}": tensor for name, tensor in server.memory.items()}}


def _server_state(tensors: dict[str, Tensor]) -> ServerState:
    memory = {name.removeprefix("memory."): t for name, t in tensors.items() if name.startswith("memory.")}
    return ServerState(tensors["shared"], memory)
