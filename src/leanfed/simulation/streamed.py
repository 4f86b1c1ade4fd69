"""The streamed engine: clients pass through a few workers, each with one model; any model, any method.

A worker holds one client's gradient at a time. Uploads reach the server in the order of the clients and every worker
computes with one thread, so that the result is the same to the last bit whatever the number of workers, and the same as
the reference loop's.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, final

import numpy as np
import torch

from leanfed.algorithms.base import ClientState, ClientUpdate, Job, ServerState, Upload
from leanfed.records import RoundPlan
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import Engine, RoundOutcome, Tally
from leanfed.rounds.evaluation import Evaluation, Hits, client_result, gathered
from leanfed.rounds.exchange import train_client, update_server
from leanfed.rounds.world import World
from leanfed.tasks.split import FlatModel

WORKING_BYTES = 2 << 30  # of all workers; a model with large activations gets fewer of them
VECTORS = 8  # of the model's size that a worker holds at once: weights, gradients, sums, masks, an upload

T = TypeVar("T")
R = TypeVar("R")


@final
class StreamedEngine(Engine):
    """Clients one after another in each of a few worker threads."""

    name = "streamed"

    def __init__(self, world: World, wire: str | None = None, threads: int | None = None) -> None:
        self.world = world
        self.wire = wire
        self.model = world.new_model()
        self.threads = workers(world, self.model, threads or torch.get_num_threads())
        self._pool = ThreadPoolExecutor(self.threads, "leanfed", initializer=torch.set_num_threads, initargs=(1,))
        self._models: queue.SimpleQueue[FlatModel] = queue.SimpleQueue()
        for number in range(self.threads):
            self._models.put(world.new_model() if number else self.model)

    def run_round(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> RoundOutcome:
        """One exchange between server and clients."""
        world, tally = self.world, Tally(self.wire)

        def train(item: tuple[ClientState, Job], model: FlatModel) -> ClientUpdate:
            return train_client(world.algorithm, server, *item, model)

        def uploads() -> Iterator[tuple[float, Upload]]:
            places = zip(plan.participants, plan.k.tolist(), plan.r.tolist(), strict=True)
            jobs = ((clients[client], world.job(client, plan.round, k, r)) for client, k, r in places)
            for client, update in zip(plan.participants, self._stream(train, jobs), strict=True):
                clients[client] = update.client
                yield world.task.gamma[client], tally.received(update)

        after = update_server(world.algorithm, server, uploads(), world.training, plan.round)
        return tally.outcome(after)

    def evaluate(self, server: ServerState, clients: ClientStore) -> Evaluation:
        """Every client's model on its own test set."""
        world = self.world

        def test(item: tuple[int, ClientState], model: FlatModel) -> tuple[float, float, Hits]:
            client, state = item
            return client_result(world, server, state, model, client)

        states = ((client, clients[client]) for client in range(world.task.clients))
        return gathered(world, self._stream(test, states))

    def _stream(self, work: Callable[[T, FlatModel], R], items: Iterable[T]) -> Iterator[R]:
        """The answers in order; at most one item per worker is under way."""

        def one(item: T) -> R:
            model = self._models.get()
            try:
                return work(item, model)
            finally:
                self._models.put(model)

        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(self._pool.submit(one, item))
            if len(waiting) == self.threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def workers(world: World, model: FlatModel, threads: int) -> int:
    """How many clients train side by side: one per thread, as far as memory goes; one where a model draws at random."""
    if model.random:  # torch has one generator for all threads
        return 1
    pair = world.task.train.batch(np.resize(world.task.partition.train[0], 2))  # one sample has no variance
    needed = saved_bytes(model, pair.inputs) * world.training.batch_size // 2 + VECTORS * 4 * world.split.size
    return max(1, min(threads, WORKING_BYTES // needed))


def saved_bytes(model: FlatModel, inputs: torch.Tensor) -> int:
    """Bytes of activations that a training pass keeps for its way back; the model is left as it was."""
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
