"""One bad node cannot end a run: bounds on updates, claims and weight, keys that are numbers, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from hypothesis import given
from hypothesis import strategies as some

import leanfed
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.uploads import Upload
from leanfed.compression.codec import encode
from leanfed.deployment.learning.good_states import KEPT, GoodStates
from leanfed.deployment.learning.screen import Screen, capped, lower_median
from leanfed.deployment.learning.server import DivergedError
from leanfed.errors import InputError
from leanfed.rounds.aggregation import AGGREGATIONS
from leanfed.rounds.wire import from_frame
from tests.unit.deployment.fleets import CLIENTS, Trial, settings_of
from tests.unit.deployment.test_faults import BAD, rewritten, without

SIZE = 50_692
OWN = {"dataset": "mnist", "partition": {"kind": "class", "classes_per_client": 2, "clients": CLIENTS}}


def scaled(reply: Message, factor: float) -> Message:
    """The honest update times a factor: finite, well-formed, of the right size."""
    if "answer" not in reply.content or not reply.content["answer"]["frame"]:
        return reply
    upload = from_frame(reply.content["answer"]["frame"], max_size=SIZE)
    values = upload.values.numpy() * np.float32(factor)
    return rewritten(reply, frame=encode(SIZE, upload.positions.numpy(), values))


def said(reply: Message, **claims: Any) -> Message:
    """The honest greeting with some claims changed."""
    if "hello" in reply.content:
        reply.content["hello"] = ConfigRecord({**dict(reply.content["hello"]), **claims})
    return reply


def play(tmp_path: Path, twist: Callable[[Message, Message], Message | None], rounds: int = 3, **changes: Any) -> Trial:
    trial = Trial(settings_of(rounds=rounds), tmp_path, changes)
    trial.grid.nodes[100 + BAD].twist = twist
    trial.play()
    return trial


def test_finite_huge_values_are_refused_and_the_run_is_the_one_without_them(tmp_path: Path) -> None:
    factors = {"0": 1e30, "1": -1000.0}
    trial = play(tmp_path, lambda order, reply: scaled(reply, factors.get(order.metadata.group_id, 1.0)))
    refused = trial.audit("refused")
    assert [(row["kind"], row["client"]) for row in refused] == [("too-large", BAD)] * 2
    assert trial.losses() == leanfed.run(without({BAD}, 3)).rounds["train_loss"].to_list()
    (aside,) = trial.audit("set_aside")
    assert aside["reasons"] == ["too-large", "too-large"]


def test_an_honest_run_is_not_touched_by_the_bounds(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=3), tmp_path)
    trial.play()
    assert trial.audit("refused") == []
    assert trial.losses() == leanfed.run(settings_of(rounds=3)).rounds["train_loss"].to_list()


def test_claims_that_cannot_be_are_refused(tmp_path: Path) -> None:
    claims: list[dict[str, Any]] = [{"loss": 1e9}, {"loss": -1.0}, {"train_s": 1e6}, {"samples": 10**6}]

    def twist(order: Message, reply: Message) -> Message:
        number = order.metadata.group_id
        return rewritten(reply, **claims[int(number)]) if number.isdigit() and int(number) < len(claims) else reply

    trial = play(tmp_path, twist, rounds=len(claims), offences=100)
    assert [(row["kind"], row["client"]) for row in trial.audit("refused")] == [("implausible", BAD)] * len(claims)


def test_more_samples_than_anybody_agreed_to_are_refused_at_joining(tmp_path: Path) -> None:
    trial = play(tmp_path, lambda order, reply: said(reply, samples=10**15), rounds=2)
    (refused,) = trial.audit("refused")
    assert (refused["kind"], refused["node"]) == ("too-many-samples", 100 + BAD)
    assert trial.took_part() == [[c for c in range(CLIENTS) if c != BAD]] * 2


def test_samples_beyond_the_usual_do_not_buy_weight(tmp_path: Path) -> None:
    trial = play(tmp_path, lambda order, reply: said(reply, samples=900_000), rounds=1)
    (row,) = trial.audit("samples_capped")
    others = [r["samples"] for r in trial.audit("joined") if r["client"] != BAD]
    assert row["counts"] == 10 * lower_median([*others, 900_000])
    assert len(trial.audit("accepted")) == CLIENTS


def bound_to(tmp_path: Path, **changes: dict[str, Any]) -> str:
    """A file as the server writes it: every node is bound to the client of its key."""
    table = {str(100 + n): {"client_id": n, "name": f"edge-{n}", "samples": None} for n in range(CLIENTS)}
    for client, changed in changes.items():
        table[str(100 + int(client))] |= changed
    (tmp_path / "bindings.json").write_text(json.dumps(table))
    return str(tmp_path / "bindings.json")


def test_a_number_belongs_to_a_key(tmp_path: Path) -> None:
    """Client 2's node left; another key with an edited number does not get in, and its own number is not lost."""
    trial = Trial(settings_of(rounds=2), tmp_path, {"bindings": bound_to(tmp_path), "nodes": CLIENTS - 2})
    trial.grid.nodes[100 + BAD].online = False
    trial.grid.nodes[100].config["client-id"] = BAD
    trial.play()
    (refused,) = trial.audit("refused")
    assert refused["kind"] == "wrong-client"
    assert refused["why"] == "it says client 2, but its key is that of edge-0, client 0"
    assert trial.took_part() == [[1, 3, 4]] * 2


