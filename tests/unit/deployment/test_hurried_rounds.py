"""Rounds that do not wait: closed early, with more clients than needed, with late updates, without stragglers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Message

import leanfed
from leanfed.deployment.learning.planning import far_world
from tests.unit.deployment.fleets import CLIENTS, Trial, settings_of

SLOW = 2


def slow_in(trial: Trial, rounds: set[str], seconds: float) -> None:
    """Client 2 takes this long in these rounds."""
    node = trial.grid.nodes[100 + SLOW]

    def dawdle(order: Message, reply: Message) -> Message:
        node.delay_s = seconds if order.metadata.group_id in rounds else 1.0
        return reply

    node.twist = dawdle


def test_a_round_closes_when_enough_have_answered(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=2, evaluation={"every": 10}), tmp_path, {"close-at": 0.8})
    slow_in(trial, {"0"}, 20.0)
    trial.play()
    assert trial.table("rounds")["elapsed_s"].to_list() == [1.0, 1.0]
    assert trial.took_part() == [[0, 1, 3, 4]] * 2  # in round 1 it is still at work, and is not asked
    assert trial.audit("rests") == []  # nobody missed a deadline


def test_a_late_update_is_used_in_the_round_that_it_meets(tmp_path: Path) -> None:
    settings = settings_of(rounds=4, evaluation={"every": 10})
    trial = Trial(settings, tmp_path, {"close-at": 0.8, "late": "use"})
    slow_in(trial, {"0"}, 2.2)
    trial.play()
    (used,) = trial.audit("used_late")
    assert (used["client"], used["of_round"]) == (SLOW, 0)
    took_part = trial.took_part()
    assert SLOW not in took_part[0]
    assert SLOW in took_part[used["round"]]
    assert SLOW in took_part[3]
    assert trial.audit("store_fresh") == trial.audit("store_ahead") == []  # both sides agree on what was applied
    assert trial.table("clients").filter(client=SLOW)["k"].to_list()[0] == 0.1  # charged by its own order


def test_stragglers_rest_for_longer_each_time_and_come_back(tmp_path: Path) -> None:
    settings = settings_of(rounds=9, evaluation={"every": 20})
    trial = Trial(settings, tmp_path)
    slow_in(trial, {"0", "2"}, 31.0)
    trial.play()
    rests = [(row["round"], row["until_round"]) for row in trial.audit("rests")]
    assert rests == [(0, 2), (2, 5)]  # one round, then two
    seconds = trial.table("rounds")["elapsed_s"].to_list()
    assert [number for number, elapsed in enumerate(seconds) if elapsed >= 30.0] == [0, 2]
    took_part = trial.took_part()
    assert [SLOW in clients for clients in took_part] == [False] * 5 + [True] * 4
    same = settings_of(rounds=9, evaluation={"every": 20}, participation={"cohorts": took_part})
    assert trial.losses() == leanfed.run(same).rounds["train_loss"].to_list()


def test_half_of_the_fleet_may_drop_out_of_every_round(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=4, evaluation={"every": 10}), tmp_path, {"quorum": 0.4, "rest-rounds": 0})
    for client, node in enumerate(trial.grid.nodes.values()):

        def drop(order: Message, reply: Message, client: int = client) -> Message | None:
            number = order.metadata.group_id
            return None if number.isdigit() and (int(number) + client) % 2 else reply

        node.twist = drop
    trial.play()
    assert trial.table("rounds")["round"].to_list() == [0, 1, 2, 3]
    assert {client for clients in trial.took_part() for client in clients} == set(range(CLIENTS))
    assert all(2 <= len(clients) <= 3 for clients in trial.took_part())


def test_more_clients_are_asked_and_the_settings_number_closes_the_round(tmp_path: Path) -> None:
    settings = settings_of(rounds=2, participation={"fraction": 0.4}, evaluation={"every": 10})
    world = far_world(settings, dict.fromkeys(range(CLIENTS), 10), {}, 1.0)
    cohorts = [world.cohort(number, range(CLIENTS)) for number in range(20)]
    assert {len(cohort) for cohort in cohorts} == {4}
    assert all(set(world.cohort(number)) < set(cohort) for number, cohort in enumerate(cohorts))
    assert len(set(cohorts)) > 1
    trial = Trial(settings, tmp_path, {"over-selection": 1.0})
    trial.grid.nodes[100 + SLOW].delay_s = trial.grid.nodes[100].delay_s = 20.0
    trial.play()
    assert np.all(trial.table("rounds")["elapsed_s"].to_numpy() < 20.0)
    assert all(len(clients) >= 2 for clients in trial.took_part())


def test_a_device_that_was_not_heard_of_is_probed_while_others_train(tmp_path: Path) -> None:
    """Two of five train in a round and nobody is tested: who sits out is measured again after a round of silence."""
    changes = {"participation": {"fraction": 0.4}, "evaluation": {"every": 9}}
    trial = Trial(settings_of(rounds=4, **changes), tmp_path, {"probe-rounds": 1, "probe-kb": 8})
    trial.play()
    asked = trial.took_part()
    later = [row for row in trial.audit("probed") if row["round"] > 0]
    assert later
    for row in later:
        number, client = row["round"], row["client"]
        assert client not in asked[number]
        assert client not in asked[number - 1]  # it was silent for longer than a round
        assert row["bytes"] == 8000
    quiet = Trial(settings_of(rounds=2, **changes), tmp_path / "quiet", {"probe-kb": 0})
    quiet.play()
    assert quiet.audit("probed") == []
