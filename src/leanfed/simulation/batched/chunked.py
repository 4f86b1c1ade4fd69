"""Engines that train clients in chunks: chunks over threads, each chunk at once by a learner of its own.

Sums do not depend on their order (`compression.exact`) and a client's numbers do not depend on the others in its chunk,
so the result is bit for bit the same for any chunk size and any number of threads.
"""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.contract import PRIVATE, Cohort, Learner, ServerState, Updates
from leanfed.algorithms.learner import one_thread
from leanfed.compression import exact
from leanfed.records import Floats, RoundPlan
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import Engine
from leanfed.rounds.exchange import Answers, Collector, Partial, coded, kept_here, moved, summed
from leanfed.rounds.world import World
from leanfed.tasks.batch import Batch
from leanfed.tasks.transfer import arrival

CHUNK_CLIENTS = 25  # in chunks of 10 a round takes a quarter longer: threads wait for each other's Python
CHUNK_BYTES = 256 << 20  # of buffers per worker; larger batches make smaller chunks

T = TypeVar("T")
R = TypeVar("R")


def even_cuts(count: int, most: int, workers: int) -> list[slice]:
    """Cuts of at most `most` items and nearly the same length, a multiple of `workers` of them if items suffice.

    >>> even_cuts(60, 25, 2)
    [slice(0, 15, None), slice(15, 30, None), slice(30, 45, None), slice(45, 60, None)]
    """
    pieces = min(count, workers * -(-count // (most * workers)))
    bounds = [count * piece // max(pieces, 1) for piece in range(pieces + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


class ChunkedEngine(Engine):
    """Fill `_learners` with one for each of the `threads`."""

    def __init__(self, world: World, chunk_clients: int, threads: int | None = None) -> None:
        self.world = world
        self.learner = world.new_learner()
        self.threads = 1 if world.device.type != "cpu" else threads or torch.get_num_threads()
        self.chunk_clients = chunk_clients
        self.clients_at_once = self.threads * self.chunk_clients
        self._pool = ThreadPoolExecutor(self.threads, "leanfed", initializer=torch.set_num_threads, initargs=(1,))
        self._learners: queue.SimpleQueue[Learner] = queue.SimpleQueue()

    @abstractmethod
    def _batches(self, members: Sequence[int], number: int) -> Iterable[Batch]:
        """The batches of a round's members, one per step, as their learner takes them."""

    @override
    def exchange(self, server: ServerState, clients: ClientStore, plan: RoundPlan, *, single: bool) -> Answers:
        names = {PRIVATE: self.world.private_size, **self.world.holds}
        for name, size in names.items():
            clients.prepare(name, size, plan.participants)
        clients.start_all(plan.participants)
        collector = Collector(len(server.shared), single=single, device=self.world.device)
        train = partial(self._train, server.shared.to(self.world.device), clients, single)
        for gamma, updates, partial_sum in self._map(train, self._chunks(plan)):
            collector.receive(gamma, updates, partial_sum)
        clients.mark(plan.participants, names)
        return collector.answers()

    def _map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The results of `work`, in order; a single worker is the caller's own thread."""
        if self.threads > 1:
            yield from self._pool.map(work, items)
            return
        with one_thread():
            yield from map(work, items)

    def _chunks(self, plan: RoundPlan) -> Iterator[RoundPlan]:
        """The plan cut into chunks."""
        for part in self._cuts(len(plan.participants)):
            yield plan.only(range(part.start, part.stop))

    def _cuts(self, count: int) -> list[slice]:
        """Chunks of so many items: the same ones for any number of threads, if bits depend on who is in a chunk."""
        return even_cuts(count, self.chunk_clients, self.threads if self.any_company else 1)

    def _train(
        self, shared: Tensor, clients: ClientStore, single: bool, plan: RoundPlan
    ) -> tuple[Floats, Updates, Partial | None]:
        """Train one chunk in a worker thread: gamma, updates, and the weighted sum of uploads that are not passed on.

        The clients' new states are written to the store here; different chunks write different rows.
        """
        device, found = self.world.device, None
        cohort, gamma = self._cohort(clients, plan), self.world.task.gamma[list(plan.participants)]
        learner = self._learners.get()
        try:
            with torch.no_grad():
                updates = self.world.algorithm.client_update(shared, moved(cohort, device), learner)
                if single or device.type != "cpu":
                    updates = kept_here(updates, device)
                updates = coded(updates, cohort, device)
                arrival(device)()
                if not single and device.type == "cpu":
                    found = summed(updates.uploads, gamma, exact.zeros(len(shared)))
        finally:
            self._learners.put(learner)
        for name, rows in updates.kept.items():
            clients.scatter(name, cohort.clients, rows)
        return gamma, updates, found

    def _cohort(self, clients: ClientStore, plan: RoundPlan) -> Cohort:
        """The cohort of a chunk's participants."""
        world, members = self.world, plan.participants
        return Cohort(
            clients=members,
            round=plan.round,
            seed=world.task.seed,
            training=world.training,
            k=plan.k,
            r=plan.r,
            private=clients.gather(PRIVATE, members),
            memory={name: clients.gather(name, members) for name in world.holds},
            batches=self._batches(members, plan.round),
            steps=world.training.local_steps,
            values=world.values,
            head_steps=plan.head_steps,
            report=world.reports,
            units=world.units,
        )
