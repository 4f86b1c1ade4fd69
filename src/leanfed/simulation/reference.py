"""The reference engine: a plain loop over clients, easy to read and to compare with."""

from __future__ import annotations

from typing import final

from typing_extensions import override

from leanfed.algorithms.contract import ServerState
from leanfed.records import RoundPlan
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import ENGINES, Engine, EngineSpec
from leanfed.rounds.exchange import Answers, Collector, train
from leanfed.rounds.world import World
from leanfed.simulation.pipeline import ahead, behind


@final
class ReferenceEngine(Engine):
    """One client after another: any model, any method."""

    name = "reference"

    def __init__(self, world: World, wire: str | None = None) -> None:
        self.world = world
        self.learner = world.new_learner()
        self.wire = wire

    @override
    def exchange(self, server: ServerState, clients: ClientStore, plan: RoundPlan, *, single: bool) -> Answers:
        world, size = self.world, len(server.shared)
        collector = Collector(size, single=single, wire=self.wire, device=world.device)
        cohorts = (world.alone(clients[one], one, plan.round, k, r, steps) for one, k, r, steps in plan.each())
        trained = (
            train(world.algorithm, server, cohort, self.learner, waits=False) for cohort in ahead(cohorts, world.device)
        )
        for client, updates in zip(plan.participants, behind(trained, world.device), strict=True):
            clients[client] = updates.state(0)
            collector.receive(world.task.gamma[[client]], updates)
        return collector.answers()


ENGINES.add("reference", EngineSpec(lambda world, threads, wire: ReferenceEngine(world, wire)))
