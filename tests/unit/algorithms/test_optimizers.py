"""Local optimisers: every rule against torch's own, what is kept and dropped, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

import leanfed
from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.contract import ClientState, Cohort, Training
from leanfed.algorithms.fedavg import FedAvg
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.stepping import Steppers
from leanfed.compression.prune import Pruning
from leanfed.errors import SettingsError
from leanfed.rounds.loop import start
from leanfed.runs.settings import Settings
from leanfed.simulation.choose import choose_engine
from leanfed.tasks.batch import Batch
from tests.stops import Stop, stop_after
from tests.unit.algorithms.test_methods import BASE, ETA, HEAD, INPUTS, LABELS, ask, close, gradient_at, tiny

WHOLE = torch.cat([BASE, HEAD])
TORCH: dict[str, Any] = {
    "momentum": lambda w: SGD([w], ETA, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda w: Adagrad([w], ETA, weight_decay=0.1, eps=1e-8),
    "rmsprop": lambda w: RMSprop([w], ETA, alpha=0.999, weight_decay=0.1),
    "adam": lambda w: Adam([w], ETA, weight_decay=0.1),
    "adamw": lambda w: AdamW([w], ETA, weight_decay=0.1),
}


def torch_steps(optimizer: Optimizer, weights: Tensor, steps: int) -> Tensor:
    """The tiny model after so many of torch's own steps."""
    for _ in range(steps):
        weights.grad = gradient_at(weights[:6].detach(), weights[6:].detach())
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_three_rounds_of_two_steps_are_six_steps_of_torch(name: str, method: str) -> None:
    """The state of a private model, and that of a shared one, goes on from round to round."""
    settings = {"optimizer": name, "momentum": 0.9, "weight_decay": 0.1}
    algorithm, shared, client = ALGORITHMS[method](), WHOLE, ClientState(torch.empty(0))
    if method == "local":
        shared, client = WHOLE[:0], ClientState(WHOLE)
    for number in range(3):
        answer = ask(algorithm, shared, client, steps=2, round_number=number, **settings)
        client, shared = answer.client, shared - ETA * answer.upload.dense()
    weights = WHOLE.clone().requires_grad_()
    expected = torch_steps(TORCH[name](weights), weights, 6)
    # Rounding of float32, which RMSprop's first steps (1 / sqrt(1 - beta2) = 32 long) magnify.
    assert torch.allclose(torch.cat([shared, client.private]), expected, rtol=1e-4, atol=1e-5)


def test_a_state_that_is_dropped_begins_every_round_anew() -> None:
    client = ClientState(WHOLE)
    for number in range(2):
        answer = ask(
            ALGORITHMS["local"](), WHOLE[:0], client, round_number=number, optimizer="adam", optimizer_state="dropped"
        )
        gradient = gradient_at(client.private[:6], client.private[6:])
        assert close(answer.client.private, client.private - ETA * gradient / (gradient.abs() + 1e-8))  # Adam's first
        assert answer.client.memory == {}
        client = answer.client


@pytest.mark.parametrize("rate", [None, 0.02])
def test_a_head_steps_with_adam_while_the_upload_stays_a_gradient(rate: float | None) -> None:
    settings = {"optimizer": "adam", "optimizer_part": "private", "optimizer_rate": rate}
    answer = ask(FedPer(), BASE, ClientState(HEAD), **settings)
    gradient = gradient_at(BASE, HEAD)
    assert close(answer.upload.values, gradient[:6])
    assert close(answer.client.private, HEAD - (rate or ETA) * gradient[6:].sign())
    assert {name: len(rows) for name, rows in answer.client.memory.items()} == {
        "first_moment": 4,
        "second_moment": 4,
        "optimizer_steps": 1,
    }


def test_further_head_steps_are_steps_of_the_head_s_optimiser_alone() -> None:
    answer = ask(FedPer(head_steps=3), BASE, ClientState(HEAD), optimizer="adam")
    assert float(answer.client.memory["optimizer_steps"]) == 3
    assert float(answer.client.memory["shared_optimizer_steps"]) == 1
    head = HEAD.clone().requires_grad_()
    adam = Adam([head], ETA)
    for _ in range(3):
        head.grad = gradient_at(BASE, head.detach())[6:]
        adam.step()
    assert close(answer.client.private, head.detach())


def test_pruned_weights_without_a_gradient_stay_where_they_are() -> None:
    """Moments of earlier rounds, in which they were not pruned, would move them."""
    method = Flpdsp(prune=Pruning(masked_gradient=True, head_memory="keep"))
    settings = {"optimizer": "adam", "optimizer_part": "private"}
    first = ask(method, BASE, ClientState(HEAD), r=1.0, **settings)
    second = ask(method, BASE, first.client, r=0.5, round_number=1, **settings)
    pruned = first.client.private.abs().argsort()[:2]
    assert torch.equal(second.client.private[pruned], first.client.private[pruned])


def test_the_server_has_no_momentum_where_local_steps_have_it() -> None:
    assert Training(momentum=0.9).server_momentum == 0.9
    assert Training(momentum=0.9, optimizer="adam").server_momentum == 0.9
    assert Training(momentum=0.9, optimizer="momentum").server_momentum == 0.0


