"""Differences on the way down, over the grid in memory: the same view everywhere, whatever was missed or lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from flwr.app import Error, Message

import leanfed
from leanfed.algorithms.contract import ServerState
from leanfed.compression.codec import encode
from leanfed.deployment.learning.messages import Behind, BehindError, MessageError, base_frames, base_record, pack
from leanfed.deployment.learning.views import Views, followed, name_of
from leanfed.rounds.broadcast import VIEW, Differences, advanced
from tests.unit.deployment.fleets import CLIENTS, Trial, die_when, settings_of

ROOT = Path(__file__).resolve().parents[3]
BAD = 2
BOTH_WAYS = {"values": "log8", "broadcast": "difference"}
SIZE = 1000


def small_fleet(**changes: Any) -> Any:
    return settings_of(**{"rounds": 4, "evaluation": {"every": 10}, "radio": BOTH_WAYS, **changes})


def lost_in(*numbers: int) -> Callable[[Message, Message], Message | None]:
    """No answer of these rounds arrives."""
    return lambda order, reply: None if order.metadata.group_id in map(str, numbers) else reply


def view_of(trial: Trial, client: int) -> str:
    (path,) = trial.store(client).glob("view-*.f32")
    return path.stem


def same_as_simulated(trial: Trial) -> None:
    """The losses of the simulation in which the same clients took part in each round, to the last bit."""
    values = {**trial.settings.resolved(), "participation": {"cohorts": trial.took_part()}}
    assert trial.losses() == leanfed.run(type(trial.settings).from_values(values)).rounds["train_loss"].to_list()


def test_both_directions_take_a_seventh_of_what_they_took(tmp_path: Path) -> None:
    """Frames as they were sent; after the first round, which brings the base to nodes that have nothing."""
    bytes_of = {}
    for name, radio in (("today", {}), ("light", BOTH_WAYS)):
        trial = Trial(small_fleet(radio=radio), tmp_path / name)
        trial.play()
        rounds, clients = trial.table("rounds"), trial.table("clients")
        up = clients.group_by("round", maintain_order=True).agg(pl.col("frame_bytes").sum())["frame_bytes"]
        bytes_of[name] = (rounds["base_bytes"] + up).to_numpy()
        down = clients.filter(clients["round"] > 0)["base_bytes"]
        assert (down == rounds["base_bytes"][1] / CLIENTS).all()
    assert bytes_of["light"][0] > 0.8 * bytes_of["today"][0]
    assert (bytes_of["light"][1:] < 0.15 * bytes_of["today"][1:]).all()


def test_a_node_that_missed_rounds_has_the_view_of_all_others(tmp_path: Path) -> None:
    """It was away for two rounds, and is sent the differences of both: nobody can tell its view from the others'."""
    trial = Trial(small_fleet(), tmp_path)
    node = trial.grid.nodes[100 + BAD]

    def away(order: Message, reply: Message) -> Message:
        node.online = order.metadata.group_id not in ("0", "1")
        return reply

    trial.grid.nodes[100 + CLIENTS - 1].twist = away  # the last that orders are sent to
    trial.play()
    assert [BAD in clients for clients in trial.took_part()] == [True, False, False, True]
    assert len({view_of(trial, client) for client in range(CLIENTS)}) == 1
    rows = trial.table("clients")
    mine, theirs = (rows.filter((rows["round"] == 3) & (rows["client"] == c))["base_bytes"].item() for c in (BAD, 0))
    assert 2.8 * theirs < mine < 3.2 * theirs
    same_as_simulated(trial)


