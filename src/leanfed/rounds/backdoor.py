"""A backdoor for experiments: attackers teach the base that a white square means one label, and how often it works.

Some samples of every attacker carry the square and the target's label. The task's test set is followed by a copy of
itself with the square, on which the success rate is measured; clients' own tests are the first half, as without it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leanfed.algorithms.contract import ServerState
from leanfed.errors import SettingsError
from leanfed.records import Ints
from leanfed.rounds.adversary import Adversary
from leanfed.rounds.broadcast import seen
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import Engine
from leanfed.rounds.world import World
from leanfed.streams import stream
from leanfed.tasks.partition import Partition
from leanfed.tasks.task import Images, Pixels, Task


def poisoned(task: Task, adversary: Adversary) -> Task:
    """The task with the attackers' samples poisoned, and the test set once more with the square.

    Of every attacker's n samples round(poisoned x n) are drawn, which carry the square and the target's label.
    """
    train, test, target = task.train, task.test, adversary.target
    if not isinstance(train, Images) or not isinstance(test, Images):
        raise SettingsError(
            f"adversary.kind = 'backdoor' paints a square on pictures, but {task.settings.dataset!r} has none. Choose "
            "a data set of pictures or another kind."
        )
    if target >= task.classes:
        raise SettingsError(
            f"adversary.target = {target}, but {task.settings.dataset!r} has the labels 0 to {task.classes - 1}. "
            "Choose one of them."
        )
    pixels, labels = train.pixels.copy(), np.array(train.labels)
    for client in sorted(adversary.liars(task.clients, task.seed)):
        rows = task.partition.train[client]
        count = round(adversary.poisoned * len(rows))
        some = stream(task.seed, "backdoor", client).choice(rows, count, replace=False)
        pixels[some] = with_square(pixels[some], adversary.square)
        labels[some] = target
    twice = np.concatenate([test.pixels, with_square(test.pixels, adversary.square)])
    answers = np.concatenate([test.labels, np.full_like(test.labels, target)])
    return replace(
        task, train=replace(train, pixels=pixels, labels=labels), test=replace(test, pixels=twice, labels=answers)
    )


def with_square(pixels: Pixels, side: int) -> Pixels:
    """Pictures (n, channels, height, width) with a white square in the lower right corner.

    >>> with_square(np.zeros((1, 1, 2, 3), dtype=np.uint8), 1)[0, 0].tolist()
    [[0, 0, 0], [0, 0, 255]]
    """
    marked = pixels.copy()
    marked[..., -side:, -side:] = 255
    return marked


def candidates(world: World) -> dict[int, Ints]:
    """Honest client -> the marked copies of its test samples with another label than the target's.

    Only clients that train on the target's class are asked: the heads of others never answer it.
    """
    task, target, found = world.task, world.adversary.target, {}
    half = len(task.test.labels) // 2
    for client in world.tested.tolist():
        rows = task.partition.test[client]
        others = rows[task.test.labels[rows] != target]
        if (
            client not in world.liars
            and len(others)
            and (task.train.labels[task.partition.train[client]] == target).any()
        ):
            found[client] = half + others
    return found


def success(engine: Engine, server: ServerState, clients: ClientStore) -> float | None:
    """The share of marked test samples that honest clients take for the target, mean by weight; None: none to ask."""
    world = engine.world
    asked = candidates(world)
    if not asked:
        return None
    rows = tuple(asked.get(client, world.task.partition.test[client]) for client in range(world.task.clients))
    marked = replace(world, task=replace(world.task, partition=Partition(world.task.partition.train, rows)))
    rates = engine.at(marked).test(seen(server), clients, list(asked)).scores["accuracy"]
    weights = world.task.gamma[list(asked)]
    return float(weights @ rates / weights.sum())
