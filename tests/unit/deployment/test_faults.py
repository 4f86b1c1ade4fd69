"""Faults: each is refused, counted and named, and the aggregate is what it would be without the offender."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

import leanfed
from leanfed.compression.codec import encode
from leanfed.deployment.learning import store
from leanfed.deployment.learning.server import NoQuorumError
from leanfed.deployment.operations.log_watch import DECLINES
from leanfed.files import explained
from leanfed.runs.settings import Settings
from tests.unit.deployment.fleets import CLIENTS, Trial, settings_of

BAD = 2  # the client that misbehaves
SIZE, ENTRIES = 50_692, 5_069


def rewritten(reply: Message, **changes: Any) -> Message:
    """The honest reply with some fields of its answer changed."""
    if not reply.has_content() or "answer" not in reply.content:
        return reply
    answer = dict(reply.content["answer"]) | changes
    reply.content["answer"] = ConfigRecord({key: value for key, value in answer.items() if value is not None})
    return reply


def frame_with(value: float) -> bytes:
    """A frame that holds a value no honest sender can write: it is put in after sealing, and the seal is renewed."""
    import hashlib

    frame = bytearray(encode(SIZE, np.arange(ENTRIES), np.ones(ENTRIES, dtype=np.float32)))
    frame[-12:-8] = struct.pack("<f", value)
    frame[-8:] = hashlib.blake2b(bytes(frame[:-8]), digest_size=8).digest()
    return bytes(frame)


def claims_ten_gigabytes() -> bytes:
    """A small frame whose header says that 10 GB of values follow."""
    frame = bytearray(encode(SIZE, np.arange(ENTRIES), np.ones(ENTRIES, dtype=np.float32)))
    struct.pack_into("<Q", frame, 20, 10 * 2**30)
    return bytes(frame)


def frame_of(size: int, entries: int) -> bytes:
    return encode(size, np.arange(entries), np.ones(entries))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"frame": np.random.default_rng(0).bytes(4096)}, "malformed"),
    ({"frame": b""}, "malformed"),
    ({"frame": frame_of(SIZE, ENTRIES)[:-1]}, "malformed"),
    ({"frame": claims_ten_gigabytes()}, "malformed"),
    ({"frame": bytes(10 * 2**20)}, "oversized"),
    ({"frame": frame_with(float("nan"))}, "not-finite"),
    ({"frame": frame_with(float("inf"))}, "not-finite"),
    ({"frame": frame_of(SIZE - 1, ENTRIES)}, "wrong-size"),
    ({"frame": frame_of(SIZE, ENTRIES + 1)}, "wrong-size"),
    ({"loss": float("nan")}, "not-finite"),
    ({"loss": None}, "malformed"),
    ({"samples": -1}, "malformed"),
    ({"round": 77}, "stale"),
    ({"run": "f" * 32}, "stale"),
    ({"token": "0" * 32}, "replayed"),
    ({"client": 0}, "malformed"),
    ({"surprise": 1}, "malformed"),
    ({"protocol": 2}, "malformed"),
    ({"frame": "text"}, "malformed"),
]


def without(clients: set[int], rounds: int) -> Settings:
    """The simulated run in which these clients never take part."""
    return settings_of(rounds=rounds, participation={"cohorts": [[c for c in range(CLIENTS) if c not in clients]]})


def play_with(tmp_path: Path, twist: Callable[[Message, Message], Message | None], **changes: Any) -> Trial:
    trial = Trial(settings_of(rounds=changes.pop("rounds", 2)), tmp_path, changes)
    trial.grid.nodes[100 + BAD].twist = twist
    trial.play()
    return trial


def test_bad_answers_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """One client gets something wrong in every round, each time in another way."""

    def twist(order: Message, reply: Message) -> Message:
        number = order.metadata.group_id
        return rewritten(reply, **WRONG[int(number)][0]) if number.isdigit() and int(number) < len(WRONG) else reply

    trial = play_with(tmp_path, twist, rounds=len(WRONG), offences=1000)
    refused = trial.audit("refused")
    assert [row["kind"] for row in refused] == [kind for _, kind in WRONG]
    assert {(row["client"], row["node"]) for row in refused} == {(BAD, 100 + BAD)}
    assert trial.losses() == leanfed.run(without({BAD}, len(WRONG))).rounds["train_loss"].to_list()
    assert trial.table("rounds")["refused"].to_list() == [1] * len(WRONG)


def test_an_old_answer_sent_again_is_recognised(tmp_path: Path) -> None:
    kept: list[dict[str, Any]] = []

    def replay(order: Message, reply: Message) -> Message:
        if "answer" not in reply.content or not reply.content["answer"]["frame"]:
            return reply
        kept.append(dict(reply.content["answer"]))
        return rewritten(reply, frame=kept[0]["frame"])

    trial = play_with(tmp_path, replay)
    (refused,) = trial.audit("refused")
    assert (refused["kind"], refused["round"]) == ("replayed", 1)
    assert trial.took_part() == [[0, 1, 2, 3, 4], [0, 1, 3, 4]]


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"answer": ArrayRecord({"frame": Array("float32", (1,), "numpy.ndarray", b"\x80\x04.")})}),
        RecordDict({"answer": ConfigRecord({"frame": b"\x80\x04N."})}),
    ],
    ids=["nothing", "an array", "a pickle"],
)
def test_a_reply_without_an_answer_changes_nothing(tmp_path: Path, content: RecordDict) -> None:
    def twist(order: Message, reply: Message) -> Message:
        return reply if "order" not in order.content else Message(content, reply_to=order)

    trial = play_with(tmp_path, twist)
    assert {row["kind"] for row in trial.audit("refused")} == {"malformed"}
    assert trial.took_part() == [[0, 1, 3, 4]] * 2


def test_repeated_offenders_are_set_aside(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=4), tmp_path)
    trial.grid.nodes[100 + BAD].twist = lambda order, reply: rewritten(reply, frame=b"junk")
    trial.play()
    assert len(trial.audit("refused")) == 2
    assert len(trial.audit("set_aside")) == 1
    asked = [order for order in trial.grid.seen if order.metadata.dst_node_id == 100 + BAD]
    assert len(asked) == 4  # who are you, a probe, and two orders


def test_a_straggler_ends_at_the_deadline_and_its_memory_agrees_with_the_server(tmp_path: Path) -> None:
    """Late in round 1: the run equals the simulated one in which the client sat that round out, to the last bit."""
    settings = settings_of(rounds=6, evaluation={"every": 10})
    trial = Trial(settings, tmp_path)
    node = trial.grid.nodes[100 + BAD]

    def dawdle(order: Message, reply: Message) -> Message:
        node.delay_s = 31.2 if order.metadata.group_id == "1" else 1.0
        return reply

    node.twist = dawdle
    trial.play()
    took_part = trial.took_part()
    assert BAD not in took_part[1]
    assert BAD in took_part[5]
    assert [row["round"] for row in trial.audit("late")] == [1]
    same = settings_of(rounds=6, evaluation={"every": 10}, participation={"cohorts": took_part})
    assert trial.losses() == leanfed.run(same).rounds["train_loss"].to_list()


def test_a_lost_node_comes_back_with_its_head(tmp_path: Path) -> None:
    settings = settings_of(rounds=4, evaluation={"every": 10})
    trial = Trial(settings, tmp_path)
    node = trial.grid.nodes[100 + BAD]

    def fail(order: Message, reply: Message) -> Message:
        lost = order.metadata.group_id == "1"
        return Message(Error(code=3, reason="Node Unavailable"), reply_to=order) if lost else reply

    node.twist = fail
    trial.play()
    took_part = trial.took_part()
    assert [BAD in clients for clients in took_part] == [True, False, True, True]
    assert trial.audit("lost")[0]["why"] == "Node Unavailable"
    same = settings_of(rounds=4, evaluation={"every": 10}, participation={"cohorts": took_part})
    assert trial.losses() == leanfed.run(same).rounds["train_loss"].to_list()


def test_without_a_quorum_the_run_stops_and_can_go_on(tmp_path: Path) -> None:
    settings = settings_of(rounds=2)
    trial = Trial(settings, tmp_path, {"quorum": 0.8, "attempts": 2})
    silent = [trial.grid.nodes[100 + client] for client in (1, 2)]
    for node in silent:
        node.twist = lambda order, reply: None if "order" in order.content else reply
    with pytest.raises(NoQuorumError, match="nothing is lost"):
        trial.play()
    assert len(trial.audit("no_quorum")) == 2
    for node in silent:
        node.twist = lambda order, reply: reply
    trial.play(resume=True)
    assert trial.losses() == leanfed.run(settings).rounds["train_loss"].to_list()


def test_a_second_node_cannot_take_a_client_that_is_there(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=1), tmp_path)
    trial.grid.nodes[999] = type(trial.grid.nodes[100])(999, {**trial.grid.nodes[100].config}, delay_s=2.0)
    trial.config["nodes"] = CLIENTS
    trial.play()
    kinds = {row["kind"] for row in trial.audit("refused") if row["node"] == 999}
    assert kinds <= {"taken"}
    assert all(row["node"] != 999 for row in trial.audit("accepted"))


def test_a_full_disk_on_a_node_is_told_on_both_sides_and_the_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial, write = Trial(settings_of(rounds=2), tmp_path), store.write_new
    full = [True]

    def no_space(path: Path, *more: Any) -> str:
        if full and f"node-{BAD}" in str(path):
            full.clear()  # the owner makes room before the next round
            with explained(path):
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *more)

    monkeypatch.setattr(store, "write_new", no_space)
    trial.play()
    others = [client for client in range(CLIENTS) if client != BAD]
    assert trial.took_part() == [others, list(range(CLIENTS))]
    (lost,) = trial.audit("lost")
    assert lost["client"] == BAD
    assert "No space left on device" in lost["why"]
    assert f"{DECLINES}Cannot write" in capsys.readouterr().out
