"""A trial of a run: a few clients train and are tested on little, and a line through what that took tells the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from leanfed.algorithms.contract import Training
from leanfed.algorithms.local import DivergedError
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.rounds.engine import Engine
from leanfed.rounds.loop import start
from leanfed.rounds.world import World
from leanfed.tasks.partition import Partition

STEP_PASSES = 3  # forward passes that a step takes the time of
TRIED_STEPS, TRIED_BATCH = 20, 512  # the most that is tried of a client's steps and of its samples in a step
LEAST_BATCH = 2  # the fewest samples: batch normalisation has no variance of one
LONG_S = 0.25  # what one measurement may take, if it need not take more
FURTHER = 4  # a line goes through so many times the least samples at least: between two near points it is noise
LARGE = 1 << 20  # values of a model whose workers are busy with it alone, not with Python: one is tried for all
OFTEN = 3  # a short measurement is repeated; the least counts

Clock = Callable[[], float]


@dataclass(frozen=True)
class Line:
    """Seconds of one client: `once`, and for each step and each sample."""

    once: float
    step: float
    sample: float

    def seconds(self, steps: Floats, samples: Floats) -> float:
        """All clients' seconds together, from their numbers of steps and samples (C,)."""
        return float(np.sum(self.once + self.step * steps + self.sample * samples))


class Trial:
    """As many clients as an engine trains at once, alone in a world of their own; times are of a client.

    Of a large model one worker's clients are enough: every further one is a model to build and to fill with weights.
    """

    def __init__(self, engine: Engine, world: World, plan: RoundPlan, clock: Clock = time.perf_counter) -> None:
        count = min(engine.clients_at_once, len(plan.participants))
        self.beside = min(engine.alike, count) if world.split.size >= LARGE else 1  # workers that one stands for
        count //= self.beside
        self.world = shortened(_only(world, plan.participants[:count]))
        self.engine = engine.at(self.world)
        self.plan = RoundPlan(plan.round, tuple(range(count)), plan.k[:count], plan.r[:count])
        self.progress = start(self.world)
        self.clock = clock

    @property
    def kept(self) -> int:
        """Values that a client keeps: its private part and its memories."""
        state = self.progress.clients[0]
        return len(state.private) + sum(len(tensor) for tensor in state.memory.values())

    def training(self) -> Line:
        """What a client's part of a round takes: from a round of few samples, one of more, and one of more steps."""
        most = self.world.training.batch_size
        few = min(LEAST_BATCH, most)
        self._round(1, few)  # compiles, fills caches
        short = self._round(1, few)
        many = _affordable(few, most, short, FURTHER)
        sample = max(0.0, self._round(1, many) - short) / (many - few) if many > few else 0.0
        steps = _most_steps(self.world.training, self.world.task.partition.sizes)
        step = short - few * sample
        if steps > 1:
            tried = _affordable(1, steps, short, 2)
            step = (self._round(tried, few) - short) / (tried - 1) - few * sample
        step = max(0.0, step)
        return Line(max(0.0, short - step - few * sample), step, sample)

    def testing(self, training: Line) -> Line:
        """What a client's test takes, without what precedes it (`preparing`).

        Of a large model a second measurement would take as long as all others: a sample's forward pass is then taken
        from what it took in training.
        """
        most = max(1, int(self.world.task.partition.test_sizes.max()))
        few = min(LEAST_BATCH, most)
        first, short = self._test(few)  # the model is warm from training
        if max(short, training.seconds(np.ones(1), np.full(1, few))) > LONG_S / OFTEN:
            sample = min(training.sample / STEP_PASSES, short / first)
            return Line(short - first * sample, 0.0, sample)
        many, long = self._test(_affordable(few, most, short, 2 * FURTHER))  # forward only: more can be afforded
        sample = max(0.0, (long - short) / (many - first)) if many > first else 0.0
        return Line(max(0.0, short - first * sample), 0.0, sample)

    def preparing(self, testing: Line, world: World) -> float:
        """What a client of a world takes before its test: steps on a copy of its model, renewed running statistics.

        A few are tried with few samples each; the others of a batch count by their forward passes.
        """
        tuned, renewed = world.tuning.steps, world.renew_statistics
        if not tuned + renewed:
            return 0.0
        bare = testing.seconds(np.zeros(1), np.array([LEAST_BATCH]))
        tried = min(TRIED_STEPS, max(1, int(LONG_S / max(bare, 1e-9))))
        more = (world.training.batch_size - LEAST_BATCH) * testing.sample
        seconds = 0.0
        for steps, passes, asked in ((tuned, STEP_PASSES, {"tuned": tried}), (renewed, 1, {"renewed": tried})):
            if steps:
                with_them = self._test(LEAST_BATCH, **asked)[1]
                seconds += steps * (max(0.0, with_them - bare) / tried + passes * max(0.0, more))
        return seconds

    def _round(self, steps: int, batch: int) -> float:
        """Seconds of a client in a round of so many steps with so many samples each."""
        sizes = {"batch_size": batch, "local_steps": steps, "local_epochs": None}
        engine = self.engine.at(replace(self.world, training=self.world.training.model_copy(update=sizes)))
        server, clients = self.progress.server, self.progress.clients
        spent = self._seconds(lambda: engine.run_round(server, clients, self.plan))
        return spent / (len(self.plan.participants) * self.beside)

    def _test(self, rows: int, tuned: int = 0, renewed: int = 0) -> tuple[float, float]:
        """(samples, seconds) of a client's test on its first rows, after so many steps and renewing batches."""
        task, few = self.world.task, self.world.training.model_copy(update={"batch_size": LEAST_BATCH})
        partition = replace(task.partition, test=tuple(own[:rows] for own in task.partition.test))
        world = replace(
            self.world,
            task=replace(task, partition=partition),
            training=few,
            tuning=self.world.tuning._replace(steps=tuned),
            renew_statistics=renewed,
        )
        engine, server, clients = self.engine.at(world), self.progress.server, self.progress.clients
        spent = self._seconds(lambda: engine.evaluate(server, clients))
        return float(test_samples(world).mean()), spent / (task.clients * self.beside)

    def _seconds(self, work: Callable[[], object]) -> float:
        """The least of a few measurements, unless the first takes long."""
        least = np.inf
        for _ in range(OFTEN):
            began = self.clock()
            with suppress(DivergedError):  # two samples may be too few for a model that whole batches train
                work()
            least = min(least, self.clock() - began)
            if least > LONG_S / OFTEN:
                break
        return float(least)