def test_an_answer_that_gets_lost_leaves_a_node_ahead_of_what_the_server_knows(tmp_path: Path) -> None:
    trial = Trial(small_fleet(), tmp_path)

    def fail(order: Message, reply: Message) -> Message:
        lost = order.metadata.group_id == "1"
        return Message(Error(code=3, reason="Node Unavailable"), reply_to=order) if lost else reply

    trial.grid.nodes[100 + BAD].twist = fail
    trial.play()
    assert [BAD in clients for clients in trial.took_part()] == [True, False, True, True]
    assert trial.audit("behind") == []
    assert len({view_of(trial, client) for client in range(CLIENTS)}) == 1
    same_as_simulated(trial)


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_node_without_its_view_is_sent_the_base_in_the_same_round(tmp_path: Path, damage: str) -> None:
    trial = Trial(small_fleet(), tmp_path)

    def lose(order: Message, reply: Message) -> Message:
        if order.metadata.group_id == "1":
            (path,) = trial.store(BAD).glob("view-*.f32")
            path.unlink() if damage == "lost" else path.write_bytes(path.read_bytes()[:-4])
        return reply

    trial.grid.nodes[100 + BAD].twist = lose
    trial.play()
    (behind,) = trial.audit("behind")
    assert (behind["client"], behind["round"]) == (BAD, 2)
    assert "this node has no view, the order goes on from" in behind["why"]
    assert trial.took_part() == [list(range(CLIENTS))] * 4
    assert trial.audit("refused") == []
    same_as_simulated(trial)


def test_a_view_that_the_server_does_not_know_is_answered_with_the_base(tmp_path: Path) -> None:
    trial = Trial(small_fleet(), tmp_path)

    def boast(order: Message, reply: Message) -> Message:
        if "hello" in reply.content:
            reply.content["hello"]["view"] = "ab" * 16
        return reply

    trial.grid.nodes[100 + BAD].twist = boast
    trial.play()
    (unknown,) = trial.audit("unknown_view")
    assert (unknown["client"], unknown["round"], unknown["view"]) == (BAD, 0, "ab" * 16)
    same_as_simulated(trial)


def test_who_says_to_be_behind_the_base_is_refused(tmp_path: Path) -> None:
    trial = Trial(small_fleet(rounds=3), tmp_path)

    def complain(order: Message, reply: Message) -> Message:
        if "order" not in order.content:
            return reply
        said = order.content["order"]
        behind = Behind(run=str(said["run"]), token=str(said["token"]), why="I will not")
        return Message(pack(behind=behind), reply_to=order)

    trial.grid.nodes[100 + BAD].twist = complain
    trial.play()
    assert all(BAD not in clients for clients in trial.took_part())
    refused = trial.audit("refused")
    assert {row["why"] for row in refused} == {"it says to be behind, though it was sent the base"}
    assert len(refused) == 2  # then it is set aside


@pytest.mark.parametrize("killed_after", [1, 2])
def test_a_server_that_dies_knows_the_views_again(tmp_path: Path, killed_after: int) -> None:
    trial = Trial(small_fleet(), tmp_path, {"fleet": "profile"})
    die_when(trial, round_number=killed_after)
    with pytest.raises(RuntimeError, match="power cut"):
        trial.play()
    trial.play(resume=True)
    same_as_simulated(trial)
    assert trial.audit("unknown_view") == []
    assert trial.table("rounds")["base_bytes"].to_numpy()[1:].max() < 0.1 * 4 * 50_692 * CLIENTS


def test_a_server_that_goes_back_sends_the_base_to_views_of_the_future(tmp_path: Path) -> None:
    trial = Trial(small_fleet(rounds=6), tmp_path, {"attempts": 1, "quorum": 1.0})
    trial.grid.nodes[100].twist = lost_in(5)
    with pytest.raises(Exception, match="no quorum"):
        trial.play()
    trial.grid.nodes[100].twist = lambda order, reply: reply
    trial.config["roll-back"] = 2
    trial.play(resume=True)
    assert {row["round"] for row in trial.audit("unknown_view")} == {3}
    assert len({view_of(trial, client) for client in range(CLIENTS)}) == 1


