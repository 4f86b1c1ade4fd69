"""The interface between the round loop and the engines that compute a round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.contract import ServerState
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.uploads import Upload
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.registry import Registry
from leanfed.rounds.adversary import PAST, Scheme, tampered
from leanfed.rounds.aggregation import by_rule, combined, remembering, stepped, update_server
from leanfed.rounds.broadcast import advanced, seen
from leanfed.rounds.client_store import ClientStore, States
from leanfed.rounds.evaluation import Evaluation, Results, gathered, results_of
from leanfed.rounds.exchange import Answers, check_range
from leanfed.rounds.privacy import Ledger, release
from leanfed.rounds.world import World
from leanfed.tasks.batch import CPU


@dataclass(frozen=True)
class RoundOutcome:
    """The result of a round: the server's next state, and one column per quantity over the participants."""

    server: ServerState
    loss: Floats  # (participants,)
    samples: Ints  # samples processed
    entries: Ints  # values uploaded
    coded_bits: Floats | None = None  # bits of the coded uploads; None without the codec
    weights: Floats | None = None  # of the uploads in the update; None: gamma over its sum, or not a weighted sum
    signals: Floats | None = None  # (participants, SIGNALS) where clients report them


CLIP = "clip"  # the server's memory of an adaptive clip


def empty_outcome(server: ServerState) -> RoundOutcome:
    """The outcome of a round without participants: the server's state does not change."""
    none = np.zeros(0, dtype=np.int64)
    return RoundOutcome(server, np.zeros(0), none, none)


class Engine(ABC):
    """Computes rounds: lets the participants of a plan train, and aggregates their uploads.

    An engine with `single_uploads` can pass every upload to the aggregation rule; one without it passes only their
    weighted sum. `choose_engine` refuses a rule that needs more than the engine provides.
    """

    name: str
    reason: str = "it was asked for"  # why this engine was chosen; `choose_engine` fills it in
    single_uploads: bool = True
    clients_at_once: int = 1  # how many clients keep all its workers busy
    alike: int = 1  # workers that share nothing but the machine: what one takes tells what all take
    any_company: bool = True  # whether a client's numbers are the same whoever computes beside it
    wire: str | None = None  # value type of coded uploads; None: uploads are not coded

    world: World
    learner: FlatLearner  # for code that looks at one client's model, such as evaluations and probes

    def at(self, world: World) -> Engine:
        """This engine and its workers in a world with other clients, steps or tests, but the same model and method."""
        other = copy(self)
        other.world = world
        return other

    @abstractmethod
    def exchange(self, server: ServerState, clients: ClientStore, plan: RoundPlan, *, single: bool) -> Answers:
        """Let every participant of the plan train; `clients` is updated in place.

        The answers hold every upload if `single` is set, else the weighted sum of all.
        """

    def run_round(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> RoundOutcome:
        """One round: the clients' exchange, then the server's aggregation and step."""
        world = self.world
        liars = world.tamperers.intersection(plan.participants)
        single = world.aggregation.single_uploads or bool(liars) or world.ledger is not None
        answers = self.exchange(seen(server), clients, plan, single=single)
        check_range(answers, plan.participants, world.training, plan.round)
        past: Mapping[str, Tensor] = {}
        if liars:
            rule = partial(self._ruled, server, plan.participants, answers.gamma)
            scheme = Scheme(world.adversary, liars, rule, server.memory.get(PAST))
            answers, past = tampered(scheme, answers, plan.participants, world.task.seed, plan.round)
        weights: Floats | None
        if world.ledger is not None:
            after, weights = released(world, world.ledger, server, answers.uploads, plan.round)
        else:
            had = None if world.widths is None else world.coverage(plan.participants, answers.gamma)
            mean, weights, memory = combined(world.aggregation, server, plan.participants, answers, had)
            after = update_server(world.algorithm, server, mean, answers, world.training, plan.round)
            after = remembering(after, memory)
        if past:
            after = ServerState(after.shared, {**after.memory, **past})
        after, _ = advanced(world.differences, server, after, world.task.seed, plan.round)
        columns = (answers.loss, answers.samples, answers.entries, answers.coded_bits)
        return RoundOutcome(after, *columns, weights, answers.signals)

    def _ruled(self, server: ServerState, clients: Sequence[int], gamma: Floats, uploads: Sequence[Upload]) -> Tensor:
        return by_rule(self.world.aggregation, server, clients, gamma, uploads).update

    def evaluate(self, server: ServerState, clients: ClientStore) -> Evaluation:
        """Test the models of the tested clients, all or a panel, each on its own test set."""
        return gathered(self.world, self.test(seen(server), clients, self.world.tested.tolist()))

    def test(self, server: ServerState, clients: ClientStore, some: Sequence[int]) -> Results:
        """Test the models of some clients on their own test sets."""
        return results_of(self.world, server, clients, self.learner, some)

    def host_learner(self) -> FlatLearner:
        """A model in the processor's memory, where the clients' states are."""
        return self.learner if self.world.device == CPU else self.world.new_learner(CPU)

    def states(self, clients: ClientStore, some: Sequence[int]) -> States:
        """The states of a few clients, for code that looks at single ones, such as probes."""
        return clients


def released(
    world: World, ledger: Ledger, server: ServerState, uploads: Sequence[Upload], number: int
) -> tuple[ServerState, Floats]:
    """The server's state after a private round, also one in which nobody took part, and the uploads' weights."""
    first = math.inf if ledger.settings.clip is None else ledger.settings.clip
    clip = float(server.memory.get(CLIP, torch.tensor(first)))
    out = release(ledger, clip, len(server.shared), uploads, number, support_of(world, number))
    after = stepped(world.algorithm, server, out.mean, world.training, number, ledger.expected / ledger.clients)
    return ServerState(after.shared, {**after.memory, CLIP: torch.tensor(out.clip)}), out.weights


def support_of(world: World, number: int) -> Ints | None:
    """The positions that all clients send in a round at the method's one keep rate; None where each chooses."""
    k, r = (rates[:1] for rates in world.algorithm.rates(world.task.clients))
    return world.support(number, int(world.algorithm.entries(world.split, k, r)[0]))


@dataclass(frozen=True)
class EngineSpec:
    """How an engine is built, and why it cannot run some worlds. One more name for an engine that is there already:

    >>> from leanfed.simulation.reference import ReferenceEngine
    >>> spec = ENGINES.add("plain", EngineSpec(lambda world, threads, wire: ReferenceEngine(world, wire)))
    >>> "plain" in ENGINES  # and so run.engine = "plain" is a setting
    True
    >>> ENGINES.remove("plain")
    """

    build: Callable[[World, int | None, str | None], Engine]
    """From a world, the number of threads (None: the engine's choice) and the value type of coded uploads (None: no
    upload goes through the codec)."""
    obstacle: Callable[[World, str | None], str | None] = lambda world, wire: None
    """Why a world cannot be run, as a clause; None if it can."""


ENGINES: Final[Registry[EngineSpec]] = Registry("engine")