def round_seconds(line: Line, world: World, trial: World, clients: tuple[int, ...]) -> float:
    """Seconds of a round of these clients, whose steps may take more passes than those that were tried."""
    share = _passes(world) / _passes(trial)
    steps = _steps(world.training, world.task.partition.sizes[list(clients)])
    return Line(line.once, share * line.step, share * line.sample).seconds(steps, world.samples(clients))


def _passes(world: World) -> float:
    """Passes of the whole model on each sample, further steps of the head by their share of one."""
    work = world.algorithm.work(float(_most_steps(world.training, world.task.partition.sizes)))
    heads = work.head_passes * world.head_step_share if work.head_passes else 0.0
    return float(np.mean(work.passes)) + heads


def test_samples(world: World) -> Floats:
    """Samples of every tested client's test."""
    return world.task.partition.test_sizes[world.tested].astype(float)


def _only(world: World, clients: tuple[int, ...]) -> World:
    """The world without all other clients; all of these are tested, with whole models, which take the longest."""
    given = world.task.partition
    parts = (tuple(rows[client] for client in clients) for rows in (given.train, given.test))
    return replace(world, task=replace(world.task, partition=Partition(*parts)), panel=None, widths=None)


def shortened(world: World) -> World:
    """The world with so little work in a round and a test that a trial ends soon, whatever the settings ask for."""
    training = world.training.model_copy(update={"batch_size": min(world.training.batch_size, TRIED_BATCH)})
    if _most_steps(training, world.task.partition.sizes) > TRIED_STEPS:
        training = training.model_copy(update={"local_epochs": None, "local_steps": TRIED_STEPS})
    return replace(
        world,
        training=training,
        algorithm=world.algorithm.shortened(TRIED_STEPS),
    )


def _steps(training: Training, sizes: Ints) -> Floats:
    """Local steps of clients with so many samples in a round (C,)."""
    if training.local_epochs is None:
        return np.full(len(sizes), float(training.local_steps))
    return np.asarray(training.local_epochs * np.ceil(sizes / training.batch_size), dtype=float)


def _most_steps(training: Training, sizes: Ints) -> int:
    """The most local steps that a client takes in a round."""
    return int(_steps(training, sizes).max())


def _affordable(few: int, most: int, seconds: float, times: int) -> int:
    """How much may be tried where `few` take these seconds: so many times as much at least, `most` at most."""
    return min(most, max(times * few, int(few * LONG_S / max(seconds, 1e-9))))
