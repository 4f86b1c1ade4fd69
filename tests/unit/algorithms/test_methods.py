"""Each method's special cases, on a model small enough to compute by hand where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.algorithms.base import Algorithm, descend, per_client
from leanfed.algorithms.contract import ClientState, Cohort, ServerState, Training
from leanfed.algorithms.fedavg import FedAvg, FedAvgP, FedAvgS
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.lg_fedavg import LgFedAvg
from leanfed.algorithms.local import DivergedError
from leanfed.algorithms.uploads import Upload
from leanfed.compression.prune import Pruning
from leanfed.compression.sparsify import Sparsification
from leanfed.errors import SettingsError
from leanfed.rounds.aggregation import WeightedMean
from leanfed.rounds.loop import start
from leanfed.rounds.world import World
from leanfed.simulation.reference import ReferenceEngine
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import FlatModel, split_after

WorldOf = Callable[..., World]
INPUTS = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.3, -2.0]])
LABELS = torch.tensor([0, 1, 1])
ETA = 0.1


def tiny() -> FlatLearner:
    """Base: a 2x2 linear layer and its bias (6 weights). Head: a 2x2 linear layer without bias (4 weights)."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    return FlatLearner(FlatModel(model, split_after(model, "0")))


BASE = torch.tensor([0.5, -0.2, 0.1, 0.4, 0.0, 0.3])
HEAD = torch.tensor([0.9, -0.1, 0.2, -0.7])


def gradient_at(base: Tensor, head: Tensor) -> Tensor:
    """The gradient of the tiny model, written out with plain autograd."""
    w = torch.cat([base, head]).requires_grad_()
    hidden = INPUTS @ w[:4].reshape(2, 2).T + w[4:6]
    functional.cross_entropy(hidden @ w[6:].reshape(2, 2).T, LABELS).backward()
    assert w.grad is not None
    return w.grad


@dataclass(frozen=True)
class Answer:
    """What one client sends and keeps."""

    upload: Upload
    client: ClientState


def ask(
    method: Algorithm,
    shared: Tensor,
    client: ClientState,
    *,
    k: float = 1.0,
    r: float = 1.0,
    steps: int = 1,
    round_number: int = 0,
    **training: Any,
) -> Answer:
    """One client's answer, from a cohort of one on the tiny model."""
    settings, learner = Training.model_validate({"learning_rate": ETA, **training}), tiny()
    sizes = method.holds(method.divide(learner.split), settings)
    memory = {name: client.memory.get(name, torch.zeros(size)).unsqueeze(0) for name, size in sizes.items()}
    batches, rates = [Batch(INPUTS, LABELS).alone()] * steps, (np.array([k]), np.array([r]))
    cohort = Cohort((0,), round_number, 0, settings, *rates, client.private.unsqueeze(0), memory, batches, steps)
    updates = method.client_update(shared, cohort, learner)
    (upload,) = updates.uploads
    return Answer(upload, updates.state(0))


def stepped(method: Algorithm, shared: Tensor, upload: Upload) -> Tensor:
    """The shared part after the server has heard of one client."""
    mean = WeightedMean().combine(len(shared), np.array([0.3]), [upload])
    return method.step(ServerState(shared), mean, Training(learning_rate=ETA), 0).shared


def dense(upload: Upload) -> Tensor:
    return upload.dense()


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-7)  # float32


def test_flpdsp_follows_the_algorithm_box() -> None:
    update = ask(Flpdsp(), BASE, ClientState(HEAD), k=0.5, r=0.5)
    pruned = torch.tensor([0.9, 0.0, 0.0, -0.7])  # Eq. (3): the two largest of four
    gradient = gradient_at(BASE, pruned)
    assert close(update.client.private, pruned - ETA * gradient[6:])  # Eq. (4)
    kept = gradient[:6].abs().argsort(descending=True)[:3]
    expected = torch.zeros(6)
    expected[kept] = gradient[kept]
    assert close(dense(update.upload), expected)  # Eq. (5)
    assert close(stepped(Flpdsp(), BASE, update.upload), BASE - ETA * expected)  # Eq. (6)


