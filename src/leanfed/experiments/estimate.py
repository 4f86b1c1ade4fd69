"""What a run would take: measured on a few clients, without keeping anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leanfed.experiments.build import build_world, engine_of, planner_of
from leanfed.experiments.settings import Settings
from leanfed.records import RoundPlan
from leanfed.simulation.rounds import start

BYTES = 4  # of a float32
ROW_BYTES = 120  # of one row of the clients table in Parquet, roughly
TRIED = 20  # participants of the trial round


def estimate(settings: Settings, data_dir: str | None = None) -> dict[str, Any]:
    """What would run, how long and how big; some clients train and everybody is evaluated once to find out."""
    world = build_world(settings, data_dir)
    engine, progress, plan = engine_of(settings, world), start(world), planner_of(settings, world).plan(0).plan
    few = _first(plan, TRIED)
    engine.run_round(progress.server, progress.clients, few)  # compiles, fills caches
    round_s = _seconds(lambda: engine.run_round(progress.server, progress.clients, few))
    test_s = _seconds(lambda: engine.evaluate(progress.server, progress.clients))
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
        "folder_bytes": 2 * state_bytes + ROW_BYTES * len(plan.participants) * settings.rounds,
        "notes": list(settings.notes()),
    }


def _first(plan: RoundPlan, count: int) -> RoundPlan:
    """The plan of the first few participants."""
    return replace(plan, participants=plan.participants[:count], k=plan.k[:count], r=plan.r[:count])


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
