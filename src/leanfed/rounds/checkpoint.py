"""Atomic checkpoints: write the files, then a manifest with their checksums, then delete outdated files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt
import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from leanfed.algorithms.contract import ServerState
from leanfed.errors import StorageError
from leanfed.files import explained, make_folder, remove, sha256_of, write_json, write_new
from leanfed.manifest import BEFORE, MANIFEST, DamagedError, read_manifest, saves_seen, sealed
from leanfed.results import TABLES, read_rows, rows_to_arrays
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.loop import Progress
from leanfed.rounds.ranks import ALONE, Ranks
from leanfed.rounds.weights import pieces_of
from leanfed.rounds.world import HANDED, World

MOST_PARTS = 24  # files of one kind before they are merged
MERGED_BYTES = 32 << 20  # of clients' states that one save merges: it holds them in memory
LARGE_BYTES = 1 << 20  # of one client's state: from here on every client has a file of its own
Arrays = dict[str, npt.NDArray[Any]]


class Checkpoints:
    """The checkpoint folder of one run.

    A save writes the server with the clients that changed, and the new rows, under names of their own, and replaces
    the manifest in one step; files that it no longer names are swept. At any instant the manifest on disk describes a
    whole state; the one before and its files are kept as well. Writing happens beside the next round, from copies;
    `wait` before relying on the disk.

    Of several ranks each writes its own clients; when all have done so, the first writes the rest. The files are the
    same for any number of ranks, and any number goes on from them.
    """

    def __init__(self, folder: Path, fingerprint: str, ranks: Ranks = ALONE) -> None:
        self.folder = folder
        self.ranks = ranks
        self.fingerprint = fingerprint
        self._sums: dict[str, str] = {}  # file name -> SHA-256
        self._live: dict[str, list[int]] = {}  # state file -> clients whose newest state it holds
        self._rows: list[str] = []  # files of rows in order
        self._current: dict[str, Any] | None = None  # the manifest last saved or loaded
        self.troubles: list[str] = []  # why the last load took an earlier state than the newest
        self.extra: dict[str, Any] = {}  # what the last load found beside the state
        self._writer = ThreadPoolExecutor(1, "leanfed-checkpoint")
        self._writing: Future[None] | None = None

    def save(self, progress: Progress, tables: Mapping[str, pl.DataFrame], extra: dict[str, Any] | None = None) -> None:
        """Start saving `progress`, the rows since the last save, and `extra` (plain values)."""
        self.ranks.agree(self.wait)  # the first rank sweeps files that its manifest does not name, so nobody is ahead
        make_folder(self.folder)
        store, chosen = progress.clients, sorted(progress.clients.changed)
        large = store.bytes_per_client >= LARGE_BYTES
        if not large:
            chosen = sorted({*chosen, *self._merged(MERGED_BYTES // max(1, store.bytes_per_client))})
        beside = [[client] for client in chosen] if large else [chosen] if chosen and not self.ranks.first else []
        for told in self.ranks.agree(lambda: [self._save_beside(progress.round, store, each) for each in beside]):
            for name, digest, clients in told:
                self._sums[name] = digest
                self._live = _replaced(self._live, name, clients)
        store.changed.clear()
        if not self.ranks.first:
            return
        chosen = [] if large else chosen
        arrays = _state_arrays(progress, chosen)
        self._writing = self._writer.submit(self._write_all, progress.round, arrays, chosen, dict(tables), extra or {})

    def wait(self) -> None:
        """Block until the last save is on disk; raise its error if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait for the last save, then stop the writer thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def load(self, world: World, *, fall_back: bool = False) -> Progress | None:
        """The newest whole state, or nothing when there is none yet.

        With `fall_back` the save before stands in for one that is damaged, and `troubles` says so. The clients of other
        ranks are left out.
        """
        found: list[Progress | None] = []

        def read() -> int | None:
            found.append(self._newest(world, fall_back))
            return None if found[0] is None else found[0].round

        rounds = self.ranks.agree(read)
        if len(set(rounds)) > 1:
            raise StorageError(
                f"The ranks find different checkpoints in {self.folder}, of the rounds {rounds}. Give all of them the "
                "same folder on a file system that they share."
            )
        if found[0] is not None and not self.troubles and self.ranks.first:
            self._sweep_interrupted()
        return found[0]

    def complete(self, store: ClientStore) -> None:
        """Add the clients of the other ranks, as they were saved."""
        self.wait()
        for name, clients in self._live.items():
            mine = set(self.ranks.owns(clients))
            if others := [client for client in clients if client not in mine]:
                store.restore(_named(self._read(name), "client."), others)

    def _newest(self, world: World, fall_back: bool) -> Progress | None:
        troubles: list[str] = []
        for name in (MANIFEST, BEFORE) if fall_back else (MANIFEST,):
            path = self.folder / name
            if not path.is_file():
                troubles.append(f"{path} is missing.")
                continue
            try:
                progress = self._load(read_manifest(path), world)
            except DamagedError as error:
                troubles.append(str(error))
                continue
            self.troubles = troubles
            return progress
        if not any((self.folder / name).is_file() for name in (MANIFEST, BEFORE)) and saves_seen(self.folder) <= 1:
            return None  # nothing was saved, or a first save was cut short
        raise DamagedError(f"{' '.join(troubles)} Restore {self.folder} from a copy, or start a new run.")

    def _load(self, manifest: dict[str, Any], world: World) -> Progress:
        """The state that a manifest vouches for."""
        self._check(manifest)
        try:
            server = _server_state(self._read(manifest["server"]))
            store = world.laid_out(len(server.shared)).new_clients(server.memory.get(HANDED))
            for name, clients in manifest["clients"].items():
                if mine := self.ranks.owns(clients):
                    store.restore(_named(self._read(name), "client."), mine)
            progress = Progress(manifest["round"], server, store)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise DamagedError(f"The checkpoint in {self.folder} contradicts itself: {error!r}.") from error
        self._sums, self._live, self._rows = dict(manifest["sha256"]), manifest["clients"], manifest["rows"]
        self.extra = manifest.get("extra", {})
        self._current = manifest
        return progress

    def tables(self) -> dict[str, pl.DataFrame]:
        """All rows saved so far."""
        return {name: read_rows([self.folder / part for part in self._rows], name) for name in TABLES}

    def _merged(self, most: int) -> set[int]:
        """Of this rank's clients, at most so many whose states leave old files, where these have become many.

        They are those of the files with the fewest clients left: so a state is rarely written again, however many
        clients there are, and a file that is all but outdated goes first.
        """
        found: set[int] = set()
        if len(self._live) < MOST_PARTS:
            return found
        left = [mine for clients in self._live.values() if (mine := self.ranks.owns(clients))]
        if len(left) < MOST_PARTS:
            return found
        for mine in sorted(left, key=len):
            if len(found) + len(mine) > most:
                break
            found |= set(mine)
        return found

    def _save_beside(self, number: int, store: ClientStore, clients: list[int]) -> tuple[str, str, list[int]]:
        """Write clients to a file beside the server's, in this thread: (file, SHA-256, clients).

        Large states have a file each, so that only one is in memory at a time; these files are never merged, so a save
        writes only what changed. The file is named by its first client.
        """
        name = f"client-{clients[0]:06d}-{number:06d}.safetensors"
        self._write(name, pieces_of(_client_arrays(store, clients)))
        return name, self._sums[name], clients

    def _write_all(
        self,
        number: int,
        arrays: Arrays,
        chosen: list[int],
        tables: dict[str, pl.DataFrame],
        extra: dict[str, Any],
    ) -> None:
        """Write state, rows and manifest, then delete outdated files; runs in the writer thread."""
        state, rows = f"state-{number:06d}.safetensors", f"rows-{number:06d}.safetensors"
        self._write(state, pieces_of(arrays))
        if chosen:
            self._live = _replaced(self._live, state, chosen)
        self._save_rows(rows, tables)
        named = {state, *self._live, *self._rows}
        self._sums = {name: self._sums[name] for name in sorted(named)}
        manifest = {
            "round": number,
            "fingerprint": self.fingerprint,
            "server": state,
            "clients": self._live,
            "rows": self._rows,
            "sha256": self._sums,
            "extra": extra,
        }
        self._replace_manifest(sealed(manifest))

    def _replace_manifest(self, manifest: dict[str, Any]) -> None:
        """Put the manifest in the place of the one before, which is kept with its files, and sweep all others."""
        before = self._current
        if before is not None:
            write_json(self.folder / BEFORE, before)
        write_json(self.folder / MANIFEST, manifest)
        self._current = manifest
        self._sweep({MANIFEST, BEFORE, *manifest["sha256"], *(before["sha256"] if before else ())})

    def _check(self, manifest: dict[str, Any]) -> None:
        """Refuse a checkpoint that is damaged or was made with other data."""
        if manifest.get("fingerprint") != self.fingerprint:
            raise StorageError(
                f"The checkpoint in {self.folder} was made with other data or another split of it. "
                "Point --data-dir (or LEANFED_DATA) at the data the run began with."
            )
        for name, expected in manifest["sha256"].items():
            path = self.folder / name
            if not path.is_file() or sha256_of(path) != expected:
                raise DamagedError(f"{path} is missing or damaged.")

    def _save_rows(self, name: str, tables: dict[str, pl.DataFrame]) -> None:
        """Write the new rows, if there are any; from MOST_PARTS files on, merge them into one."""
        if all(table.is_empty() for table in tables.values()):
            return
        parts = [part for part in self._rows if part != name]
        if len(parts) >= MOST_PARTS:
            paths = [self.folder / part for part in parts]
            tables = {
                table: pl.concat([read_rows(paths, table), rows], how="diagonal") for table, rows in tables.items()
            }
            parts = []
        self._write(name, [save(rows_to_arrays(tables))])
        self._rows = [*parts, name]

    def _write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        self._sums[name] = write_new(self.folder / name, pieces)

    def _read(self, name: str) -> dict[str, Tensor]:
        path = self.folder / name
        with explained(path, "read"):
            try:
                return {key: torch.from_numpy(array) for key, array in load_file(path).items()}
            except SafetensorError as error:
                raise DamagedError(f"{path} is damaged ({error}).") from error

    def _sweep_interrupted(self) -> None:
        """Remove what a save that was cut short left: files of its own, or those that it did not come to sweep."""
        named = {MANIFEST, *self._sums}
        with suppress(DamagedError):
            named |= {BEFORE, *read_manifest(self.folder / BEFORE)["sha256"]}
        self._sweep(named)

    def _sweep(self, named: set[str]) -> None:
        """Remove files that no manifest names."""
        for path in self.folder.iterdir():
            if path.name not in named:
                remove(path)


def _state_arrays(progress: Progress, clients: list[int]) -> Arrays:
    """The states of the server and of these clients as arrays, sorted by name."""
    server = progress.server
    tensors = {"server.shared": server.shared}
    tensors |= {f"server.memory.{name}": tensor for name, tensor in server.memory.items()}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays |= _client_arrays(progress.clients, clients) if clients else {}
    return {name: arrays[name] for name in sorted(arrays)}


def _client_arrays(store: ClientStore, clients: Iterable[int]) -> Arrays:
    return {f"client.{name}": tensor.numpy() for name, tensor in store.snapshot(clients).items()}


def _server_state(tensors: dict[str, Tensor]) -> ServerState:
    return ServerState(tensors["server.shared"], _named(tensors, "server.memory."))


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, which is removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _replaced(live: dict[str, list[int]], newest: str, clients: list[int]) -> dict[str, list[int]]:
    """File -> clients whose newest state it holds, after the file `newest` with `clients` was added."""
    gone = set(clients)
    left = {file: [c for c in held if c not in gone] for file, held in live.items() if file != newest}
    return {**{file: held for file, held in left.items() if held}, newest: clients}