@pytest.mark.parametrize("name", ["momentum", "rmsprop", "adam", "adamw"])
def test_clients_at_different_steps_are_the_same_together_and_alone(name: str) -> None:
    training = Training(optimizer=name, momentum=0.9, weight_decay=0.01)
    sizes, draw = FedAvg().holds(tiny().split.all_shared(), training), torch.Generator().manual_seed(1)
    memory = {key: torch.rand(3, size, generator=draw) for key, size in sizes.items()}
    if "shared_optimizer_steps" in memory:
        memory["shared_optimizer_steps"] = torch.tensor([[0.0], [7.0], [1000.0]])
    models = torch.randn(3, 10, generator=draw)

    def run(rows: list[int]) -> Tensor:
        batches = [Batch(INPUTS.expand(len(rows), -1, -1), LABELS.expand(len(rows), -1))] * 2
        ones = np.ones(len(rows))
        own = {key: values[rows] for key, values in memory.items()}
        cohort = Cohort(tuple(rows), 0, 0, training, ones, ones, torch.empty(len(rows), 0), own, batches, 2)
        steppers = Steppers.of(cohort, 10, 0)
        assert steppers.shared is not None
        return torch.cat([steppers.shared.direction(models[rows] * scale, models[rows]) for scale in (1.0, 0.3)], 1)

    together = run([0, 1, 2])
    assert all(torch.equal(together[[row]], run([row])) for row in range(3))


@pytest.mark.parametrize("engine", ["streamed", "batched", "batched-torch"])
def test_engines_compute_the_reference_s_adam(engine: str, world_of: Any) -> None:
    ends = []
    for name in ("reference", engine):
        # An epsilon far above the rounding of a gradient: a quotient of two roundings would be any number up to one.
        adam = {"optimizer": "adam", "epsilon": 1e-2, "optimizer_part": "private", "optimizer_rate": 0.01}
        world = world_of(Flpdsp(k=0.1, r=0.5, head_steps=2), local_steps=2, **adam)
        progress, server = start(world), start(world).server
        for number in range(2):
            server = choose_engine(world, name).run_round(server, progress.clients, world.plan(number)).server
        ends.append((server.shared, progress.clients.snapshot(range(world.task.clients))))
    assert torch.allclose(ends[0][0], ends[1][0], rtol=0, atol=1e-6)
    assert ends[0][1].keys() == ends[1][1].keys()
    for name, rows in ends[0][1].items():
        assert torch.allclose(rows.double(), ends[1][1][name].double(), rtol=1e-3, atol=1e-5)


def settings_of(method: str, **training: Any) -> Settings:
    partition = {"kind": "class", "classes_per_client": 2, "clients": 5}
    return Settings.from_values(
        {
            "rounds": 4,
            "task": {"partition": partition},
            "algorithm": {"name": method},
            "participation": {"fraction": 0.6},
            "training": {"batch_size": 8, **training},
        }
    )


@pytest.mark.parametrize(
    ("method", "training"),
    [
        ("fedavg", {"optimizer": "adam", "optimizer_rate": 0.001, "local_steps": 3}),
        ("flpdsp", {"optimizer": "adamw", "optimizer_part": "private", "optimizer_rate": 0.001, "weight_decay": 0.01}),
    ],
)
def test_a_resumed_run_equals_an_unbroken_one(method: str, training: dict[str, Any], tmp_path: Path) -> None:
    settings = settings_of(method, **training)
    whole = leanfed.run(settings, tmp_path / "whole")
    with pytest.raises(Stop):
        leanfed.run(settings, tmp_path / "broken", listen=stop_after(2))
    assert leanfed.resume(tmp_path / "broken").summary["sha256"] == whole.summary["sha256"]


@pytest.mark.parametrize(
    ("method", "training", "reason"),
    [
        ("flpdsp", {"optimizer": "adam"}, "changes which are the largest; set training.optimizer_part = 'private'"),
        ("fedavg", {"optimizer": "adam", "optimizer_part": "private"}, "no private part; set .*_part = 'all'"),
        ("scaffold", {"optimizer": "adam"}, "control variates are means of plain gradients; set .* = 'sgd'"),
        ("feddyn", {"optimizer": "rmsprop"}, "h_n is a sum of plain gradients"),
        ("fedmask", {"optimizer": "adam"}, "trains scores by steps of their own"),
    ],
)
def test_what_makes_no_sense_is_refused(method: str, training: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=f"does not fit algorithm.name = '{method}': .*{reason}"):
        leanfed.run(settings_of(method, **training))


def test_settings_name_a_rule_that_exists_and_can_work() -> None:
    with pytest.raises(SettingsError, match="no optimizer has that name: did you mean 'adam'"):
        settings_of("fedavg", optimizer="adan")
    with pytest.raises(SettingsError, match="'momentum' needs training.momentum above 0"):
        settings_of("fedavg", optimizer="momentum")


@pytest.mark.parametrize("method", [name for name in ALGORITHMS if name not in ("scaffold", "feddyn", "fedmask")])
def test_every_other_method_takes_adam_and_keeps_what_it_says(method: str, world_of: Any) -> None:
    algorithm = ALGORITHMS[method]()
    for part in ("all", "private"):
        world = world_of(algorithm, optimizer="adam", optimizer_rate=0.001, optimizer_part=part, local_steps=2)
        if algorithm.optimizer_misfit(world.split, world.training):
            continue
        server, state = algorithm.start_server(world.task), algorithm.start_client(world.task, 1)
        for number in range(2):
            updates = algorithm.client_update(
                server.shared, world.alone(state, 1, number, 0.5, 0.5), world.new_learner()
            )
            assert {n: rows.shape for n, rows in updates.memory.items()} == {n: (1, s) for n, s in world.holds.items()}
            state = updates.state(0)
        counts = [rows for name, rows in state.memory.items() if name.endswith("optimizer_steps")]
        assert counts
        assert all(float(count) >= 4 for count in counts)
