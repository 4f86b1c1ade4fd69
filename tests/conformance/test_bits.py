"""Five rounds of every method on every engine give the bits of version 0.1.0; zeros of either sign count as one.

The digests hold on machines whose processor picks the same kernels, so a stranger's machine may skip them: they guard
a change of structure, not a result. `python -m tests.conformance.test_bits` writes them again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leanfed.algorithms import ALGORITHMS, Training
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.choose import choose_engine
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.task import TaskSettings, build_task

FILE = Path(__file__).with_name("bits.json")
CLIENTS = 13  # a full chunk and a short one
TRAINING = {
    "one": {"batch_size": 8, "learning_rate_decay": 0.9},
    "three": {"batch_size": 5, "local_steps": 3, "momentum": 0.9, "weight_decay": 1e-3},
}
METHODS: dict[str, dict[str, Any]] = {
    "flpdsp": {"name": "flpdsp", "k": 0.1, "r": 0.5},
    **{name: {"name": name} for name in ("fedper", "lg-fedavg", "fedavg", "fedavg-s", "fedavg-p", "fedmask")},
    "importance": {"name": "flpdsp", "prune": {"score": "importance", "head_memory": "keep"}},
    "masked": {"name": "flpdsp", "prune": {"score": "importance", "masked_gradient": True}, "r": 0.1},
    "drawn-mask": {"name": "flpdsp", "prune": {"score": "random", "masked_gradient": True, "head_memory": "keep"}},
    "redrawn": {"name": "flpdsp", "prune": {"score": "random-redrawn"}},
    "feedback": {"name": "flpdsp", "sparsify": {"error_feedback": True}, "k": 0.01},
    "drawn": {"name": "flpdsp", "sparsify": {"select": "random", "rescale": True}, "k": 0.2},
    "drawn-feedback": {"name": "flpdsp", "sparsify": {"select": "random", "error_feedback": True}},
    "mixed": {"name": "flpdsp", "k": list(np.linspace(0.05, 1, CLIENTS)), "r": list(np.linspace(1, 0.02, CLIENTS))},
    "whole": {"name": "flpdsp", "k": 1.0, "r": 1.0},
    "heads": {"name": "flpdsp", "k": 0.1, "r": 0.5, "head_steps": 4},
    "heads-feedback": {
        "name": "flpdsp", "k": 0.05, "r": 0.5, "head_steps": 3, "sparsify": {"error_feedback": True},
        "prune": {"head_memory": "keep"},
    },
    "fedavg-s-feedback": {"name": "fedavg-s", "sparsify": {"error_feedback": True}},
}  # fmt: skip
ENGINES = {"lenet5": ("reference", "streamed", "batched", "batched-torch"), "tiny-norm": ("reference", "streamed")}
CASES = [
    (model, statistics, method, training, engine)
    for model, engines in ENGINES.items()
    for statistics in (("private",) if model == "lenet5" else ("private", "shared"))
    for method in METHODS
    for training in TRAINING
    for engine in engines
]


def digest(*arrays: Any) -> str:
    """SHA-256 over values; -0 becomes 0."""
    content = hashlib.sha256()
    for array in arrays:
        values = np.asarray(array, dtype=np.float64)
        content.update((values + 0.0).tobytes())
    return content.hexdigest()[:16]


def bits(model: str, statistics: str, method: str, training: str, engine: str) -> str:
    partition = PartitionSettings(kind="class", classes_per_client=2, clients=CLIENTS)
    task = build_task(TaskSettings(model=model, statistics=statistics, partition=partition), seed=3)
    values = METHODS[method]
    algorithm = ALGORITHMS[values["name"]].model_validate(values)
    world = World(task, algorithm, Training(**TRAINING[training]), Participation(fraction=0.8))
    runner = choose_engine(world, engine, threads=2)
    server, clients, seen = algorithm.start_server(task), world.new_clients(), []
    for number in range(5):
        outcome = runner.run_round(server, clients, world.plan(number))
        server = outcome.server
        seen += [outcome.loss, outcome.samples, outcome.entries]
    tested = runner.evaluate(server, clients)
    held = clients.snapshot(range(CLIENTS))
    memories = [server.memory[name].numpy() for name in sorted(server.memory)]
    states = [held[name].numpy() for name in sorted(held)]
    return digest(*seen, server.shared.numpy(), *memories, *states, tested.accuracy_per_client, tested.loss_per_client)


@pytest.fixture(autouse=True)
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids="/".join)
def test_the_bits_are_those_of_before(case: tuple[str, ...]) -> None:
    assert bits(*case) == json.loads(FILE.read_text())["/".join(case)]


if __name__ == "__main__":
    import tests.conftest  # noqa: F401  (registers the small models)

    torch.set_num_threads(1)
    only = sys.argv[1:]
    found = {"/".join(case): bits(*case) for case in CASES if not only or "/".join(case) in only}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
