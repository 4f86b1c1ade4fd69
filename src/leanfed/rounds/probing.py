"""Measure the constants of the theory and the squared gradient norm during a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ServerState, Training, Work
from leanfed.algorithms.learner import FlatLearner
from leanfed.records import Floats, Ints, RoundPlan, Section
from leanfed.rounds.client_store import ClientStore, States
from leanfed.rounds.world import World
from leanfed.streams import stream
from leanfed.tasks.batch import CPU, Batch
from leanfed.tasks.task import draw_rows
from leanfed.theory.constants import Probe, divergence_sq, estimate_constants, probe_client

BATCHES = 4  # mini-batches per probe, for G and sigma
MEASURED = ("loss", "l1", "l2", "g_sq", "m", "sigma_sq", "delta_sq")
CONSTANTS = ("theory_l1", "theory_l2", "theory_g_sq", "theory_m", "theory_sigma_sq", "theory_eta")


class TheorySettings(Section):
    """Whether and how a run measures the quantities in Theorem 1."""

    every: int = Field(default=0, ge=0)
    """Rounds from one measurement to the next, starting in round 0; 0: no measurements."""
    probes: int = Field(default=8, ge=1, le=10_000)
    """Participants probed each time."""
    samples: int = Field(default=256, ge=1, le=1_000_000)
    """The most samples of a client that a probe uses, in place of all."""


def why_no_bound(algorithm: Algorithm, training: Training) -> str | None:
    """Why Theorem 1 does not apply to these settings, or None if it does."""
    if algorithm.upload_form == "mask":
        return "masks are trained, not weights"
    if training.local_steps > 1 or training.local_epochs is not None:
        return "there is more than one local step"
    if algorithm.work(1.0) != Work():
        return "heads take more than one step" if algorithm.work(1.0).head_passes else "a step takes several gradients"
    if training.optimizer != "sgd":
        return f"local steps follow {training.optimizer}, not the gradient"
    if training.momentum or training.weight_decay:
        return "there is momentum or weight decay"
    return "the learning rate decays" if training.learning_rate_decay != 1.0 else None


@dataclass(frozen=True)
class Prober:
    """Measures participants of a round before they train; results depend only on seed, round and state."""

    settings: TheorySettings
    world: World
    learner: FlatLearner
    read: Callable[[ClientStore, Sequence[int]], States] = lambda clients, some: clients

    def row(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> dict[str, Any]:
        """Columns of the rounds table, empty in rounds without a measurement; no columns if measuring is off.

        `gradient_norm_sq` is |grad F_n|^2 on the client's own samples at the model it is about to train (pruned where
        the method prunes), weighted by gamma over the probed participants.
        """
        if self.settings.every == 0:
            return {}
        gamma = self._gamma(plan.participants)
        applies = why_no_bound(self.world.algorithm, self.world.training) is None
        row: dict[str, Any] = {
            "gradient_norm_sq": None,
            "theory_eta": self.world.training.rate(plan.round) if applies else None,
            "theory_k": float(gamma @ plan.k) if plan.participants else None,
            "theory_root": float(gamma @ np.sqrt(1.0 - plan.r)) if plan.participants else None,
            **{f"theory_{name}": None for name in MEASURED},
        }
        due = plan.round % self.settings.every == 0 and plan.participants
        return row | self.measure(server, clients, plan) if due else row

    def measure(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> dict[str, float]:
        """The measured values of one round, by column."""
        world, there = self.world, len(plan.participants)
        drawn = stream(world.task.seed, "probe", plan.round).choice(
            there, min(self.settings.probes, there), replace=False
        )
        chosen = sorted(drawn.tolist())
        gamma = self._gamma([plan.participants[place] for place in chosen])
        states = self.read(clients, [plan.participants[place] for place in chosen])
        probes = [self._probe(server, states, plan, place) for place in chosen]
        found = estimate_constants(probes, learning_rate=world.training.rate(plan.round), rounds=plan.round + 1)
        return {
            "gradient_norm_sq": float(gamma @ [probe.full_gradient_sq for probe in probes]),
            "theory_loss": float(gamma @ [probe.loss for probe in probes]),
            "theory_l1": found.loss_lipschitz,
            "theory_l2": found.gradient_lipschitz,
            "theory_g_sq": found.gradient_bound**2,
            "theory_m": found.weight_bound,
            "theory_sigma_sq": found.noise**2,
            "theory_delta_sq": float(gamma @ divergence_sq(probes, gamma, world.split.shared_size)),
        }

    def _probe(self, server: ServerState, states: States, plan: RoundPlan, place: int) -> Probe:
        """Probe one participant at the model it is about to train, and at the same model before pruning."""
        world, client = self.world, plan.participants[place]
        state = states[client]
        cohort = world.alone(state, client, plan.round, float(plan.k[place]), float(plan.r[place]), plan.head_steps)
        trained = torch.cat(world.algorithm.trained_weights(server.shared, cohort, self.learner).row(0))
        whole = torch.cat([server.shared, state.private])
        others = [whole] if whole.shape == trained.shape else []  # scores of masks are not weights
        rng, rows = stream(world.task.seed, "probe", plan.round, client), world.task.partition.train[client]
        rows = np.sort(rng.choice(rows, min(self.settings.samples, len(rows)), replace=False))
        data, batches = world.task.train.batch(rows), self._batches(rows, rng)
        return probe_client(self.learner.model, trained, data, batches, step=cohort.rate, others=others)

    def _batches(self, rows: Ints, rng: np.random.Generator) -> Iterator[Batch]:
        """Mini-batches from the client's samples used for this probe."""
        for _ in range(BATCHES):
            yield self.world.task.train.batch(draw_rows(rows, self.world.training.batch_size, rng))

    def _gamma(self, clients: Sequence[int]) -> Floats:
        """Weights of some clients, normalised to sum to one."""
        gamma = self.world.task.gamma[list(clients)]
        return np.asarray(gamma / gamma.sum()) if len(clients) else gamma


def initial_constants(world: World, settings: TheorySettings) -> dict[str, Any]:
    """What the constants of Assumptions 1-3 are at the clients' initial, whole models: known before the first round."""
    everyone = range(world.task.clients)
    plan = RoundPlan(0, tuple(everyone), np.ones(len(everyone)), np.ones(len(everyone)))
    server, clients = world.algorithm.start_server(world.task), world.new_clients()
    found = Prober(settings, world, world.new_learner(CPU)).measure(server, clients, plan)
    return {**{name: found[name] for name in CONSTANTS[:-1]}, "theory_eta": world.training.rate(0)}
