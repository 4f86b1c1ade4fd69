"""The node store: whole or absent, checked, for its owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leanfed.algorithms.contract import ClientState
from leanfed.deployment.learning.store import NodeStore
from leanfed.errors import BusyError, StorageError

RUN = "0123456789abcdef"


def state(value: float) -> ClientState:
    return ClientState(torch.full((3,), value), {"residual": torch.full((5,), -value)})


def store_in(root: Path, client: int = 1) -> NodeStore:
    return NodeStore(root / "node", RUN, client, seed=7)


def test_what_the_server_applied_is_kept_and_the_rest_forgotten(tmp_path: Path) -> None:
    with store_in(tmp_path).open() as store:
        assert store.settle(-1, "").state is None
        store.hold(state(1.0), 0, "a")
    with store_in(tmp_path).open() as store:  # the server applied round 0
        settled = store.settle(0, "a")
        assert settled.state is not None
        assert settled.state.private.tolist() == [1.0] * 3
        assert settled.state.memory["residual"].tolist() == [-1.0] * 5
        store.hold(state(2.0), 1, "b")
        assert store.round == 1
    with store_in(tmp_path).open() as store:  # it never applied round 1
        settled = store.settle(0, "a")
        assert settled.state is not None
        assert (settled.standing, settled.state.private.tolist()) == ("kept", [1.0] * 3)
        assert store.round == 0


@settings(max_examples=25)  # every example writes through to the disk
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_the_store_holds_the_last_applied_round(tmp_path_factory: pytest.TempPathFactory, applied: list[bool]) -> None:
    root = tmp_path_factory.mktemp("store")
    last, token = -1, ""
    for number, taken in enumerate(applied):
        with store_in(root).open() as store:
            found = store.settle(last, token).state
            assert (found is None) == (last < 0)
            assert found is None or found.private[0] == last
            store.hold(state(float(number)), number, f"t{number}")
        if taken:
            last, token = number, f"t{number}"
    assert len(list((root / "node" / RUN).glob("state-*"))) <= 2


def test_a_second_try_of_a_round_is_told_apart_by_its_token(tmp_path: Path) -> None:
    with store_in(tmp_path).open() as store:
        store.hold(state(1.0), 0, "first try")
        assert store.settle(0, "second try").standing == "fresh"


def test_a_store_that_lost_its_state_or_is_ahead_says_so(tmp_path: Path) -> None:
    with store_in(tmp_path).open() as store:
        assert store.settle(3, "x").standing == "fresh"
        store.hold(state(1.0), 4, "y")
        store.settle(4, "y")
        ahead = store.settle(2, "old")
        assert ahead.standing == "ahead"
        assert ahead.state is not None  # the head is not thrown away


def test_everything_is_for_its_owner_alone(tmp_path: Path) -> None:
    with store_in(tmp_path).open() as store:
        store.note_sent(0, b"frame")
        store.hold(state(1.0), 0, "a")
    for path in [tmp_path / "node", *(tmp_path / "node").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir(mode=0o755)
    with pytest.raises(StorageError, match="open to others .mode 0755.*chmod 700"), store_in(tmp_path).open():
        pass


def test_damage_is_found(tmp_path: Path) -> None:
    with store_in(tmp_path).open() as store:
        store.hold(state(1.0), 0, "a")
    (file,) = (tmp_path / "node" / RUN).glob("state-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with store_in(tmp_path).open() as store, pytest.raises(StorageError, match="checksum does not match"):
        store.settle(0, "a")


def test_two_clients_cannot_share_a_store(tmp_path: Path) -> None:
    with store_in(tmp_path, client=1).open() as store:
        store.hold(state(1.0), 0, "a")
    with store_in(tmp_path, client=2).open() as store, pytest.raises(StorageError, match="store of its own"):
        store.settle(0, "a")


def test_half_written_files_of_a_killed_node_are_swept(tmp_path: Path) -> None:
    with store_in(tmp_path).open() as store:
        store.hold(state(1.0), 0, "t")
        left, foreign = store.folder / ".manifest.json.4711.partial", store.folder / ".notes.4711.partial"
    left.write_text("{")
    foreign.write_text("the owner's own")
    with store_in(tmp_path).open() as store:
        assert store.round == 0
    assert not left.exists()
    assert foreign.exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with store_in(tmp_path).open(), pytest.raises(BusyError), store_in(tmp_path).open():
        pass


@pytest.mark.parametrize("name", ["", "../../etc", "0123456789ABCDEF", "0123456789abcdef/.."])
def test_a_run_cannot_name_another_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="hexadecimal"):
        NodeStore(tmp_path, name, 0, 0)
