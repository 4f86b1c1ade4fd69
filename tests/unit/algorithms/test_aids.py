"""Methods without federation, FedRep, and the aids that any method can have, against plain autograd."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from leanfed.algorithms.alone import HeadOnly, Local
from leanfed.algorithms.contract import ClientState, ServerState, Training
from leanfed.algorithms.fedavg import FedAvgS
from leanfed.algorithms.fedmask import FedMask
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.fedrep import FedRep
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.lg_fedavg import LgFedAvg
from leanfed.compression.prune import Pruning
from leanfed.compression.sparsify import Sparsification
from leanfed.errors import SettingsError
from leanfed.rounds.aggregation import stepped
from leanfed.rounds.loop import start
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings
from leanfed.simulation.reference import ReferenceEngine
from tests.unit.algorithms.test_methods import BASE, ETA, HEAD, ask, close, dense, gradient_at

WorldOf = Callable[..., World]


def test_fedrep_fits_the_head_before_the_base_moves() -> None:
    update = ask(FedRep(head_steps=3), BASE, ClientState(HEAD))
    head = HEAD
    for _ in range(3):
        head = head - ETA * gradient_at(BASE, head)[6:]
    assert close(update.client.private, head)
    assert close(dense(update.upload), gradient_at(BASE, head)[:6])  # at the new head, which sits this step out


def test_fedrep_takes_the_next_batch_on_the_moved_base() -> None:
    update = ask(FedRep(), BASE, ClientState(HEAD), steps=2)
    base, head, total = BASE, HEAD, torch.zeros(6)
    for _ in range(2):
        head = head - ETA * gradient_at(base, head)[6:]
        slope = gradient_at(base, head)[:6]
        base, total = base - ETA * slope, total + slope
    assert close(update.client.private, head)
    assert close(dense(update.upload), total)


def test_local_is_gradient_descent_of_each_client_alone(world_of: WorldOf) -> None:
    """Nothing is shared, sent or averaged, so a client's model does not depend on who else takes part."""
    together, alone = (world_of(Local(), participation=who) for who in ({}, {"cohorts": [[2]]}))
    ends = []
    for world in (together, alone):
        progress = start(world)
        engine = ReferenceEngine(world)
        for number in range(2):
            outcome = engine.run_round(progress.server, progress.clients, world.plan(number))
            assert len(outcome.server.shared) == 0
            assert not outcome.entries.any()
        ends.append(progress.clients[2].private)
    assert torch.equal(*ends)
    assert len(ends[0]) == together.task.split.size


@pytest.mark.parametrize("steps", [1, 3])
def test_head_only_never_moves_the_base(steps: int) -> None:
    update = ask(HeadOnly(head_steps=2), BASE, ClientState(HEAD), k=0.0, steps=steps)
    head = HEAD
    for _ in range(2 * steps):
        head = head - ETA * gradient_at(BASE, head)[6:]
    assert close(update.client.private, head)
    assert update.upload.entries == 0


def test_a_sparse_fedper_is_flpdsp_with_whole_heads() -> None:
    aids = {"k": 0.5, "head_steps": 3, "sparsify": Sparsification(error_feedback=True)}
    before = ClientState(HEAD, {"residual": torch.linspace(-1, 1, 6)})
    ours = ask(FedPer(**aids), BASE, before, k=0.5)
    theirs = ask(Flpdsp(r=1.0, prune=Pruning(head_memory="keep"), **aids), BASE, before, k=0.5)
    assert torch.equal(dense(ours.upload), dense(theirs.upload))
    assert torch.equal(ours.client.private, theirs.client.private)
    assert torch.equal(ours.client.memory["residual"], theirs.client.memory["residual"])


def test_error_feedback_of_any_method_loses_nothing() -> None:
    method = LgFedAvg(k=0.5, sparsify=Sparsification(error_feedback=True))
    update = ask(method, HEAD, ClientState(BASE), k=0.5)
    whole = dense(ask(LgFedAvg(), HEAD, ClientState(BASE)).upload)
    assert torch.equal(dense(update.upload) + update.client.memory["residual"], whole)


@pytest.mark.parametrize(
    ("method", "form"),
    [
        (FedPer(), "dense"),
        (FedPer(k=0.5), "sparse"),
        (FedAvgS(), "sparse"),
        (FedAvgS(k=1.0), "dense"),
        (LgFedAvg(sparsify=Sparsification(error_feedback=True)), "sparse"),
        (LgFedAvg(k=(1.0, 0.5)), "sparse"),
    ],
)
def test_positions_are_paid_for_where_entries_are_chosen(method: FedPer, form: str) -> None:
    assert method.upload_form == form


def server_after(mean: torch.Tensor, server: ServerState, **how: float) -> ServerState:
    training = Training.model_validate({"learning_rate": 0.5, "server": how})
    return stepped(FedPer(), server, mean, training, 0, 1.0)


def test_the_servers_step_is_cut_averaged_and_scaled() -> None:
    """w - scale eta m with m = b m + (1 - b) cut(g): |(3, 4)| = 5 is cut to 2, averaged with 0, doubled."""
    start, mean = ServerState(torch.zeros(2)), torch.tensor([3.0, 4.0])
    how = {"cap": 2.0, "average": 0.75, "scale": 2.0}
    first = server_after(mean, start, **how)
    assert close(first.memory["average"], torch.tensor([0.3, 0.4]))
    assert close(first.shared, torch.tensor([-0.3, -0.4]))
    second = server_after(mean, first, **how)
    assert close(second.memory["average"], 0.75 * torch.tensor([0.3, 0.4]) + torch.tensor([0.3, 0.4]))
    assert close(second.shared, first.shared - second.memory["average"])


def test_a_short_step_is_not_cut_and_the_plain_step_is_untouched() -> None:
    start, mean = ServerState(torch.zeros(2)), torch.tensor([0.3, 0.4])
    assert torch.equal(server_after(mean, start, cap=2.0).shared, server_after(mean, start).shared)
    assert server_after(mean, start).memory == {}
    assert torch.equal(server_after(torch.zeros(2), start, cap=2.0).shared, torch.zeros(2))


def test_even_steps_have_the_norm_of_those_before() -> None:
    """The first mean, of norm 5, stays; the second, of norm 10, is brought to 5, and the memory to 0.9 5 + 0.1 10."""
    start, mean = ServerState(torch.zeros(2)), torch.tensor([3.0, 4.0])
    first = server_after(mean, start, even=True)
    assert torch.equal(first.shared, server_after(mean, start).shared)
    second = server_after(2 * mean, first, even=True)
    assert close(second.shared - first.shared, first.shared)
    assert close(second.memory["norm"], torch.tensor([5.5]))
    still = server_after(torch.zeros(2), second, even=True)
    assert torch.equal(still.shared, second.shared)
    assert torch.equal(still.memory["norm"], second.memory["norm"])


def test_masks_have_no_step_to_damp() -> None:
    assert FedMask().upload_form == "mask"
    values = {"algorithm": {"name": "fedmask"}, "training": {"server": {"average": 0.5}}}
    with pytest.raises(SettingsError, match=r"training\.server cannot change the step of 'fedmask'.*leave it out"):
        Settings.from_values(values)


def test_fedreps_further_work_is_charged() -> None:
    """Its base's step passes the head once more than FedPer's."""
    assert FedRep(head_steps=4).work(1.0) == FedPer(head_steps=5).work(1.0)
    assert np.array_equal(HeadOnly().rates(3)[0], np.zeros(3))
