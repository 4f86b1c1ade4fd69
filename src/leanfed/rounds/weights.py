"""The final weights of server and clients in one safetensors file, written a row at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from leanfed.files import write_atomically
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.loop import Progress

DTYPES: Final = {"float64": "F64", "int64": "I64", "float32": "F32", "uint8": "U8", "bool": "BOOL"}
"""NumPy's names of types -> those of safetensors."""
BYTES: Final = {"F64": 8, "I64": 8, "F32": 4, "U8": 1, "BOOL": 1}


class TensorEntry(NamedTuple):
    """A tensor of the file; `parts` is called when its values are written."""

    dtype: str  # as safetensors spells it
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[npt.NDArray[Any]]]


def write_weights(path: Path, progress: Progress, clients: Iterable[int]) -> None:
    """Write the server, these clients, and all others that took part; a client that did not has its initial weights.

    safetensors' own writer would hold everything in memory twice.
    """
    progress.clients.start_all(clients)
    server = progress.server
    tensors = {"server.shared": server.shared}
    tensors |= {f"server.memory.{name}": tensor for name, tensor in server.memory.items()}
    entries = {name: _values("F32", tensor.numpy()) for name, tensor in tensors.items()}
    for name in progress.clients.names():
        entries |= _client_entries(progress.clients, name)
    write_atomically(path, lambda partial: _write(partial, entries))


def _client_entries(store: ClientStore, name: str) -> dict[str, TensorEntry]:
    """The rows of the clients that have one under this name, and their client numbers."""
    holders = store.holders(name)
    rows = TensorEntry(
        "F32", (len(holders), store.width(name)), lambda: (row.numpy() for _, row in store.held_rows(name))
    )
    return {f"client.{name}": rows, f"client.{name}.clients": _values("I64", holders)}


def _values(dtype: str, array: npt.NDArray[Any]) -> TensorEntry:
    return TensorEntry(dtype, array.shape, lambda: [array])


def pieces_of(arrays: Mapping[str, npt.NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Arrays as a safetensors file, piece by piece and without a copy of them."""
    return _pieces({name: _values(DTYPES[array.dtype.name], array) for name, array in arrays.items()})


def _write(path: Path, entries: dict[str, TensorEntry]) -> None:
    with path.open("wb") as file:
        for piece in _pieces(entries):
            file.write(piece)


def _pieces(entries: dict[str, TensorEntry]) -> Iterator[bytes | memoryview]:
    """The header's length, the header (JSON) and the values; wide types come first, so that all are aligned."""
    order = sorted(entries, key=lambda name: (-BYTES[entries[name].dtype], name))
    header, end = {}, 0
    for name in order:
        dtype, shape, _ = entries[name]
        start, end = end, end + int(np.prod(shape)) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        for part in entries[name].parts():
            yield np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
