"""Fleets whose server sees sums alone, over the grid in memory: real apps, real messages, real training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message
from safetensors.numpy import load_file

import leanfed
from leanfed.compression.ring import packed, wrapped
from leanfed.deployment.learning.config import read_settings
from leanfed.deployment.learning.messages import Order, base_frames, unpack
from leanfed.deployment.learning.server import NoQuorumError
from leanfed.deployment.masking.node import Cover
from leanfed.deployment.masking.records import WANT_KEYS, WANT_SHARES, WANT_UNMASKING
from leanfed.deployment.masking.sums import MaskedRound
from leanfed.errors import SettingsError
from leanfed.records import Ints
from leanfed.rounds.checkpoint import Checkpoints
from leanfed.wireless.masking import MaskedSum
from tests.thinned import by_default
from tests.unit.deployment.fleets import CLIENTS, Trial, settings_of

EVERYBODY = list(range(CLIENTS))
COMMON = {"name": "flpdsp", "k": 0.1, "r": 0.8, "sparsify": {"select": "common", "error_feedback": True}}
MASKED = {"masked_sum": True}
QUIET = {"fleet": "profile", "probe-kb": 0}


@dataclass
class Seen:
    """What clients rounded and sent, and what the server made of it."""

    rounded: dict[tuple[int, int], Ints] = field(default_factory=dict)  # (round, client) -> its summand
    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)
    totals: dict[int, tuple[list[int], Ints]] = field(default_factory=dict)  # round -> whose sum, and the sum


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found, frame, total = Seen(), Cover.frame, MaskedRound.total

    def look(cover: Cover, values: Any) -> Any:
        place = (cover.order.round, cover.order.client)
        weight = dict(zip(cover.said.clients, cover.said.weights, strict=True))[cover.order.client]
        found.rounded[place] = cover.masks.rules.grid.rounded(weight * values.astype(float))[0]
        result = frame(cover, values)
        found.sent[place] = result[0]
        return result

    def add(self: MaskedRound, uploads: Any) -> Ints:
        result = total(self, uploads)
        found.totals[self.number] = (sorted(uploads), result)
        return result

    monkeypatch.setattr(Cover, "frame", look)
    monkeypatch.setattr(MaskedRound, "total", add)
    yield found
    for number, (clients, result) in found.totals.items():  # in whatever a test tries
        assert result.tolist() == sum(found.rounded[number, one] for one in clients).tolist()


def trial_of(tmp_path: Path, *, config: dict[str, Any] | None = None, **changes: Any) -> Trial:
    values = {"algorithm": COMMON, "radio": MASKED, "evaluation": {"every": 10}, **changes}
    return Trial(settings_of(**values), tmp_path, {**QUIET, **(config or {})})


def silent_in(trial: Trial, name: str, number: int, clients: set[int]) -> None:
    """These clients do not answer one message of a round."""

    def twist(order: Message, reply: Message) -> Message | None:
        record = order.content.get(name)
        return None if isinstance(record, ConfigRecord) and record["round"] == number else reply

    for client in clients:
        trial.grid.nodes[100 + client].twist = twist


LEARNED: dict[str, dict[str, Any]] = {
    "common": {},
    "dense": {"algorithm": {"name": "fedavg"}},
    "ring": {"radio": {"masked_sum": True, "mask_neighbours": 2}},
    "differences": {"radio": {**MASKED, "broadcast": "difference", "values_down": "log8"}},
}


@pytest.mark.parametrize("name", by_default(LEARNED, "ring", "differences"))
def test_a_masked_fleet_learns_from_the_sums_what_the_simulator_learns_from_updates(
    tmp_path: Path, seen: Seen, name: str
) -> None:
    """Sums are those of the rounded values, bit for bit; rounding to 2^-27 moves losses by no more than 1e-6."""
    trial = trial_of(tmp_path, **LEARNED[name])
    trial.play()
    assert trial.took_part() == [EVERYBODY] * 3
    assert [clients for clients, _ in seen.totals.values()] == [EVERYBODY] * 3
    there = leanfed.run(trial.settings).rounds
    assert trial.losses() == pytest.approx(there["train_loss"].to_list(), abs=1e-6)
    assert trial.table("rounds")["upload_bits"].to_list() == there["upload_bits"].to_list()
    assert trial.audit("refused") == trial.audit("declined") == []


def test_no_message_to_the_server_has_an_update_in_it(tmp_path: Path, seen: Seen) -> None:
    trial = trial_of(tmp_path, rounds=2)
    trial.play()
    bits = MaskedSum.of(CLIENTS, None, 32).ring_bits
    everything = b"".join(trial.grid.wire)
    for place, whole in seen.rounded.items():
        plain = packed(wrapped(whole, bits), bits)
        assert seen.sent[place] in everything
        assert plain != seen.sent[place]
        used = [start for start in range(0, len(plain) - 32, 32) if any(plain[start : start + 32])]
        assert not any(plain[start : start + 32] in everything for start in used)
    assert len(set(seen.sent.values())) == 2 * CLIENTS


def test_a_server_that_sees_sums_alone_need_not_see_losses_either(tmp_path: Path, seen: Seen) -> None:
    shown, withheld = (
        trial_of(tmp_path / metrics, rounds=2, privacy={"metrics": metrics}) for metrics in ("shown", "off")
    )
    for trial in (shown, withheld):
        seen.totals.clear()
        trial.play()
        assert [clients for clients, _ in seen.totals.values()] == [EVERYBODY] * 2
    weights = [load_file(trial.folder / "weights.safetensors")["server.shared"] for trial in (shown, withheld)]
    assert (weights[0] == weights[1]).all()
    assert b"\x04loss" in b"".join(shown.grid.wire)
    assert b"\x04loss" not in b"".join(withheld.grid.wire)


@pytest.mark.parametrize("stage", [WANT_KEYS, WANT_SHARES, "order", WANT_UNMASKING])
def test_one_that_drops_out_between_any_two_messages_is_survived(tmp_path: Path, seen: Seen, stage: str) -> None:
    """Four of five shares rebuild a secret. Whoever has uploaded counts, though it never answered the last question."""
    trial = trial_of(tmp_path)
    silent_in(trial, stage, 1, {2})
    trial.play()
    others = [client for client in EVERYBODY if client != 2]
    counted = EVERYBODY if stage == WANT_UNMASKING else others
    assert trial.took_part()[:2] == [EVERYBODY, counted]
    assert seen.totals[1][0] == counted
    if stage != WANT_UNMASKING:
        same = settings_of(algorithm=COMMON, evaluation={"every": 10}, participation={"cohorts": trial.took_part()})
        assert trial.losses() == pytest.approx(leanfed.run(same).rounds["train_loss"].to_list(), abs=1e-6)


def test_with_too_few_shares_the_round_is_given_up_and_the_run_goes_on(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, config={"rest-rounds": 0})
    silent_in(trial, WANT_UNMASKING, 1, {1, 2})
    trial.play()
    (row,) = trial.audit("given_up")
    assert (row["round"], row["why"]) == (1, "3 shares of client 0 came, and 4 rebuild its mask")
    rounds = trial.table("rounds")
    assert rounds["round"].to_list() == [0, 1, 2]
    assert rounds["participants"].to_list()[:2] == [CLIENTS, 0]
    orders = [order for order in trial.grid.seen if "order" in order.content and order.metadata.dst_node_id == 100]
    bases = [base_frames(order.content) for order in orders]
    assert bases[0] != bases[1] == bases[2]  # nothing was applied,
    assert unpack(orders[2].content, "order", Order).applied == 0  # and the nodes forget what they did in round 1


def test_with_too_few_uploads_nobody_is_asked_to_unmask_and_the_round_is_tried_again(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, config={"attempts": 2, "rest-rounds": 0}, rounds=1)
    silent_in(trial, "order", 0, {1, 2})
    trial.play()
    (first,) = trial.audit("not_unmasked")
    assert first["why"] == "3 holders of client 0's shares are left, and 4 are needed"
    assert len(trial.audit("no_quorum")) == 1
    assert trial.took_part() == [[0, 3, 4]]  # of whom two of three shares rebuild a secret
    asked = [order for order in trial.grid.seen if WANT_UNMASKING in order.content]
    assert [order.metadata.dst_node_id for order in asked] == [100, 103, 104]


def test_where_fewer_than_three_announce_keys_there_is_no_sum(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, config={"attempts": 1}, rounds=1)
    silent_in(trial, WANT_KEYS, 0, {0, 1, 2})
    with pytest.raises(NoQuorumError, match="Round 0 had no quorum"):
        trial.play()
    assert not any("order" in order.content for order in trial.grid.seen)


def test_a_server_that_ends_between_unmasking_and_saving_gives_that_round_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes do not unmask a second sum of the same round and base: with other clients the difference would tell."""
    trial, save = trial_of(tmp_path, config={"join-s": 120.0}), Checkpoints.save

    def dying(self: Checkpoints, progress: Any, *more: Any) -> None:
        if progress.round == 2:
            monkeypatch.setattr(Checkpoints, "save", save)
            raise RuntimeError("power cut")
        save(self, progress, *more)

    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(RuntimeError, match="power cut"):
        trial.play()
    trial.play(resume=True)
    (row,) = trial.audit("given_up")
    assert (row["round"], row["why"]) == (1, "5 nodes have unmasked a sum of it before")
    assert trial.table("rounds")["participants"].to_list() == [CLIENTS, 0, CLIENTS]


