"""The states of all clients as one matrix per name, in memory or, above a size limit, on disk."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.contract import PRIVATE, ClientState
from leanfed.files import explained

MEMORY_LIMIT_BYTES = 1 << 30  # of all matrices together; a matrix that would exceed it is stored in a file


class States(Protocol):
    """Clients' states by number: a store, or a mapping."""

    def __getitem__(self, client: int, /) -> ClientState:
        """One client's state."""
        ...


class ClientStore:
    """Private weights and memories of N clients; a client's state is initialised on first access."""

    def __init__(
        self,
        clients: int,
        start: Callable[[int], ClientState],
        memory_limit_bytes: int | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.clients = clients
        self._start = start
        self._limit = MEMORY_LIMIT_BYTES if memory_limit_bytes is None else memory_limit_bytes
        self._scratch = scratch  # folder of the files; None: the system's temporary folder, which may be in memory
        self._pages: list[mmap.mmap] = []  # of the matrices stored in files
        self._in_memory = 0  # bytes
        self._matrices: dict[str, Tensor] = {}  # name -> (clients, size)
        self._holds: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}  # name -> (clients,)
        self.changed: set[int] = set()  # clients written since the last checkpoint

    def __getitem__(self, client: int, /) -> ClientState:
        """A copy of one client's state."""
        if not self._has(PRIVATE, client):
            self._write(client, self._start(client))
        parts = {name: self._matrices[name][client].clone() for name in self._matrices if self._has(name, client)}
        self._release()
        return ClientState(parts.pop(PRIVATE), parts)

    def __setitem__(self, client: int, state: ClientState) -> None:
        self._write(client, state)
        self.changed.add(client)

    @property
    def bytes_per_client(self) -> int:
        """Size of one client's rows in all matrices."""
        return sum(4 * matrix.shape[1] for matrix in self._matrices.values())

    def names(self) -> tuple[str, ...]:
        """Names under which at least one client has a row."""
        return tuple(self._matrices)

    def width(self, name: str) -> int:
        """Values per client under this name."""
        return self._matrices[name].shape[1]

    def held_rows(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """(client, row) for every client that has a row under this name, with one row in memory at a time."""
        for client in np.flatnonzero(self._holds[name]).tolist():
            yield client, self._matrices[name][client].clone()
            self._release()

    def started(self) -> list[int]:
        """Clients whose state was initialised."""
        return [] if PRIVATE not in self._holds else np.flatnonzero(self._holds[PRIVATE]).tolist()

    def rows(self, name: str, size: int) -> Tensor:
        """The (clients, size) matrix of this name, for working on many clients at once.

        Call `start_all` first, then use `gather` and `scatter` or the matrix itself, and call `mark` at the end.
        """
        if name not in self._matrices:
            self._matrices[name] = self._allocate(size)
            self._holds[name] = np.zeros(self.clients, dtype=bool)
        return self._matrices[name]

    def start_all(self, clients: Iterable[int]) -> None:
        """Initialise the states of these clients, except those that have one already."""
        for client in clients:
            if not self._has(PRIVATE, client):
                self._write(client, self._start(client))

    def gather(self, name: str, clients: Sequence[int]) -> Tensor:
        """A copy of these clients' rows; zeros for a client that has no row under this name."""
        rows, held = self._matrices[name][list(clients)], self._holds[name][list(clients)]
        if not held.all():
            rows[torch.from_numpy(~held)] = 0
        return rows

    def scatter(self, name: str, clients: Sequence[int], rows: Tensor) -> None:
        """Write these clients' rows; call `mark` afterwards. Threads may write different clients at the same time."""
        self._matrices[name][list(clients)] = rows

    def mark(self, clients: Iterable[int], names: Iterable[str]) -> None:
        """Record that these rows were written."""
        listed = list(clients)
        for name in names:
            self._holds[name][listed] = True
        self.changed.update(listed)

    def holds(self, name: str, client: int) -> bool:
        """Whether a client has a row under this name."""
        return self._has(name, client)

    def snapshot(self, clients: Iterable[int]) -> dict[str, Tensor]:
        """A copy of these clients' rows: `name` -> (holders, size) and `name.clients` -> (holders,) client numbers."""
        listed, copies = np.fromiter(clients, dtype=np.int64), {}
        for name, matrix in self._matrices.items():
            holders = listed[self._holds[name][listed]]
            copies[name] = matrix[holders]
            copies[f"{name}.clients"] = torch.from_numpy(holders)
        self._release()
        return copies

    def restore(self, snapshot: Mapping[str, Tensor], clients: Iterable[int]) -> None:
        """Write these clients' rows back from a snapshot."""
        wanted = np.fromiter(clients, dtype=np.int64)
        for name in (key for key in snapshot if not key.endswith(".clients")):
            holders, matrix = snapshot[f"{name}.clients"].numpy(), snapshot[name]
            chosen = np.flatnonzero(np.isin(holders, wanted))
            self.rows(name, matrix.shape[1])[holders[chosen]] = matrix[chosen]
            self._holds[name][holders[chosen]] = True
        self._release()

    def _has(self, name: str, client: int) -> bool:
        return name in self._holds and bool(self._holds[name][client])

    def _write(self, client: int, state: ClientState) -> None:
        parts = {PRIVATE: state.private, **state.memory}
        for name, tensor in parts.items():
            self.rows(name, len(tensor))[client] = tensor
            self._holds[name][client] = True
        for name in self._matrices.keys() - parts.keys():
            self._holds[name][client] = False
        self._release()

    def _release(self) -> None:
        """Free the memory pages of the files; their content stays on disk."""
        for pages in self._pages:
            if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                pages.madvise(mmap.MADV_DONTNEED)

    def _allocate(self, size: int) -> Tensor:
        needed = self.clients * size * 4
        if self._in_memory + needed <= self._limit:
            self._in_memory += needed
            return torch.zeros(self.clients, size)
        # An unnamed file: the system deletes it when the process ends, even after a crash.
        folder = self._scratch or Path(tempfile.gettempdir())
        with explained(folder), tempfile.TemporaryFile(prefix=".leanfed-clients-", dir=folder) as file:
            file.truncate(needed)
            if hasattr(os, "posix_fallocate"):  # a full disk raises an error now instead of a crash later
                os.posix_fallocate(file.fileno(), 0, needed)
            pages = mmap.mmap(file.fileno(), needed)
        self._pages.append(pages)
        return torch.from_numpy(np.frombuffer(pages, dtype=np.float32).reshape(self.clients, size))
