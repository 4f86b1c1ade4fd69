"""Weights as a file: without a second copy of them in memory."""

import tracemalloc
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from leanfed.files import write_new
from leanfed.rounds.weights import pieces_of


def test_arrays_are_written_without_a_copy_and_read_back(tmp_path: Path) -> None:
    arrays = {
        "rows": np.arange(8_000_000, dtype=np.float32).reshape(1000, 8000),
        "clients": np.arange(1000),
        "none": np.empty((0, 3), dtype=np.float32),
        "flags": np.array([True, False]),
        "one": np.array(2.0),
    }
    tracemalloc.start()
    try:
        write_new(tmp_path / "state.safetensors", pieces_of(arrays))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # of 32 MB
    finally:
        tracemalloc.stop()
    found = load_file(tmp_path / "state.safetensors")
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    assert {name: array.dtype for name, array in found.items()} == {name: array.dtype for name, array in arrays.items()}
