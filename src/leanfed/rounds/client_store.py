"""The states of those clients that have one: a growing matrix per name, in memory or, above a size limit, on disk."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanfed.algorithms.contract import PRIVATE, ClientState
from leanfed.files import explained

MEMORY_LIMIT_BYTES = 192 << 20  # of all matrices together; a block that would exceed it is stored in a file
BLOCK_BYTES = 64 << 20  # by which a matrix grows
READ_BYTES = 4 << 20  # of a file's rows that are in memory beside their copy
Places = npt.NDArray[np.int64]


class States(Protocol):
    """Clients' states by number: a store, or a mapping."""

    def __getitem__(self, client: int, /) -> ClientState:
        """One client's state."""
        ...


class Blocks:
    """A matrix of float32 that grows by blocks of rows."""

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        self._height = max(1, min(most, BLOCK_BYTES // max(1, 4 * size)))  # rows of a block
        self._blocks: list[Tensor] = []

    def grow(self, rows: int, allocate: Callable[[int, int], Tensor]) -> None:
        """Make room for so many rows; `allocate` makes zeros (rows, size).

        It is not kept: the store's own method would be a circle, and a study would hold every run's data to its end.
        """
        while len(self._blocks) * self._height < rows:
            self._blocks.append(allocate(self._height, self.size))

    def row(self, place: int) -> Tensor:
        """The row at a place, not a copy."""
        return self._blocks[place // self._height][place % self._height]

    def read(self, places: Places, release: Callable[[], None] = lambda: None) -> Tensor:
        """A copy of the rows at these places; `release` is called after every few, to free what they took."""
        few = max(1, READ_BYTES // max(1, 4 * self.size))
        if len(self._blocks) == 1 and len(places) <= few:
            return self._blocks[0][places]
        rows = torch.empty(len(places), self.size)
        for block, chosen, inside in self._parts(places):
            for start in range(0, len(chosen), few):
                rows[chosen[start : start + few]] = block[inside[start : start + few]]
                release()
        return rows

    def write(self, places: Places, rows: Tensor) -> None:
        """Write rows at these places; threads may write different places at the same time."""
        for block, chosen, inside in self._parts(places):
            block[inside] = rows[chosen]

    def _parts(self, places: Places) -> Iterator[tuple[Tensor, Places, Places]]:
        """(block, which of the places lie in it, where)."""
        numbers, inside = np.divmod(places, self._height)
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            yield self._blocks[number], chosen, inside[chosen]


class ClientStore:
    """Private weights and memories of N clients; a client's state is initialised on first access.

    Only clients that have a state take room: of a million, those that took part or were tested.
    """

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
        self._pages: list[mmap.mmap] = []  # of the blocks stored in files
        self._in_memory = 0  # bytes
        self._places = np.full(clients, -1, dtype=np.int64)  # client -> row; -1: it has none yet
        self._placed = 0  # rows that are taken
        self._matrices: dict[str, Blocks] = {}
        self._holds: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}  # name -> (clients,)
        self.changed: set[int] = set()  # clients written since the last checkpoint

    def __getitem__(self, client: int, /) -> ClientState:
        """A copy of one client's state."""
        if not self.holds(PRIVATE, client):
            self._write(client, self._start(client))
        parts = {name: self._row(name, client) for name in self._matrices if self.holds(name, client)}
        self._release()
        return ClientState(parts.pop(PRIVATE), parts)

    def __setitem__(self, client: int, state: ClientState) -> None:
        self._write(client, state)
        self.changed.add(client)

    @property
    def bytes_per_client(self) -> int:
        """Size of one client's rows in all matrices."""
        return sum(4 * matrix.size for matrix in self._matrices.values())

    def names(self) -> tuple[str, ...]:
        """Names under which at least one client has a row."""
        return tuple(self._matrices)

    def width(self, name: str) -> int:
        """Values per client under this name."""
        return self._matrices[name].size

    def holders(self, name: str) -> Places:
        """The clients that have a row under this name, increasing."""
        return np.flatnonzero(self._holds[name])

    def held_rows(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """(client, row) for every client that has a row under this name, with one row in memory at a time."""
        for client in self.holders(name).tolist():
            yield client, self._row(name, client)
            self._release()

    def started(self) -> list[int]:
        """Clients whose state was initialised."""
        return [] if PRIVATE not in self._holds else self.holders(PRIVATE).tolist()

    def prepare(self, name: str, size: int, clients: Iterable[int]) -> None:
        """Make room for rows of this name, so that threads can `gather` and `scatter` them; then call `mark`."""
        if name not in self._matrices:
            self._matrices[name] = Blocks(size, self.clients)
            self._holds[name] = np.zeros(self.clients, dtype=bool)
        wanted = np.unique(np.fromiter(clients, dtype=np.int64))
        new = wanted[self._places[wanted] < 0]
        self._places[new] = np.arange(self._placed, self._placed + len(new))
        self._placed += len(new)
        self._matrices[name].grow(self._placed, self._allocate)

    def start_all(self, clients: Iterable[int]) -> None:
        """Initialise the states of these clients, except those that have one already."""
        for client in clients:
            if not self.holds(PRIVATE, client):
                self._write(client, self._start(client))

    def gather(self, name: str, clients: Sequence[int]) -> Tensor:
        """A copy of these clients' rows; zeros for a client that has no row under this name."""
        rows, held = self._matrices[name].read(self._places[list(clients)]), self._holds[name][list(clients)]
        if not held.all():
            rows[torch.from_numpy(~held)] = 0
        self._release()
        return rows

    def scatter(self, name: str, clients: Sequence[int], rows: Tensor) -> None:
        """Write these clients' rows; call `mark` afterwards. Threads may write different clients at the same time."""
        self._matrices[name].write(self._places[list(clients)], rows)
        self._release()  # the system maps far more than what was touched

    def mark(self, clients: Iterable[int], names: Iterable[str]) -> None:
        """Record that these rows were written."""
        listed = list(clients)
        for name in names:
            self._holds[name][listed] = True
        self.changed.update(listed)

    def holds(self, name: str, client: int) -> bool:
        """Whether a client has a row under this name."""
        return name in self._holds and bool(self._holds[name][client])

    def snapshot(self, clients: Iterable[int]) -> dict[str, Tensor]:
        """A copy of these clients' rows: `name` -> (holders, size) and `name.clients` -> (holders,) client numbers."""
        listed, copies = np.fromiter(clients, dtype=np.int64), {}
        for name, matrix in self._matrices.items():
            holders = listed[self._holds[name][listed]]
            copies[name] = matrix.read(self._places[holders], self._release)
            copies[f"{name}.clients"] = torch.from_numpy(holders)
        self._release()
        return copies

    def restore(self, snapshot: Mapping[str, Tensor], clients: Iterable[int]) -> None:
        """Write these clients' rows back from a snapshot."""
        wanted = np.fromiter(clients, dtype=np.int64)
        for name in (key for key in snapshot if not key.endswith(".clients")):
            holders, matrix = snapshot[f"{name}.clients"].numpy(), snapshot[name]
            chosen = np.flatnonzero(np.isin(holders, wanted))
            self.prepare(name, matrix.shape[1], holders[chosen])
            self._matrices[name].write(self._places[holders[chosen]], matrix[chosen])
            self._holds[name][holders[chosen]] = True
        self._release()

    def _row(self, name: str, client: int) -> Tensor:
        return self._matrices[name].row(int(self._places[client])).clone()

    def _write(self, client: int, state: ClientState) -> None:
        parts = {PRIVATE: state.private, **state.memory}
        for name, tensor in parts.items():
            self.prepare(name, len(tensor), [client])
            self._matrices[name].row(int(self._places[client])).copy_(tensor)
            self._holds[name][client] = True
        for name in self._matrices.keys() - parts.keys():
            self._holds[name][client] = False
        self._release()

    def _release(self) -> None:
        """Free the memory pages of the files; their content stays on disk."""
        for pages in self._pages:
            if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                pages.madvise(mmap.MADV_DONTNEED)

    def _allocate(self, rows: int, size: int) -> Tensor:
        needed = rows * size * 4
        if self._in_memory + needed <= self._limit:
            self._in_memory += needed
            return torch.zeros(rows, size)
        # An unnamed file: the system deletes it when the process ends, even after a crash.
        folder = self._scratch or Path(tempfile.gettempdir())
        with explained(folder), tempfile.TemporaryFile(prefix=".leanfed-clients-", dir=folder) as file:
            file.truncate(needed)
            if hasattr(os, "posix_fallocate"):  # a full disk raises an error now instead of a crash later
                os.posix_fallocate(file.fileno(), 0, needed)
            pages = mmap.mmap(file.fileno(), needed)
        self._pages.append(pages)
        return torch.from_numpy(np.frombuffer(pages, dtype=np.float32).reshape(rows, size))
