"""The round that all contenders compute: leanfed's digits, model and batches, and what must come out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from benchmarks.peers.contenders.plain import recomputed
from benchmarks.peers.turns import Flat, GivenRound

import leanfed
from leanfed.rounds.loop import RoundRecord
from leanfed.runs.prepare import prepare
from leanfed.tasks.batch import Batch

CLIENTS, BATCH, LEARNING_RATE = 100, 32, 0.1
NEVER = 10**6  # rounds between evaluations


def settings_of(method: str, steps: int) -> dict[str, Any]:
    """leanfed's settings, without rounds."""
    return {
        "task": {"dataset": "mnist-5k", "model": "lenet5", "partition": {"kind": "iid", "clients": CLIENTS}},
        "training": {"batch_size": BATCH, "local_steps": steps, "learning_rate": LEARNING_RATE},
        "algorithm": {"name": method},
        "evaluation": {"every": NEVER},
        "run": {"threads": 1},
    }


def given_round(steps: int) -> GivenRound:
    """leanfed's first round of FedAvg: initial weights, and the batches of every client."""
    task = prepare(leanfed.Settings.from_values(settings_of("fedavg", steps))).world.task
    if np.ptp(task.partition.sizes):
        raise SystemExit("Clients hold different numbers of samples: weighted and plain means would differ.")

    def drawn(client: int) -> Iterator[Batch]:
        return task.batches(client, 0, BATCH, steps=steps, epochs=None)

    batches = [list(drawn(client)) for client in range(CLIENTS)]
    return GivenRound(
        inputs=np.stack([[batch.inputs.numpy() for batch in own] for own in batches]),
        labels=np.stack([[batch.labels.numpy() for batch in own] for own in batches]),
        weights={name: value.detach().numpy() for name, value in task.new_model("base").named_parameters()},
        learning_rate=LEARNING_RATE,
    )


class Enough(Exception):
    """One round is done."""


def reference_weights(method: str, steps: int) -> Flat:
    """The shared weights after leanfed's first round on its reference engine, which trains one client after another."""
    values = settings_of(method, steps)
    settings = leanfed.Settings.from_values({**values, "rounds": 2, "run": {"threads": 1, "engine": "reference"}})
    found: list[Flat] = []

    def listen(record: RoundRecord) -> None:
        found.append(record.progress.server.shared.numpy().copy())
        raise Enough

    with suppress(Enough):
        leanfed.run(settings, listen=listen)
    return found[0]


def expected(method: str, given: GivenRound) -> Flat:
    """The weights that must come out of a round: FedAvg in plain PyTorch, other methods on the reference engine."""
    return recomputed(given) if method == "fedavg" else reference_weights(method, given.steps)
