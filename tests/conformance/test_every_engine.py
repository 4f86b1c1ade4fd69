"""One battery for every engine: a newcomer gains these tests by being registered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leanfed.algorithms import ALGORITHMS
from leanfed.rounds.aggregation import divided
from leanfed.rounds.engine import ENGINES, Engine
from leanfed.rounds.loop import start
from leanfed.rounds.world import World
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.reference import ReferenceEngine

EVERY = pytest.mark.parametrize("name", list(ENGINES))


def world(world_of, sparsify=None, **training) -> World:
    method = ALGORITHMS["flpdsp"](k=0.1, r=0.5, sparsify=sparsify or {"error_feedback": True}, head_steps=2)
    return world_of(method, participation={"cohorts": ((0, 1, 4), (1, 2, 3))}, batch_size=8, **training)


def play(engine: Engine, rounds: int = 2):
    """The server and every client's tensors after some rounds, and the last outcome."""
    progress = start(engine.world)
    server = progress.server
    for number in range(rounds):
        outcome = engine.run_round(server, progress.clients, engine.world.plan(number))
        server = outcome.server
    return server, progress.clients.snapshot(range(5)), outcome


@EVERY
@pytest.mark.parametrize("steps", [1, 3])
def test_rounds_are_the_references(name: str, steps: int, world_of) -> None:
    here = world(world_of, local_steps=steps, momentum=0.5)
    (server, clients, outcome), (expected, others, reference) = (
        play(engine) for engine in (choose_engine(here, name, threads=2), ReferenceEngine(here))
    )
    assert (server.shared - expected.shared).norm() <= 1e-5 * expected.shared.norm()
    assert clients.keys() == others.keys()
    for key, rows in others.items():
        assert (clients[key] - rows).double().norm() <= 1e-4 * rows.double().norm() + 1e-6
    assert np.allclose(outcome.loss, reference.loss, rtol=1e-4)
    assert outcome.entries.tolist() == reference.entries.tolist()
    assert outcome.samples.tolist() == reference.samples.tolist()


@EVERY
def test_threads_and_repetition_do_not_change_a_bit(name: str, world_of) -> None:
    here = world(world_of)
    ends = [play(choose_engine(here, name, threads=threads)) for threads in (1, 2, 2)]
    for server, clients, _ in ends[1:]:
        assert torch.equal(server.shared, ends[0][0].shared)
        assert all(torch.equal(clients[key], ends[0][1][key]) for key in clients)


@EVERY
@pytest.mark.parametrize("sparsify", [{"error_feedback": True}, {"select": "common"}], ids=["own", "common"])
def test_single_uploads_add_up_to_the_sum_bit_for_bit(name: str, sparsify: dict[str, object], world_of) -> None:
    here = world(world_of, sparsify)
    engine, progress = choose_engine(here, name), start(here)
    if not engine.single_uploads:
        pytest.skip("it gives sums only, and says so")
    summed = engine.exchange(progress.server, start(here).clients, here.plan(0), single=False)
    listed = engine.exchange(progress.server, start(here).clients, here.plan(0), single=True)
    assert summed.uploads == ()
    assert listed.total is None
    size = len(progress.server.shared)
    mean = here.aggregation.combine(size, listed.gamma, listed.uploads)
    assert torch.equal(divided(summed.total, summed.gamma), mean)


@EVERY
def test_the_server_and_those_who_sit_out_are_left_alone(name: str, world_of) -> None:
    here = world(world_of)
    engine, progress = choose_engine(here, name), start(here)
    before = progress.server.shared.clone()
    engine.run_round(progress.server, progress.clients, here.plan(0))
    assert torch.equal(progress.server.shared, before)
    assert progress.clients.changed == {0, 1, 4}


@EVERY
def test_every_client_is_tested(name: str, world_of) -> None:
    here = world(world_of)
    engine, progress = choose_engine(here, name), start(here)
    found = engine.evaluate(progress.server, progress.clients)
    expected = ReferenceEngine(here).evaluate(progress.server, start(here).clients)
    assert found.accuracy_per_client == pytest.approx(expected.accuracy_per_client)
    assert found.loss_per_client == pytest.approx(expected.loss_per_client, rel=1e-5)
