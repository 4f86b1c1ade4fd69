"""Fleets with mixed versions: an older node under this server, this node under an older and under a newer server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import ConfigDict, Field

from leanfed.deployment.learning.config import run_config, run_config_of_node
from leanfed.deployment.learning.messages import HelloRequest, Speaks, pack, unpack
from leanfed.deployment.learning.progress import round_line
from leanfed.errors import SettingsError
from leanfed.records import Section
from tests.unit.deployment.fleets import CLIENTS, Trial, settings_of

OLD = 103  # the node that was not upgraded


class OldHello(Section):
    """The greeting as version 1 reads it: these keys and no others."""

    model_config = ConfigDict(strict=True, extra="forbid")

    protocol: int = Field(ge=1, le=1)
    client: int
    samples: int
    test_samples: int
    majority_guess: float
    round: int
    view: str | None = None
    sent_at: float


def as_of_version_1(order: Message, reply: Message) -> Message:
    """What a node of version 1 would send: an error for what it cannot read, and no word of versions."""
    known = {"request", "order", "base"}
    assert set(order.content) <= known, f"an old node was sent {set(order.content) - known}"
    reply.content.pop("speaks", None)
    return reply


def test_an_older_node_takes_part_and_is_sent_nothing_new(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=2), tmp_path)
    trial.grid.nodes[OLD].twist = as_of_version_1
    trial.play()
    assert trial.took_part() == [list(range(CLIENTS))] * 2
    assert {row["client"]: row["speaks"] for row in trial.audit("joined")} == {0: 2, 1: 2, 2: 2, 3: 1, 4: 2}
    assert sorted(row["client"] for row in trial.audit("probed")) == [0, 1, 2, 4]


def test_an_older_server_reads_our_greeting_and_our_answers(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=1), tmp_path, {"probe-kb": 0})
    seen: list[RecordDict] = []

    def look(order: Message, reply: Message) -> Message:
        seen.append(reply.content)
        return reply

    trial.grid.nodes[OLD].twist = look
    trial.play()
    assert all(set(order.content) <= {"request", "order", "base"} for order in trial.grid.seen)
    hello = seen[0]["hello"]
    assert isinstance(hello, ConfigRecord)
    OldHello.model_validate(dict(hello))
    assert set(seen[1]) == {"answer", "device"}


def test_a_newer_node_counts_as_what_both_know(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=1), tmp_path)

    def newer(order: Message, reply: Message) -> Message:
        if "speaks" in reply.content:
            record = reply.content["speaks"]
            assert isinstance(record, ConfigRecord)
            record["version"], record["sings"] = 9, True
        return reply

    trial.grid.nodes[OLD].twist = newer
    trial.play()
    assert next(row for row in trial.audit("joined") if row["client"] == 3)["speaks"] == 2


def test_a_question_of_protocol_1_is_what_we_ask() -> None:
    record = pack(request=HelloRequest(run="a"))["request"]
    assert dict(record) == {"protocol": 1, "run": "a"}  # type: ignore[call-overload]
    with pytest.raises(Exception, match="speaks.version"):
        unpack(RecordDict({"speaks": ConfigRecord({"version": 0, "work_s": 0.0})}), "speaks", Speaks)


def test_a_node_leaves_keys_of_a_newer_server_alone() -> None:
    values: dict[str, Any] = {"deadline-s": 7.0, "of-the-future": 1}
    assert run_config_of_node(values).deadline_s == 7.0
    with pytest.raises(SettingsError, match="of-the-future"):
        run_config(values)  # on the server it is a slip


def test_a_round_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(settings_of(rounds=2), tmp_path)
    trial.play()
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    assert first.startswith(f"round 1 of 2: {CLIENTS} of {CLIENTS} updates in ")
    assert first.endswith(" left")
    assert not second.endswith(" left")
    row = {"round": 9, "participants": 2, "train_loss": None, "elapsed_s": 1.0, "latency_s": 2.0}
    told = round_line(row, rounds=1010, asked=4, counts={"set_aside": 2}, tested=(3, 0.5), durations_s=[36.0])
    assert told.startswith("round 10 of 1010: 2 of 4 updates in 1.0 s (2.0 predicted), accuracy 0.5000 after round 4, ")
    assert told.endswith(", 2 set aside; 10.0 h left")