def test_a_heads_further_steps_follow_the_features_of_the_old_base() -> None:
    update = ask(Flpdsp(head_steps=3), BASE, ClientState(HEAD), k=1.0, r=1.0)
    head = HEAD
    for _ in range(3):
        head = head - ETA * gradient_at(BASE, head)[6:]
    assert close(update.client.private, head)
    assert close(dense(update.upload), gradient_at(BASE, HEAD)[:6])  # the base's gradient is Algorithm 1's


def test_a_kept_head_survives_below_its_mask() -> None:
    method = Flpdsp(prune=Pruning(head_memory="keep"))
    update = ask(method, BASE, ClientState(HEAD), r=0.5)
    gradient = gradient_at(BASE, torch.tensor([0.9, 0.0, 0.0, -0.7]))
    assert close(update.client.private, HEAD - ETA * gradient[6:])


@pytest.mark.parametrize("memory", ["discard", "keep"])
def test_a_masked_gradient_leaves_pruned_weights_alone(memory: str) -> None:
    method = Flpdsp(prune=Pruning.model_validate({"head_memory": memory, "masked_gradient": True}))
    update = ask(method, BASE, ClientState(HEAD), r=0.5)
    left = update.client.private[[1, 2]]
    assert torch.equal(left, torch.zeros(2) if memory == "discard" else HEAD[[1, 2]])


def test_with_several_steps_the_mask_holds_at_every_step_and_the_upload_adds_up() -> None:
    update = ask(Flpdsp(), BASE, ClientState(HEAD), r=0.5, steps=2)
    mask = torch.tensor([1.0, 0.0, 0.0, 1.0])
    first = gradient_at(BASE, HEAD * mask)
    base, head = BASE - ETA * first[:6], (HEAD * mask - ETA * first[6:]) * mask
    second = gradient_at(base, head)
    assert close(update.client.private, head - ETA * second[6:])
    end = base - ETA * second[:6]
    assert close(dense(update.upload), (BASE - end) / ETA)


def test_importance_remembers_the_heads_gradient() -> None:
    method = Flpdsp(prune=Pruning(score="importance"))
    first = ask(method, BASE, ClientState(HEAD), r=0.5)
    pruned = torch.tensor([0.9, 0.0, 0.0, -0.7])  # by magnitude: there is no last gradient yet
    gradient = gradient_at(BASE, pruned)[6:]
    assert close(first.client.memory["head_gradient"], gradient)
    second = ask(method, BASE, first.client, r=0.5, round_number=1)
    score = (first.client.private * gradient) ** 2
    mask = torch.zeros(4)
    mask[score.argsort(descending=True)[:2]] = 1
    head = first.client.private * mask
    assert close(second.client.private, head - ETA * gradient_at(BASE, head)[6:])


def test_error_feedback_sends_later_what_was_not_sent_before() -> None:
    method = Flpdsp(sparsify=Sparsification(error_feedback=True))
    first = ask(method, BASE, ClientState(HEAD), k=0.5)
    gradient = gradient_at(BASE, HEAD)[:6]
    assert close(dense(first.upload) + first.client.memory["residual"], gradient)
    second = ask(method, BASE, first.client, k=0.5, round_number=1)
    again = gradient_at(BASE, first.client.private)[:6]
    corrected = again + first.client.memory["residual"]
    assert close(dense(second.upload) + second.client.memory["residual"], corrected)


def test_momentum_of_the_head_is_carried_over_rounds() -> None:
    first = ask(FedPer(), BASE, ClientState(HEAD), momentum=0.9)
    second = ask(FedPer(), BASE, first.client, momentum=0.9)
    one = gradient_at(BASE, HEAD)[6:]
    head = HEAD - ETA * one
    two = gradient_at(BASE, head)[6:] + 0.9 * one
    assert close(second.client.private, head - ETA * two)


def test_momentum_of_the_server_is_carried_over_rounds() -> None:
    training = Training(learning_rate=ETA, momentum=0.5)
    one = descend(ServerState(torch.zeros(1)), torch.ones(1), training, 0)
    two = descend(one, torch.ones(1), training, 1)
    assert close(two.shared, torch.tensor([-0.1 - 0.15]))