def test_the_bytes_that_the_documents_tell_were_measured() -> None:
    rows = json.loads((ROOT / "results/fleet/bytes.json").read_text())
    share = {row["radio"].partition(",")[0]: row["of_today"] for row in rows}
    assert share["float32"] == 1.0
    assert share["log8"] < 0.15
    told = " ".join(f"{share[kind]:.3f} with `{kind}`" for kind in ("log8", "log4", "sign"))
    line = next(line for line in (ROOT / "docs/measurements.md").read_text().splitlines() if "fleet_bytes" in line)
    assert re.findall(r"[\d.]+ with `\w+`", line) == re.findall(r"[\d.]+ with `\w+`", told)


# Views by themselves


def chain(count: int, how: Differences) -> tuple[Views, list[torch.Tensor]]:
    """Views after so many rounds of a base that wanders, and each of them."""
    rng = np.random.default_rng(7)
    server = ServerState(torch.zeros(SIZE))
    server, views = Views.unpacked(how, server)
    known = [views.view]
    for number in range(count):
        after = ServerState(server.shared + torch.from_numpy(rng.normal(size=SIZE).astype(np.float32)), server.memory)
        server, difference = advanced(how, server, after, 0, number)
        views.advance(server, difference)
        known.append(server.memory[VIEW])
    return views, known


def test_differences_are_kept_while_they_are_shorter_than_the_base() -> None:
    how = Differences(0.1, "log8")
    views, known = chain(40, how)
    one = how.bits(SIZE) / 8
    reach = [len(views.parcel(name_of(view)).frames) for view in known]
    assert reach[-1] == 0
    assert reach[-4:] == [3, 2, 1, 0]
    kept = len(views.steps)
    assert 4 * SIZE / (one + 40) - 2 < kept < 4 * SIZE / one
    oldest = views.parcel(name_of(known[0]))
    assert oldest.unknown
    assert len(oldest.frames[0]) > 4 * SIZE
    for view in (known[-1 - kept], known[-5], known[0]):
        parcel = views.parcel(name_of(view))
        assert parcel.bytes < 4 * SIZE + 64
        assert parcel.views is not None
        assert followed(view, parcel.views, parcel.frames, SIZE).equal(known[-1])


def test_a_checkpoint_holds_the_differences() -> None:
    views, known = chain(5, Differences(0.05, "sign"))
    saved, lengths = views.packed(ServerState(torch.ones(SIZE), {VIEW: known[-1]}))
    server, again = Views.unpacked(views.how, saved, lengths)
    assert (again.steps, again.newest) == (views.steps, views.newest)
    assert set(server.memory) == {VIEW}


def test_frames_of_a_hostile_server_are_refused_in_words() -> None:
    views, known = chain(3, Differences(0.1, "log8"))
    parcel = views.parcel(name_of(known[0]))
    names, frames = parcel.views, list(parcel.frames)
    assert names is not None
    other = encode(SIZE + 1, [3], [1.0])
    cases: list[tuple[list[str], list[bytes], type[Exception], str]] = [
        (list(names), [*frames[:2], b"nonsense"], MessageError, "Frame refused"),
        (list(names), [*frames[:2], other], MessageError, f"at most {SIZE}|entries"),
        (list(names), frames[:2], MessageError, "2 differences cannot lead through 4 views"),
        (list(names), [frames[0], frames[1], frames[1]], BehindError, "where the order names"),
        (["ef" * 16, *names[1:]], frames, BehindError, f"this node has the view {names[0]}"),
        ([names[-1]], [frames[0]], MessageError, "the base has 100 of 1000 entries"),
        ([names[-1]], [encode(SIZE, None, np.zeros(SIZE))], BehindError, "where the order names"),
        ([names[-1]], frames, MessageError, "3 frames, where the base is one"),
    ]
    for through, sent, error, words in cases:
        with pytest.raises(error, match=words):
            followed(known[0], through, sent, SIZE)


def test_frames_travel_in_their_order_and_nothing_else_does() -> None:
    frames = [bytes([n]) * (n + 1) for n in range(12)]
    assert base_frames(pack(base=base_record(frames))) == frames
    assert base_frames(pack()) == []
    record = base_record(frames)
    assert record is not None
    del record["frame.3"]
    with pytest.raises(MessageError, match="not made of frames"):
        base_frames(pack(base=record))
