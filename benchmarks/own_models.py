"""What an own model costs over a plain PyTorch loop of the same work; ratios inside one run.

    python benchmarks/own_models.py [--out results/own_models/bench.json]

Both do the same rounds in one process on one thread, in CPU time: the same batches, forward and backward passes and
steps of every client from the same start, on the streamed engine and on the one that `auto` chooses. The plain loop
sums gradients and, for FLPDSP, prunes and sparsifies with torch.topk. It is what one would write without leanfed: a
module, autograd, tensors; no exact sums, no checks. Rounds of the two alternate, and the median over the pairs is told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import leanfed
from leanfed.algorithms.learner import one_thread
from leanfed.records import kept_counts
from leanfed.rounds.loop import start
from leanfed.runs.prepare import engine_of, prepare

CLIENTS, STEPS, PAIRS = 10, 10, 15  # STEPS: of a client in one measurement, in as many rounds as they take


class Series(nn.Module):
    """Six channels of 128 values: Conv1d, GRU, a linear head."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 32, 5, stride=2)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6, 128) -> (batch, outputs)."""
        hidden, _ = self.gru(functional.relu(self.conv(x)).transpose(1, 2))
        return self.head(hidden[:, -1])


def register() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 2_000)
    leanfed.add_arrays("table", rng.normal(size=(2_000, 64)).astype(np.float32), labels)
    leanfed.add_arrays("series", rng.normal(size=(2_000, 6, 128)).astype(np.float32), labels)

    def mlp(n: int) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, n))

    leanfed.add_model("mlp", mlp, split="2", input_shape=(64,))
    leanfed.add_model("conv-gru", Series, split="gru", input_shape=(6, 128))


class Plain:
    """The same rounds, written by hand."""

    def __init__(self, world) -> None:
        self.world, self.model = world, world.task.new_model("base")
        self.base = world.split.shared_size
        self.shared = world.task.initial_shared(world.split)
        self.heads = [world.task.initial_private(world.split, client) for client in range(world.task.clients)]

    def round(self, plan) -> None:
        world, total = self.world, torch.zeros(self.base)
        rate, settings = world.training.rate(plan.round), world.training
        sparse = world.algorithm.model_dump()["name"] == "flpdsp"
        for client, k, r in zip(plan.participants, plan.k, plan.r, strict=True):
            head = self.heads[client]
            if sparse:
                kept = torch.topk(head.abs(), int(kept_counts(np.array([r]), len(head))[0]), sorted=False).indices
                mask = torch.zeros(self.base + len(head)).index_fill_(0, self.base + kept, 1.0)
                mask[: self.base] = 1.0
                head = head * mask[self.base :]
            vector_to_parameters(torch.cat([self.shared, head]), self.model.parameters())
            before = parameters_to_vector(self.model.parameters()).detach()
            drawn = world.task.batches(client, plan.round, settings.batch_size, steps=settings.local_steps, epochs=None)
            for step, batch in enumerate(drawn):
                if sparse and step:  # Algorithm 1: pruned weights are zero at every gradient
                    flat = parameters_to_vector(self.model.parameters()).detach()
                    vector_to_parameters(flat * mask, self.model.parameters())
                self.model.zero_grad()
                functional.cross_entropy(self.model(batch.inputs), batch.labels).backward()
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        parameter.sub_(parameter.grad, alpha=rate)
            after = parameters_to_vector(self.model.parameters()).detach()
            gradient = (before[: self.base] - after[: self.base]) / rate
            if sparse:
                kept = torch.topk(gradient.abs(), int(kept_counts(np.array([k]), self.base)[0]), sorted=False).indices
                total.index_add_(0, kept, gradient[kept], alpha=float(world.task.gamma[client]))
            else:
                total.add_(gradient, alpha=float(world.task.gamma[client]))
            self.heads[client] = after[self.base :].clone()
        self.shared = self.shared - rate * total


def measure(dataset: str, model: str, method: str, steps: int, engine_name: str) -> dict[str, object]:
    settings = leanfed.Settings(
        task={"dataset": dataset, "model": model, "partition": {"kind": "iid", "clients": CLIENTS}},
        training={"batch_size": 32, "local_steps": steps, "learning_rate": 0.05},
        algorithm={"name": method},
        run={"engine": engine_name, "threads": 1},
    )
    experiment = prepare(settings)
    world, engine = experiment.world, engine_of(settings, experiment.world)
    progress, plain = start(world), Plain(world)
    server, ratios, number = progress.server, [], 0
    with one_thread():
        for pair in range(PAIRS + 1):
            spent = [0.0, 0.0]
            for _ in range(STEPS // steps):
                plan = world.plan(number)
                began = time.process_time()
                server = engine.run_round(server, progress.clients, plan).server
                middle = time.process_time()
                plain.round(plan)
                spent = [spent[0] + middle - began, spent[1] + time.process_time() - middle]
                number += 1
            if pair:  # the first warms up
                ratios.append(spent[0] / spent[1])
    apart = float((server.shared - plain.shared).norm() / plain.shared.norm())
    return {
        "model": model,
        "method": method,
        "local_steps": steps,
        "engine": engine.name,
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "weights_apart": f"{apart:.1e}",  # of the two after all rounds: the work was the same
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    register()
    cases = [("table", "mlp"), ("series", "conv-gru")]
    rows = []
    for steps in (1, 10):
        for case in cases:
            for method in ("fedper", "flpdsp"):
                for engine in ("streamed", "auto"):
                    if engine == "auto" and case == ("series", "conv-gru"):
                        continue  # it is the streamed one: a GRU has no rule
                    rows.append(measure(*case, method, steps, engine))
                    print(rows[-1], flush=True)
                if out is not None:
                    out.parent.mkdir(parents=True, exist_ok=True)
                    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