def test_weight_decay_is_added_to_gradients() -> None:
    update = ask(FedAvg(), torch.cat([BASE, HEAD]), ClientState(torch.empty(0)), weight_decay=0.5)
    assert close(update.upload.values, gradient_at(BASE, HEAD) + 0.5 * torch.cat([BASE, HEAD]))


def test_the_learning_rate_decays_by_round() -> None:
    assert Training(learning_rate=0.2, learning_rate_decay=0.5).rate(3) == pytest.approx(0.025)


def test_a_participant_that_sends_nothing_counts_as_zeros() -> None:
    nothing = Upload(2, torch.empty(0), torch.empty(0, dtype=torch.int64))
    something = Upload(2, torch.tensor([4.0, 8.0]))
    mean = WeightedMean().combine(2, np.array([0.1, 0.3]), [something, nothing])
    assert mean.tolist() == pytest.approx([1.0, 2.0])


def test_a_round_without_uploads_has_a_mean_of_zero() -> None:
    assert WeightedMean().combine(2, np.zeros(0), []).tolist() == [0.0, 0.0]


def test_fedavg_p_trains_and_sends_only_the_largest_weights() -> None:
    weights = torch.cat([BASE, HEAD])
    update = ask(FedAvgP(), weights, ClientState(torch.empty(0)), r=0.5)
    kept = weights.abs().argsort(descending=True)[:5].sort().values
    assert update.upload.positions.tolist() == kept.tolist()
    pruned = torch.zeros(10)
    pruned[kept] = weights[kept]
    assert close(update.upload.values, gradient_at(pruned[:6], pruned[6:])[kept])
    model = FedAvgP().personal_weights(ServerState(weights), update.client.private.unsqueeze(0), tiny())
    assert torch.equal(torch.cat(model.row(0)), pruned)


def test_fedavg_s_sends_five_percent_by_default(world_of: WorldOf) -> None:
    world = world_of(FedAvgS())
    progress = start(world)
    outcome = ReferenceEngine(world).run_round(progress.server, progress.clients, world.plan(0))
    assert outcome.entries.tolist() == [int(0.05 * 61_706)] * 5


def test_flpdsp_without_compression_is_fedper_bit_for_bit(world_of: WorldOf) -> None:
    ends = []
    for method in (Flpdsp(k=1, r=1), FedPer()):
        world = world_of(method, momentum=0.5, weight_decay=0.001)
        progress, engine = start(world), ReferenceEngine(world)
        server = progress.server
        for number in range(3):
            server = engine.run_round(server, progress.clients, world.plan(number)).server
        ends.append((server.shared, progress.clients.snapshot(range(5))))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1].keys() == ends[1][1].keys()
    assert all(torch.equal(ends[0][1][key], ends[1][1][key]) for key in ends[0][1])


def test_lg_fedavg_shares_what_fedper_keeps(world_of: WorldOf) -> None:
    assert world_of(LgFedAvg()).split == world_of(FedPer()).split.reversed()


def test_fedavg_with_one_client_is_plain_gradient_descent() -> None:
    weights = torch.cat([BASE, HEAD])
    update = ask(FedAvg(), weights, ClientState(torch.empty(0)))
    assert close(stepped(FedAvg(), weights, update.upload), weights - ETA * gradient_at(BASE, HEAD))


def test_a_diverging_client_is_named_with_its_round() -> None:
    inputs, whole = torch.stack([INPUTS, INPUTS * float("nan")]), np.ones(2)
    batch = Batch(inputs, torch.stack([LABELS, LABELS]))
    cohort = Cohort((3, 4), 7, 0, Training(), whole, whole, torch.stack([HEAD, HEAD]), {}, [batch], 1)
    with pytest.raises(
        DivergedError, match="Client 4 diverged in round 7 while training.*Lower training.learning_rate"
    ):
        FedPer().client_update(BASE, cohort, tiny())


@pytest.mark.parametrize("rates", [0.5, [0.5, 0.5, 0.5]])
def test_a_rate_is_one_number_or_one_per_client(rates: float | Sequence[float]) -> None:
    assert per_client(rates, 3, "k").tolist() == [0.5] * 3


def test_rates_for_other_clients_are_refused() -> None:
    with pytest.raises(SettingsError, match="algorithm.k lists 2 rates for 3 clients"):
        per_client([0.1, 0.2], 3, "algorithm.k")
