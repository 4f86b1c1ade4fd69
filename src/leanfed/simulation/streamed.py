"""The streamed engine: a few worker threads, each with one model, train clients of any model and method.

A worker holds one client's gradient at a time. Uploads reach the server in the order of the clients and every worker
computes with one thread, so the result is bit for bit that of the reference engine, for any number of workers.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, final

import numpy as np
import torch
from typing_extensions import override

from leanfed.algorithms.contract import ClientState, Cohort, ServerState, Updates
from leanfed.algorithms.learner import FlatLearner, one_thread
from leanfed.records import RoundPlan
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import ENGINES, Engine, EngineSpec
from leanfed.rounds.evaluation import ClientResult, Results, client_result
from leanfed.rounds.exchange import Answers, Collector, train
from leanfed.rounds.world import World
from leanfed.simulation.pipeline import ahead, behind
from leanfed.tasks.split import FlatModel

WORKING_BYTES = 2 << 30  # of all workers together; a model with large activations gets fewer workers
VECTORS = 8  # of the model's size in a worker's memory: weights, gradients, sums, masks, an upload

T = TypeVar("T")
R = TypeVar("R")


@final
class StreamedEngine(Engine):
    """Each worker thread trains one client after another."""

    name = "streamed"

    def __init__(self, world: World, wire: str | None = None, threads: int | None = None) -> None:
        self.world = world
        self.wire = wire
        self.learner = world.new_learner()
        self.threads = workers(world, self.learner.model, threads or torch.get_num_threads())
        self.clients_at_once = self.alike = self.threads
        self._pool = ThreadPoolExecutor(self.threads, "leanfed", initializer=torch.set_num_threads, initargs=(1,))
        self._learners: queue.SimpleQueue[FlatLearner] = queue.SimpleQueue()
        self._learners.put(self.learner)
        self._built = [self.learner]  # another one as soon as so many clients train at the same time

    @override
    def exchange(self, server: ServerState, clients: ClientStore, plan: RoundPlan, *, single: bool) -> Answers:
        world, size = self.world, len(server.shared)
        collector = Collector(size, single=single, wire=self.wire, device=world.device)

        def work(cohort: Cohort, learner: FlatLearner) -> Updates:
            return train(world.algorithm, server, cohort, learner, waits=False)

        cohorts = (world.alone(clients[one], one, plan.round, k, r, steps) for one, k, r, steps in plan.each())
        answers = behind(self._stream(work, ahead(cohorts, world.device)), world.device)
        for client, updates in zip(plan.participants, answers, strict=True):
            clients[client] = updates.state(0)
            collector.receive(world.task.gamma[[client]], updates)
        return collector.answers()

    @override
    def test(self, server: ServerState, clients: ClientStore, some: Sequence[int]) -> Results:
        world = self.world

        def test(item: tuple[int, ClientState], learner: FlatLearner) -> ClientResult:
            client, state = item
            return client_result(world, server, state, learner, client)

        states = ((client, clients[client]) for client in some)
        return Results.of(world, self._stream(test, states))

    def _stream(self, work: Callable[[T, FlatLearner], R], items: Iterable[T]) -> Iterator[R]:
        """The results of `work` in the order of the items; each worker has at most one item at a time.

        A single worker is the caller's own thread: handing clients over to another costs a small model a tenth.
        """
        if self.threads == 1:
            with one_thread():
                yield from (work(item, self.learner) for item in items)
            return

        def one(item: T) -> R:
            learner = self._learners.get()
            try:
                return work(item, learner)
            finally:
                self._learners.put(learner)

        waiting: deque[Future[R]] = deque()
        for item in items:
            if len(self._built) == len(waiting):
                self._built.append(self.world.new_learner())
                self._learners.put(self._built[-1])
            waiting.append(self._pool.submit(one, item))
            if len(waiting) == self.threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def workers(world: World, model: FlatModel, threads: int) -> int:
    """How many clients train at the same time: one per thread if memory allows; one if the model has random draws."""
    if model.random or model.device.type != "cpu":  # torch has one generator for all threads; a GPU is one worker
        return 1
    pair = world.task.train.batch(np.resize(world.task.partition.train[0], 2))  # one sample has no variance
    needed = saved_bytes(model, pair.inputs) * world.training.batch_size // 2 + VECTORS * 4 * world.split.size
    return max(1, min(threads, WORKING_BYTES // needed))


def saved_bytes(model: FlatModel, inputs: torch.Tensor) -> int:
    """Bytes of activations that a forward pass keeps for the backward pass; the model's state does not change."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.model.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    before = model.statistics.read()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), torch.enable_grad():
        model.model.train()(inputs)
    model.statistics.write(before)
    return sum(seen.values())


ENGINES.add("streamed", EngineSpec(lambda world, threads, wire: StreamedEngine(world, wire, threads)))
