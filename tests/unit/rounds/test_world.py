"""Clients' states, cohorts, evaluation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from leanfed.algorithms.contract import ClientState
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.errors import SettingsError
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.evaluation import Evaluation, evaluate
from leanfed.rounds.loop import start
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World

WorldOf = Callable[..., World]


def started(client: int) -> ClientState:
    return ClientState(torch.full((3,), float(client)))


@pytest.mark.parametrize("limit", [1 << 30, 0], ids=["in memory", "on disk"])
def test_a_store_gives_back_what_was_put_in(limit: int) -> None:
    store = ClientStore(4, started, memory_limit_bytes=limit)
    store[2] = ClientState(torch.tensor([1.0, 2.0, 3.0]), {"residual": torch.tensor([9.0])})
    assert store[2].private.tolist() == [1.0, 2.0, 3.0]
    assert store[2].memory["residual"].tolist() == [9.0]
    assert store[1].private.tolist() == [1.0, 1.0, 1.0]
    assert store[1].memory == {}
    assert store.changed == {2}
    assert store.started() == [1, 2]


def test_a_memory_that_is_no_longer_held_is_gone() -> None:
    store = ClientStore(2, started)
    store[0] = ClientState(torch.zeros(3), {"residual": torch.ones(1)})
    store[0] = ClientState(torch.zeros(3))
    assert store[0].memory == {}
    assert len(store.snapshot([0])["residual"]) == 0


def test_a_state_is_a_copy() -> None:
    store = ClientStore(2, started)
    store[0].private.zero_().add_(7)
    assert store[0].private.tolist() == [0.0, 0.0, 0.0]


def test_a_restored_store_is_the_saved_one() -> None:
    store, other = ClientStore(3, started), ClientStore(3, started)
    store[1] = ClientState(torch.tensor([4.0, 5.0, 6.0]), {"velocity": torch.ones(2)})
    other.restore(store.snapshot([0, 1, 2]), [1])
    assert torch.equal(other[1].private, store[1].private)
    assert torch.equal(other[1].memory["velocity"], torch.ones(2))
    assert other.changed == set()
    assert other.started() == [1]


def test_a_fraction_draws_that_many_anew_each_round(world_of: WorldOf) -> None:
    world = world_of(FedPer(), participation={"fraction": 0.4})
    cohorts = [world.cohort(number) for number in range(20)]
    assert all(len(cohort) == 2 == len(set(cohort)) for cohort in cohorts)
    assert len(set(cohorts)) > 5
    assert cohorts == [world.cohort(number) for number in range(20)]


def test_a_small_fraction_still_draws_one(world_of: WorldOf) -> None:
    assert len(world_of(FedPer(), participation={"fraction": 0.01}).cohort(0)) == 1


def test_lists_of_cohorts_are_used_in_turn(world_of: WorldOf) -> None:
    world = world_of(FedPer(), participation={"cohorts": [[3, 0], [1]]})
    assert [world.cohort(number) for number in range(3)] == [(0, 3), (1,), (0, 3)]


def test_an_unknown_client_in_a_cohort_is_refused(world_of: WorldOf) -> None:
    with pytest.raises(SettingsError, match="names client 5; the last is 4"):
        world_of(FedPer(), participation={"cohorts": [[5]]}).cohort(0)


@pytest.mark.parametrize(
    "wrong", [{"fraction": 0.5, "cohorts": [[0]]}, {"cohorts": [[1, 1]]}, {"cohorts": [[]]}, {"cohorts": []}]
)
def test_a_confused_participation_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Participation.model_validate(wrong)


def test_a_plan_holds_each_participants_own_rates(world_of: WorldOf) -> None:
    world = world_of(Flpdsp(k=(0.1, 0.2, 0.3, 0.4, 0.5), r=1.0), participation={"cohorts": [[1, 4]]})
    assert world.plan(0).k.tolist() == [0.2, 0.5]
    assert world.plan(0).r.tolist() == [1.0, 1.0]


def test_the_worst_decile_is_the_mean_of_the_worst_tenth_rounded_up() -> None:
    accuracy = np.linspace(0, 1, 11)
    result = Evaluation(accuracy, np.zeros(11), np.full(11, 1 / 11))
    assert result.worst_decile == pytest.approx(0.05)  # two of eleven: 0.0 and 0.1
    assert result.accuracy == pytest.approx(0.5)


def test_evaluation_weighs_clients_by_their_samples() -> None:
    result = Evaluation(np.array([1.0, 0.0]), np.array([0.0, 4.0]), np.array([0.75, 0.25]))
    assert (result.accuracy, result.loss) == (0.75, 1.0)


def test_a_client_is_evaluated_with_its_own_head_on_its_own_test_set(world_of: WorldOf) -> None:
    world = world_of(FedPer())
    progress, learner = start(world), world.new_learner()
    result = evaluate(world, progress.server, progress.clients, learner)
    rows = world.task.partition.test[3]
    batch = world.task.test.batch(rows)
    weights = torch.cat([progress.server.shared, progress.clients[3].private])
    expected = (learner.model.logits(weights, batch.inputs).argmax(1) == batch.labels).double().mean().item()
    assert result.accuracy_per_client[3] == pytest.approx(expected)
