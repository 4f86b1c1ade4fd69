"""Many clients' rows at once, in memory or on disk."""

from pathlib import Path

import pytest
import torch

from leanfed.algorithms.contract import PRIVATE, ClientState
from leanfed.rounds.client_store import ClientStore


def store_of(limit=1 << 20):
    return ClientStore(4, lambda client: ClientState(torch.full((3,), float(client))), memory_limit_bytes=limit)


@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["memory", "disk"])
def test_rows_written_together_are_read_alone(limit):
    store = store_of(limit)
    store.rows("residual", 2)
    store.start_all([1, 3])
    assert torch.equal(store.gather(PRIVATE, [3, 1])[:, 0], torch.tensor([3.0, 1.0]))
    store.scatter("residual", [1, 3], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    store.mark([1, 3], ["residual"])
    assert store[3].memory["residual"].tolist() == [3, 4]
    assert store.changed == {1, 3}


def test_rows_that_a_client_does_not_hold_are_zero():
    store = store_of()
    store[2] = ClientState(torch.ones(3), {"residual": torch.ones(2)})
    store[2] = ClientState(torch.ones(3))  # the memory is gone, its row is not
    assert not store.gather("residual", [2]).any()


def test_gathered_rows_are_a_copy():
    store = store_of()
    store.start_all([0])
    store.gather(PRIVATE, [0]).fill_(9)
    assert store[0].private.tolist() == [0, 0, 0]


def is_mapped(matrix):
    """Whether a matrix lives in a file; on Linux a deleted one, so that nothing is left behind."""
    address = matrix.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5) if len(line.split()) > 5 else (line.split()[0], "")
        low, high = (int(edge, 16) for edge in span.split("-"))
        if low <= address < high:
            return "leanfed-clients" in name or "(deleted)" in name
    return False


def test_the_memory_limit_counts_all_matrices():
    store = store_of(limit=100)
    assert not is_mapped(store.rows("small", 5))  # 80 bytes
    assert is_mapped(store.rows("more", 2))  # 32 bytes
