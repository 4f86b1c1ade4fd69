"""Many clients' rows at once, in memory or on disk."""

import gc
import os
import sys
import weakref
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
    store.prepare("residual", 2, [1, 3])
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


def mapped_files():
    """How many deleted files this process has mapped: nothing of them is left behind (Linux)."""
    return sum("(deleted)" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_the_memory_limit_counts_all_matrices():
    store, before = store_of(limit=100), mapped_files()
    store.prepare("small", 5, [0])  # 80 bytes: four rows of five
    assert mapped_files() == before
    store.prepare("more", 2, [0])  # 32 bytes
    assert mapped_files() == before + 1


@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["memory", "disk"])
def test_only_clients_with_a_state_take_room_and_blocks_change_nothing(limit, monkeypatch):
    monkeypatch.setattr("leanfed.rounds.client_store.BLOCK_BYTES", 24)  # two rows of three
    store = ClientStore(1_000_000, lambda client: ClientState(torch.full((3,), float(client))), limit)
    some = [999_999, 5, 70, 0, 12]
    store.start_all(some)
    assert store.gather(PRIVATE, some)[:, 2].tolist() == some
    store.prepare("residual", 1, some)
    store.scatter("residual", some, torch.tensor(some).unsqueeze(1).float())
    store.mark(some, ["residual"])
    assert [store[client].memory["residual"].item() for client in some] == some
    assert [client for client, _ in store.held_rows(PRIVATE)] == sorted(some) == store.started()
    assert store._placed == 5
    copy = ClientStore(1_000_000, lambda client: ClientState(torch.zeros(3)), limit)
    copy.restore(store.snapshot(some), [70, 0])
    assert copy.gather("residual", [0, 70]).tolist() == [[0], [70]]
    assert copy.started() == [0, 70]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what is in memory")
def test_a_copy_of_many_rows_keeps_few_pages_of_their_file_in_memory(tmp_path, monkeypatch):
    values, clients = 10_000, 500  # 20 MB of rows in a file
    store = ClientStore(clients, lambda client: ClientState(torch.full((values,), float(client))), 0, tmp_path)
    store.start_all(range(clients))
    before, seen, release = in_files(), [], store._release
    monkeypatch.setattr(store, "_release", lambda: (seen.append(in_files()), release()))
    rows = store.snapshot(range(clients))[PRIVATE]
    assert max(seen) - before < 10 << 20  # what is read at a time, and as much again that the system maps beside it
    assert rows[:, 0].tolist() == rows[:, -1].tolist() == list(range(clients))


def in_files():
    """Bytes of files that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_a_store_is_gone_with_its_last_name():
    """Without a collection of garbage: a study would keep the data of every run until one comes."""
    gc.disable()
    try:
        store = store_of()
        store.start_all([0, 1])
        gone = weakref.ref(store)
        del store
        assert gone() is None
    finally:
        gc.enable()