def test_what_was_agreed_at_enrolment_holds(tmp_path: Path) -> None:
    changes = {"bindings": bound_to(tmp_path, **{"2": {"samples": 5}}), "nodes": CLIENTS - 1}
    trial = Trial(settings_of(rounds=1), tmp_path, changes)
    trial.play()
    (refused,) = trial.audit("refused")
    assert (refused["kind"], refused["node"]) == ("too-many-samples", 102)
    assert refused["why"].endswith("and 5 are the most agreed")


def test_a_node_that_cannot_take_part_says_why_once_and_is_asked_later(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=1, task=OWN), tmp_path, {"join-s": 20.0})
    for node in trial.grid.nodes.values():
        node.config |= {"data": "own", "data-dir": str(tmp_path / "pictures")}
    with pytest.raises(Exception, match="No node joined"):
        trial.play()
    refused = trial.audit("refused")
    assert {row["kind"] for row in refused} == {"declined"}
    assert str(tmp_path / "pictures") in refused[0]["why"]
    assert len(refused) == 3 * CLIENTS  # at once, and after 5 and 10 seconds more


def test_a_client_that_was_set_aside_can_be_taken_back(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=4), tmp_path, {"quorum": 1.0, "attempts": 3})
    bad, silent = trial.grid.nodes[100 + BAD], trial.grid.nodes[100]
    bad.twist = lambda order, reply: scaled(reply, 1e6)
    silent.twist = lambda order, reply: None if order.metadata.group_id == "2" else reply
    with pytest.raises(Exception, match="no quorum"):
        trial.play()
    bad.twist = silent.twist = lambda order, reply: reply
    trial.config["release"] = BAD
    trial.play(resume=True)
    assert [row["client"] for row in trial.audit("released")] == [BAD]
    assert BAD in trial.took_part()[-1]


def poison(number: int) -> Callable[[Message, Message], Message]:
    """All clients push the base far away together in one round: no median helps against a majority."""
    return lambda order, reply: scaled(reply, -30_000.0) if order.metadata.group_id == str(number) else reply


def test_a_base_that_diverged_is_left_and_the_run_goes_on_from_the_state_before(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=6, evaluation={"every": 10}), tmp_path, {"divergence": 2.0})
    once = {"left": CLIENTS}

    def push(order: Message, reply: Message) -> Message:
        if order.metadata.group_id == "3" and once["left"] > 0:
            once["left"] -= 1
            return scaled(reply, -30_000.0)
        return reply

    for node in trial.grid.nodes.values():
        node.twist = push
    trial.play()
    (diverged,), (back,) = trial.audit("diverged"), trial.audit("rolled_back")
    assert (diverged["round"], back["round"], back["why"]) == (4, 3, "divergence")
    assert back["norm_bound"] == 5.0
    assert trial.table("rounds")["round"].to_list() == list(range(6))
    assert max(trial.losses()) < 4.0


