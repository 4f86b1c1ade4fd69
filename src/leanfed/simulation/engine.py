"""The seam between the loop and whatever computes a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from leanfed.algorithms.base import ServerState, Upload
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.simulation.clients import ClientStore
from leanfed.simulation.evaluation import Evaluation, evaluate
from leanfed.simulation.wire import through_wire
from leanfed.simulation.world import World
from leanfed.tasks.split import FlatModel


@dataclass(frozen=True)
class RoundOutcome:
    """What a round made: the server's next state, and a column per quantity over the participants."""

    server: ServerState
    loss: Floats  # (participants,)
    samples: Ints  # samples processed
    entries: Ints  # values uploaded
    coded_bits: Floats | None = None  # bits of the coded uploads, where they went through the codec


def nobody(server: ServerState) -> RoundOutcome:
    """A round that passes without participants: nothing is learned, nothing is lost."""
    none = np.zeros(0, dtype=np.int64)
    return RoundOutcome(server, np.zeros(0), none, none)


class Engine(ABC):
    """Runs one round: clients of the plan train, the server aggregates; `clients` is updated in place."""

    name: str
    reason: str = "it was asked for"  # one phrase: why this engine; `choose_engine` fills it in

    world: World
    model: FlatModel

    def evaluate(self, server: ServerState, clients: ClientStore) -> Evaluation:
        """Every client's model on its own test set."""
        return evaluate(self.world, server, clients, self.model)

    @abstractmethod
    def run_round(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> RoundOutcome:
        """One exchange between server and clients."""


@final
class ReferenceEngine(Engine):
    """The plain loop over clients: any model, any method, one client's gradient in memory at a time."""

    name = "reference"

    def __init__(self, world: World, wire: str | None = None) -> None:
        self.world = world
        self.model = world.new_model()
        self.wire = wire  # value type of coded uploads; None: uploads are handed over as they are

    def run_round(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> RoundOutcome:
        """Algorithm 1's round: each participant trains and uploads, then the server steps."""
        losses: list[float] = []
        samples: list[int] = []
        entries: list[int] = []
        coded: list[int] = []

        def uploads() -> Iterator[tuple[float, Upload]]:
            for client, k, r in zip(plan.participants, plan.k.tolist(), plan.r.tolist(), strict=True):
                job = self.world.job(client, plan.round, k, r)
                update = self.world.algorithm.client_update(server.shared, clients[client], job, self.model)
                clients[client] = update.client
                losses.append(update.loss)
                samples.append(update.samples)
                entries.append(update.upload.entries)
                upload = update.upload
                if self.wire is not None:
                    upload, bits = through_wire(upload, self.wire)
                    coded.append(bits)
                yield self.world.task.gamma[client], upload

        after = self.world.algorithm.server_update(server, uploads(), self.world.training, plan.round)
        bits = None if self.wire is None else np.array(coded, dtype=float)
        return RoundOutcome(after, np.array(losses), np.array(samples), np.array(entries), bits)
