"""The seam between the loop and whatever computes a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from leanfed.algorithms.base import ClientUpdate, ServerState, Upload
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.evaluation import Evaluation, evaluate
from leanfed.rounds.exchange import train_client, update_server
from leanfed.rounds.wire import through_wire
from leanfed.rounds.world import World
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


class Tally:
    """A column per quantity, filled as the participants answer."""

    def __init__(self, wire: str | None) -> None:
        self.wire = wire  # value type of coded uploads; None: uploads are handed over as they are
        self._answers: list[tuple[float, int, int, int]] = []

    def received(self, update: ClientUpdate) -> Upload:
        """Note an answer; what the server reads of it."""
        upload, bits = (update.upload, 0) if self.wire is None else through_wire(update.upload, self.wire)
        self._answers.append((update.loss, update.samples, update.upload.entries, bits))
        return upload

    def outcome(self, after: ServerState) -> RoundOutcome:
        """The round, when everybody has answered."""
        loss, samples, entries, bits = (np.array(column) for column in zip(*self._answers, strict=True))
        return RoundOutcome(after, loss, samples, entries, None if self.wire is None else bits.astype(float))


@final
class ReferenceEngine(Engine):
    """The plain loop over clients, to read and to compare with: any model, any method."""

    name = "reference"

    def __init__(self, world: World, wire: str | None = None) -> None:
        self.world = world
        self.model = world.new_model()
        self.wire = wire

    def run_round(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> RoundOutcome:
        """Algorithm 1's round: each participant trains and uploads, then the server steps."""
        world, tally = self.world, Tally(self.wire)

        def uploads() -> Iterator[tuple[float, Upload]]:
            for client, k, r in zip(plan.participants, plan.k.tolist(), plan.r.tolist(), strict=True):
                job = world.job(client, plan.round, k, r)
                update = train_client(world.algorithm, server, clients[client], job, self.model)
                clients[client] = update.client
                yield world.task.gamma[client], tally.received(update)

        after = update_server(world.algorithm, server, uploads(), world.training, plan.round)
        return tally.outcome(after)