def test_an_implausible_loss_is_left_out_of_the_sum(tmp_path: Path, seen: Seen) -> None:
    """Losses are not masked: a client whose loss cannot be counts as one that dropped out."""
    trial = trial_of(tmp_path, rounds=1)

    def boast(order: Message, reply: Message) -> Message:
        answer = reply.content.get("answer")
        if isinstance(answer, ConfigRecord) and answer["frame"]:
            answer["loss"] = 1e9
        return reply

    trial.grid.nodes[103].twist = boast
    trial.play()
    assert [row["kind"] for row in trial.audit("refused")] == ["implausible"]
    assert seen.totals[0][0] == [0, 1, 2, 4]


def changed(name: str, key: str, change: Callable[[Any], Any]) -> Callable[[Message, Message], Message]:
    """A node whose reply has one field changed."""

    def twist(order: Message, reply: Message) -> Message:
        record = reply.content.get(name)
        if isinstance(record, ConfigRecord) and record.get(key):
            record[key] = change(record[key])
        return reply

    return twist


@pytest.mark.parametrize(
    ("name", "key", "change", "why"),
    [
        ("keys", "mask", lambda point: bytes(len(point)), "a key that is not on the curve"),
        ("keys", "client", lambda client: client + 1, "another client, or another sum"),
        ("shares", "to", lambda to: [9, *to[1:]], "not for its neighbours"),
        ("answer", "masked", lambda text: "0" * 64, "bound to another base"),
        ("answer", "frame", lambda frame: frame[:-1], "22176 bytes where 5069 numbers of 35 bits are expected"),
        ("unmasking", "of", lambda of: [*of[:-1], 9], "not of those that it holds"),
    ],
    ids=["curve", "client", "to", "base", "short", "of"],
)
def test_what_a_bad_node_sends_is_refused_and_the_sum_goes_on(
    tmp_path: Path, seen: Seen, name: str, key: str, change: Callable[[Any], Any], why: str
) -> None:
    trial = trial_of(tmp_path, rounds=1)
    trial.grid.nodes[102].twist = changed(name, key, change)
    trial.play()
    (refused,) = trial.audit("refused")
    assert (refused["client"], why in refused["why"]) == (2, True)
    assert len(seen.totals[0][0]) == CLIENTS - (name != "unmasking")


