"""What a run folder says of its world before the first round: the clients' labels, the devices, and where every
setting comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from leanfed.quantities import guess_of
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings
from leanfed.runs.sources import sources
from leanfed.tasks.datasets import DATASETS
from leanfed.wireless.fleet import Fleet
from leanfed.wireless.fleet_file import write_fleet

MOST_DEVICE_ROWS = 500_000  # of fleet.parquet; a longer trace holds evenly spaced rounds


def describe_world(settings: Settings, world: World) -> dict[str, Any]:
    """Sizes of model and data, labels held by every client unless metrics are withheld, the source of every setting."""
    task, users = world.task, DATASETS[settings.task.dataset].users
    tested = world.tested
    return {
        "shared_size": world.split.shared_size,
        "private_size": world.split.private_size,
        **(_held(world) if world.metrics == "shown" else {}),
        **({"panel": tested.tolist()} if world.sampled else {}),  # the clients that the lists above are of
        **({} if world.widths is None else {"widths": [world.widths[client] for client in tested]}),
        **({"users": list(users)} if settings.task.partition.kind == "column" and len(users) == task.clients else {}),
        "sources": sources(settings),
    }


def _held(world: World) -> dict[str, Any]:
    """What the tested clients hold: labels, samples, and the score of their best constant guess."""
    task, tested, partition = world.task, world.tested, world.task.partition
    held = (task.train.labels[partition.train[n]].reshape(-1) for n in tested) if task.classes else ()
    return {
        # (clients, classes), training samples; empty where numbers are predicted
        "label_counts": [np.bincount(mine, minlength=task.classes).tolist() for mine in held],
        "samples": partition.sizes[tested].tolist(),
        "test_samples": partition.test_sizes[tested].tolist(),
        guess_of(task.loss.judged_by): task.constant_guess(tested).tolist(),
    }


def write_devices(path: Path, fleet: Fleet, rounds: int) -> None:
    """The devices of every round, or of as many evenly spaced ones as fit."""
    most = max(1, MOST_DEVICE_ROWS // fleet.devices)
    numbers = range(0, rounds, -(-rounds // most))
    write_fleet(path, [fleet.state(number) for number in numbers], numbers)
