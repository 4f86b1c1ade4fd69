"""Sums are exact within a range; what leaves it is refused with the client and the round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import Training, Updates
from leanfed.algorithms.local import DivergedError, local_steps
from leanfed.algorithms.uploads import Dense, Listed, Sparse, Upload
from leanfed.compression import exact
from leanfed.compression.picks import NumpyPicks
from leanfed.rounds.exchange import Collector, check_range
from leanfed.rounds.loop import start
from leanfed.simulation.choose import choose_engine


class Loud(Algorithm):
    """FedAvg, with one client whose gradient is multiplied."""

    client: int = 3
    factor: float = 1.0

    def divide(self, split):
        return split.all_shared()

    def client_update(self, shared, cohort, learner):
        run = local_steps(shared, cohort, learner)
        factors = [self.factor if client == self.client else 1.0 for client in cohort.clients]
        gradient = run.gradient * torch.tensor(factors).unsqueeze(1)
        return Updates(Dense(gradient, len(shared)), run.private, run.memory, run.loss, run.samples)


def sent(values: list[float], gamma: list[float], statistics: float | None = None):
    """The answers of clients that send one value each."""
    weights, collector = np.array(gamma), Collector(1, single=False)
    blank = torch.zeros(len(values), 0)
    rows = None if statistics is None else torch.full((len(values), 1), statistics)
    uploads = Dense(torch.tensor(values).unsqueeze(1), 1)
    collector.receive(weights, Updates(uploads, blank, {}, weights, np.ones(len(values), dtype=int), rows))
    return collector.answers()


@pytest.mark.parametrize("engine", ["batched", "streamed"])
@pytest.mark.parametrize("factor", [1e9, float("inf")])
def test_a_client_that_leaves_the_range_is_named_with_its_round(world_of, engine: str, factor: float) -> None:
    world = world_of(Loud.model_construct(factor=factor), batch_size=8)
    progress, computing = start(world), choose_engine(world, engine, threads=1)
    with pytest.raises(DivergedError, match=r"Client 3 diverged in round 2 .*Lower training.learning_rate"):
        computing.run_round(progress.server, progress.clients, replace(world.plan(0), round=2))


def test_addends_within_the_range_may_not_leave_it_together() -> None:
    check_range(sent([2047.0] * 3, [1.0] * 3), range(3), Training(), 0)
    with pytest.raises(DivergedError, match="Client 4 "):
        check_range(sent([2040.0] * 4 + [2047.0], [1.0] * 5), range(5), Training(), 0)


def test_statistics_have_a_wider_range_of_their_own() -> None:
    check_range(sent([1.0], [1.0], statistics=2.0**20), [0], Training(), 0)
    with pytest.raises(DivergedError, match="Client 0 "):
        check_range(sent([1.0], [1.0], statistics=2.0**21), [0], Training(), 0)


def test_every_form_of_upload_knows_its_largest_value() -> None:
    rows = torch.tensor([[1.0, -5.0, 9.0], [2.0, 0.5, 9.0]])
    chosen = NumpyPicks().largest(rows, np.array([1, 1]), 2)
    entries = np.array([1, 1])
    assert Dense(rows, 2).largest().tolist() == [5.0, 2.0]
    assert Sparse(rows, 2, chosen, entries).largest().tolist() == [5.0, 2.0]
    assert Sparse(rows, 2, chosen, entries, np.array([2.0, 3.0])).largest().tolist() == [10.0, 6.0]
    masks = Upload(2, torch.tensor([True, False]))
    assert Listed([Upload(3, rows[0]), masks, Upload(2, torch.empty(0))]).largest().tolist() == [9.0, 1.0, 0.0]
    assert np.isnan(exact.largest(torch.tensor([[1.0, float("nan")]]))).all()
