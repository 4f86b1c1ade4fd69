"""What a run would take: measured on a few clients, without keeping anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leanfed.records import RoundPlan
from leanfed.rounds.engine import Engine
from leanfed.rounds.evaluation import client_result
from leanfed.rounds.loop import Progress, start
from leanfed.runs.build import engine_of, prepare
from leanfed.runs.settings import Settings

BYTES = 4  # of a float32
ROW_BYTES = 120  # of one row of the clients table in Parquet, roughly
TRIED, TRIED_LARGE = 20, 2  # participants of the trial round, and clients that are tested
LARGE_MODEL = 1_000_000  # values from which few clients must stand for all


def estimate(settings: Settings, data_dir: str | None = None) -> dict[str, Any]:
    """What would run, how long and how big; some clients train and are tested to find out."""
    experiment = prepare(settings, data_dir)
    world = experiment.world
    engine, progress, plan = engine_of(settings, world), start(world), experiment.planner.plan(0).plan
    large = world.split.size >= LARGE_MODEL
    few = _first(plan, TRIED_LARGE if large else TRIED)
    engine.run_round(progress.server, progress.clients, few)  # compiles, fills caches
    round_s = _seconds(lambda: engine.run_round(progress.server, progress.clients, few))
    test_s = (
        _few_tests(engine, progress) if large else _seconds(lambda: engine.evaluate(progress.server, progress.clients))
    )
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
        "estimated_seconds": round(
            round_s * len(plan.participants) / len(few.participants) * settings.rounds + test_s * tests, 1
        ),
        "checkpoint_bytes": state_bytes,
        "folder_bytes": (1 + settings.run.keep_weights) * state_bytes
        + ROW_BYTES * len(plan.participants) * settings.rounds,
        "notes": list(settings.notes()),
    }


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
