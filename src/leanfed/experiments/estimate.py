"""What a run would take: measured on one client, without keeping anything."""

from __future__ import annotations

import time
from typing import Any

from leanfed.algorithms.base import ClientUpdate
from leanfed.experiments.build import build_world, choose_engine
from leanfed.experiments.settings import Settings
from leanfed.simulation.world import World

BYTES = 4  # of a float32
ROW_BYTES = 40  # of one row of the clients table in Parquet, roughly


def estimate(settings: Settings, data_dir: str | None = None) -> dict[str, Any]:
    """What would run, how long and how big; one client trains once to find out."""
    world = build_world(settings, data_dir)
    seconds, update = _time_one_client(world)
    participants = len(world.cohort(0))
    clients = world.task.clients
    kept = len(update.client.private) + sum(len(tensor) for tensor in update.client.memory.values())
    return {
        "name": settings.name,
        "algorithm": settings.algorithm.model_dump()["name"],
        "engine": choose_engine(world, settings).name,
        "dataset": settings.task.dataset,
        "partition": settings.task.partition.label(),
        "clients": clients,
        "participants": participants,
        "samples_per_client": [int(world.task.partition.sizes.min()), int(world.task.partition.sizes.max())],
        "rounds": settings.rounds,
        "shared_size": world.split.shared_size,
        "private_size": world.split.private_size,
        "estimated_seconds": round(seconds * participants * settings.rounds, 1),
        "checkpoint_bytes": BYTES * (world.split.shared_size + clients * kept),
        "folder_bytes": 2 * BYTES * (world.split.shared_size + clients * kept)
        + ROW_BYTES * participants * settings.rounds,
        "notes": list(settings.algorithm.notes()),
    }


def _time_one_client(world: World) -> tuple[float, ClientUpdate]:
    """The shorter of two trials of the first participant, and its answer."""
    model, server = world.new_model(), world.algorithm.start_server(world.task)
    plan = world.plan(0)
    client = plan.participants[0]
    best = float("inf")
    for _ in range(2):
        state = world.algorithm.start_client(world.task, client)
        began = time.perf_counter()
        job = world.job(client, 0, float(plan.k[0]), float(plan.r[0]))
        update = world.algorithm.client_update(server.shared, state, job, model)
        best = min(best, time.perf_counter() - began)
    return best, update
