"""What a run would take: measured on a few clients and samples, without keeping anything."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np

from leanfed.algorithms.learner import one_thread
from leanfed.compression.selection import load_kernels
from leanfed.records import RoundPlan
from leanfed.runs.prepare import Experiment, engine_of, prepare
from leanfed.runs.settings import Settings
from leanfed.runs.trial import Trial, round_seconds, shortened, test_samples

BYTES = 4  # of a float32
PLANNED = 8  # rounds, whose participants stand for all: plans may leave out many
ROW_BYTES = 120  # of one row of the clients table in Parquet, roughly


def estimate(
    settings: Settings, data_dir: str | None = None, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """What would run, how long and how big; some clients train and are tested on a few samples to find out.

    `clock` says what seconds are: `time.process_time` for those of all processors together.
    """
    experiment = prepare(settings, data_dir, sketched=True)
    world, plan = experiment.world, _tried_plan(experiment)
    loading = Thread(target=load_kernels, args=(world.split.size,), daemon=True)
    loading.start()  # while torch initialises the engine's models, which leaves Python to others
    engine = engine_of(settings, shortened(world))
    loading.join()
    with one_thread():
        trial = Trial(engine, world, plan, clock)
        seconds = _seconds(experiment, trial)
    met = min(world.task.clients, settings.rounds * len(plan.participants) + len(world.tested))  # clients
    state_bytes = BYTES * (world.split.shared_size + met * trial.kept)
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
        "estimated_seconds": round(seconds, 1),
        "checkpoint_bytes": state_bytes,
        "folder_bytes": (1 + settings.run.keep_weights) * state_bytes
        + ROW_BYTES * len(plan.participants) * settings.rounds,
        "notes": list(settings.notes()),
    }


def _tried_plan(experiment: Experiment) -> RoundPlan:
    """The plan of the first round with participants, or the first client alone: rounds may pass without anybody."""
    world = experiment.world
    k, r = world.algorithm.rates(world.task.clients)
    rounds = range(min(PLANNED, experiment.settings.rounds))
    found = itertools.chain([experiment.planner.plan(0).plan], (world.plan(number) for number in rounds))
    return next((plan for plan in found if plan.participants), RoundPlan(0, (0,), k[:1], r[:1]))


def _seconds(experiment: Experiment, trial: Trial) -> float:
    """Seconds of all rounds: planning, training and tests; files are written while the next round trains."""
    settings, world = experiment.settings, experiment.world
    planned = min(PLANNED, settings.rounds)
    began = trial.clock()
    plans = [experiment.planner.plan(number).plan.participants for number in range(planned)]
    plan_s = (trial.clock() - began) / planned
    line = trial.training()
    round_s = sum(round_seconds(line, world, trial.world, who) for who in plans if who) / planned
    samples = test_samples(world)
    testing = trial.testing(line)
    test_s = testing.seconds(np.zeros(len(samples)), samples) + len(samples) * trial.preparing(testing, world)
    tests = -(-settings.rounds // settings.evaluation.every)
    return settings.rounds * (plan_s + round_s) + tests * test_s