def test_bytes_are_counted_and_near_the_formula(tmp_path: Path) -> None:
    """The masked values are the formula's to the byte. Beside them it counts 480 bytes: two keys and 13 shares of 32.

    Ours are longer: 49-byte points, shares with their number and padding, sealed and signed, in named records.
    """
    trial = trial_of(tmp_path, rounds=1)
    trial.play()
    formula = MaskedSum.of(CLIENTS, None, 32)
    clients, (row,) = trial.table("clients"), trial.audit("unmasked")
    assert clients["frame_bytes"].to_list() == [-(-5069 * formula.ring_bits // 8)] * CLIENTS
    assert clients["upload_bits"].to_list() == [float(formula.sent_bits(5069))] * CLIENTS
    assert clients["message_bytes"].sum() > clients["frame_bytes"].sum() + row["bytes_up"]
    assert 1.0 < 8 * clients["message_bytes"].max() / clients["upload_bits"].max() < 1.15
    assert row["asked"] == row["keys"] == row["shared"] == row["uploaded"] == CLIENTS
    assert row["bytes_up"] < CLIENTS * 2500
    assert row["bytes_down"] < CLIENTS * 2500  # and the sealed shares that go with the orders


def test_an_update_that_leaves_the_grid_is_cut_and_noted_on_the_node(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, rounds=1, config={"mask-range": 2.0**-12})
    trial.play()
    (line,) = (trial.store(0) / "sent.jsonl").read_text().splitlines()
    assert json.loads(line)["cut"] > 100


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algorithm": {"name": "flpdsp"}}, "each client chooses its own; set .*'common'"),
        ({"algorithm": {"name": "fedmask"}}, "same entries for all"),
        ({"aggregation": {"name": "clip"}}, "sees no single uploads"),
        ({"radio": {"masked_sum": True, "values": "log4"}}, "whole numbers"),
        ({"radio": {"masked_sum": True, "mask_neighbours": 1}}, "mask_neighbours = 1, and a ring needs two"),
        ({"task": {"partition": {"kind": "iid", "clients": 2}}}, "2 clients, and a sum of fewer than 3"),
    ],
    ids=["own", "votes", "robust", "coded", "pairs", "two"],
)
def test_what_does_not_go_with_masked_sums_is_refused_before_round_0(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read_settings(json.dumps(settings_of(**{"algorithm": COMMON, "radio": MASKED, **changes}).resolved()))


def test_late_updates_do_not_go_with_masked_sums(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, config={"late": "use"})
    with pytest.raises(SettingsError, match="masks of a late update no longer cancel; set late = drop"):
        trial.play()


def test_a_masked_run_sends_no_update_as_it_is(tmp_path: Path) -> None:
    """A server that leaves the masks out of its order gets nothing."""
    trial = trial_of(tmp_path, rounds=1, config={"attempts": 1})
    push = trial.grid._push

    def without(message: Message) -> str:
        message.content.pop("masks", None)
        return push(message)

    trial.grid._push = without  # type: ignore[method-assign]
    with pytest.raises(NoQuorumError):
        trial.play()
    assert {row["why"] for row in trial.audit("declined")} == {
        "the run masks its updates, and this order would have one sent as it is"
    }
