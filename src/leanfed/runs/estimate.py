"""What a run would take: measured on a few clients, without keeping anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leanfed.algorithms.contract import Training
from leanfed.records import Ints, RoundPlan
from leanfed.rounds.engine import Engine
from leanfed.rounds.evaluation import client_result
from leanfed.rounds.loop import Progress, start
from leanfed.rounds.world import World
from leanfed.runs.build import engine_of, prepare
from leanfed.runs.settings import Settings

BYTES = 4  # of a float32
ROW_BYTES = 120  # of one row of the clients table in Parquet, roughly
TRIED, TRIED_LARGE = 20, 2  # participants of the trial round, and clients that are tested
LARGE_MODEL = 1_000_000  # values from which few clients must stand for all
TRIED_STEPS, TRIED_BATCH = 20, 512  # of the trial; what is asked beyond them is charged in proportion


def estimate(settings: Settings, data_dir: str | None = None) -> dict[str, Any]:
    """What would run, how long and how big; some clients train and are tested to find out."""
    experiment = prepare(settings, data_dir)
    world = experiment.world
    trial = _shortened(world)
    engine, progress, plan = engine_of(settings, trial), start(trial), experiment.planner.plan(0).plan
    large = world.split.size >= LARGE_MODEL
    few = _first(plan, TRIED_LARGE if large else TRIED)
    client_s = _client_seconds(engine, progress, few) * _work(world, few) / _work(trial, few)
    test_s = (
        _few_tests(engine, progress) if large else _seconds(lambda: engine.evaluate(progress.server, progress.clients))
    )
    test_s *= _test_work(world) / _test_work(trial)
    state = progress.clients[few.participants[0]]
    kept = len(state.private) + sum(len(tensor) for tensor in state.memory.values())
    tests = settings.rounds // settings.evaluation.every + (settings.rounds % settings.evaluation.every > 0)
    state_bytes = BYTES * (world.split.shared_size + world.task.clients * kept)
    return {
        "name": settings.name,
        "algorithm": settings.algorithm.model_dump()["name"],
        "engine": f"{engine.name}: {engine.reason}",
        "dataset": settings.task.dataset,
        "partition": settings.task.partition.label(),
        "clients": world.task.clients,
        "participants": len(plan.participants),
        "samples_per_client": [int(world.task.partition.sizes.min()), int(world.task.partition.sizes.max())],
        "rounds": settings.rounds,
        "shared_size": world.split.shared_size,
        "private_size": world.split.private_size,
        "estimated_seconds": round(client_s * len(plan.participants) * settings.rounds + test_s * tests, 1),
        "checkpoint_bytes": state_bytes,
        "folder_bytes": (1 + settings.run.keep_weights) * state_bytes
        + ROW_BYTES * len(plan.participants) * settings.rounds,
        "notes": list(settings.notes()),
    }


def _shortened(world: World) -> World:
    """The world with so little work in a round and a test that a trial ends soon, whatever the settings ask for."""
    training = world.training.model_copy(update={"batch_size": min(world.training.batch_size, TRIED_BATCH)})
    if _most_steps(training, world.task.partition.sizes) > TRIED_STEPS:
        training = training.model_copy(update={"local_epochs": None, "local_steps": TRIED_STEPS})
    asked = {name: getattr(world.algorithm, name, 0) for name in ("head_steps", "pruning_steps")}
    fewer = {name: TRIED_STEPS for name, steps in asked.items() if steps > TRIED_STEPS}
    return replace(
        world,
        training=training,
        algorithm=world.algorithm.model_copy(update=fewer),
        renew_statistics=min(world.renew_statistics, TRIED_STEPS),
    )


def _client_seconds(engine: Engine, progress: Progress, plan: RoundPlan) -> float:
    """Seconds that a round takes for each participant."""
    engine.run_round(progress.server, progress.clients, plan)  # compiles, fills caches
    return _seconds(lambda: engine.run_round(progress.server, progress.clients, plan)) / len(plan.participants)


def _work(world: World, plan: RoundPlan) -> float:
    """What the participants of a round compute, in gradients of one sample."""
    samples = float(world.samples(plan.participants).sum())
    head_steps = getattr(world.algorithm, "head_steps", 1)
    return samples * (1 + (head_steps - 1) * world.head_step_share)


def _test_work(world: World) -> float:
    """What a test of all clients computes, in forward passes of one sample."""
    renewed = world.task.clients * world.renew_statistics * world.training.batch_size
    return float(sum(map(len, world.task.partition.test)) + renewed)


def _most_steps(training: Training, sizes: Ints) -> int:
    """The most local steps that a client takes in a round."""
    if training.local_epochs is None:
        return training.local_steps
    return int(training.local_epochs * -(-sizes.max() // training.batch_size))


def _first(plan: RoundPlan, count: int) -> RoundPlan:
    """The plan of the first few participants."""
    return replace(plan, participants=plan.participants[:count], k=plan.k[:count], r=plan.r[:count])


def _few_tests(engine: Engine, progress: Progress) -> float:
    """Seconds to test all clients, judged by a few of them."""
    world, clients = engine.world, range(min(TRIED_LARGE, engine.world.task.clients))
    states = [progress.clients[client] for client in clients]
    spent = _seconds(
        lambda: [client_result(world, progress.server, states[client], engine.learner, client) for client in clients]
    )
    return spent * world.task.clients / len(clients)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
