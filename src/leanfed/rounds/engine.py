"""The seam between the loop and whatever computes a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from leanfed.algorithms.contract import ServerState
from leanfed.algorithms.learner import FlatLearner
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.rounds.aggregation import update_server
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.evaluation import Evaluation, evaluate
from leanfed.rounds.exchange import Answers
from leanfed.rounds.world import World


@dataclass(frozen=True)
class RoundOutcome:
    """What a round made: the server's next state, and a column per quantity over the participants."""

    server: ServerState
    loss: Floats  # (participants,)
    samples: Ints  # samples processed
    entries: Ints  # values uploaded
    coded_bits: Floats | None = None  # bits of the coded uploads, where they went through the codec


def empty_outcome(server: ServerState) -> RoundOutcome:
    """A round without participants: the server's state stays as it is."""
    none = np.zeros(0, dtype=np.int64)
    return RoundOutcome(server, np.zeros(0), none, none)


class Engine(ABC):
    """Computes exchanges: the participants of a plan train and answer.

    An engine says what it can give: with `single_uploads` a rule of aggregation may ask for every upload by itself, and
    without it only for their weighted sum. `choose_engine` refuses a rule that needs more.
    """

    name: str
    reason: str = "it was asked for"  # one phrase: why this engine; `choose_engine` fills it in
    single_uploads: bool = True

    world: World
    learner: FlatLearner  # for whatever looks at one client's model: tests, probes

    @abstractmethod
    def exchange(self, server: ServerState, clients: ClientStore, plan: RoundPlan, *, single: bool) -> Answers:
        """Let every participant of the plan train; `clients` is updated in place.

        The answers hold each upload where `single` is set, else their weighted sum.
        """

    def run_round(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> RoundOutcome:
        """One round: the clients' exchange, then the server's aggregation and step."""
        world = self.world
        answers = self.exchange(server, clients, plan, single=world.aggregation.single_uploads)
        after = update_server(world.algorithm, world.aggregation, server, answers, world.training, plan.round)
        return RoundOutcome(after, answers.loss, answers.samples, answers.entries, answers.coded_bits)

    def evaluate(self, server: ServerState, clients: ClientStore) -> Evaluation:
        """Every client's model on its own test set."""
        return evaluate(self.world, server, clients, self.learner)