def test_a_run_that_diverges_again_and_again_stops_in_words(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=6, evaluation={"every": 10}), tmp_path, {"divergence": 2.0})
    for node in trial.grid.nodes.values():
        node.twist = poison(3)
    with pytest.raises(DivergedError, match="its good states are kept"):
        trial.play()
    assert GoodStates(trial.folder / "checkpoint").rounds()


def test_the_owner_can_go_back_to_one_of_five_states(tmp_path: Path) -> None:
    settings = settings_of(rounds=8, evaluation={"every": 10})
    trial = Trial(settings, tmp_path, {"attempts": 1, "quorum": 1.0})
    silent = trial.grid.nodes[100]
    silent.twist = lambda order, reply: None if order.metadata.group_id == "7" else reply
    with pytest.raises(Exception, match="no quorum"):
        trial.play()
    good = GoodStates(trial.folder / "checkpoint")
    assert good.rounds() == [3, 4, 5, 6, 7]
    assert len(good.rounds()) == KEPT
    with pytest.raises(InputError, match=r"Cannot go back 5 rounds.*3, 4, 5, 6, 7.*Allowed: 1 to 4"):
        good.go_back(5)
    silent.twist = lambda order, reply: reply
    trial.config["roll-back"] = 3
    trial.play(resume=True)
    assert [row["round"] for row in trial.audit("rolled_back")] == [4]
    assert trial.table("rounds")["round"].to_list() == list(range(8))


@pytest.mark.parametrize("rule", sorted(AGGREGATIONS))
def test_every_rule_of_aggregation_is_that_of_the_simulator(tmp_path: Path, rule: str) -> None:
    method = {"name": "flpdsp"} if AGGREGATIONS[rule]().misfit(Flpdsp()) is None else {"name": "fedper"}
    settings = settings_of(rounds=2, aggregation={"name": rule}, algorithm=method)
    trial = Trial(settings, tmp_path)
    trial.play()
    assert trial.losses() == leanfed.run(settings).rounds["train_loss"].to_list()


def upload(norm: float) -> Upload:
    return Upload(4, torch.tensor([norm, 0.0, 0.0, 0.0]))


def test_a_round_of_two_is_judged_by_earlier_rounds() -> None:
    screen = Screen(norm_bound=10.0, divergence=0.0)
    assert screen.offenders({c: (upload(2.0 + c), 1.0) for c in range(4)}) == {}
    found = screen.offenders({0: (upload(300.0), 1.0), 1: (upload(290.0), 1.0)})
    assert {client: error.kind for client, error in found.items()} == {0: "too-large", 1: "too-large"}
    assert screen.offenders({0: (upload(29.0), 1.0)}) == {}  # usual 3, ten times that allowed


@given(some.lists(some.floats(1e-3, 1e3), min_size=3, max_size=9), some.integers(0, 8))
def test_one_of_many_never_decides_what_is_usual(norms: list[float], place: int) -> None:
    """Whatever one client sends, the others are judged by a value that lies among the others'."""
    others = [norm for n, norm in enumerate(norms) if n != place % len(norms)]
    for lie in (0.0, 1e30):
        assert min(others) <= lower_median([*others, lie]) <= max(others) or lie == 0.0


@given(some.dictionaries(some.integers(0, 50), some.integers(1, 10**9), min_size=1), some.floats(1.0, 100.0))
def test_capping_only_lowers_and_never_to_nothing(samples: dict[int, int], ratio: float) -> None:
    counted = capped(samples, ratio)
    assert all(1 <= counted[client] <= samples[client] for client in samples)
    assert capped(samples, 0.0) == samples
