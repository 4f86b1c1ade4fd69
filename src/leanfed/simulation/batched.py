"""The batched engine: clients in chunks, chunks over threads, one fixed order of every sum.

The chunk size is fixed and partial sums are added in the order of the chunks, so that the result is the same to the
last bit whatever the number of threads.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import final

import numpy as np
import torch

from leanfed.algorithms.base import ServerState, Upload
from leanfed.records import RoundPlan
from leanfed.simulation.chunk import Chunk, ChunkOutcome, Tools
from leanfed.simulation.clients import ClientStore
from leanfed.simulation.engine import Engine, RoundOutcome
from leanfed.simulation.lenet import ChunkModel
from leanfed.simulation.methods import METHODS, memories
from leanfed.simulation.picks import NumpyPicks
from leanfed.simulation.trunk import TorchTrunk
from leanfed.simulation.world import World
from leanfed.tasks.models import LeNet5

CHUNK_CLIENTS = 10  # divides 100 clients evenly over two, and its buffers stay near the caches
CHUNK_BYTES = 256 << 20  # of buffers per worker; larger batches make smaller chunks


def misfit(world: World) -> str | None:
    """Why this world cannot run in chunks, or None where it can."""
    if not isinstance(world.task.new_model("base"), LeNet5):
        return f"its kernels know lenet5, not {world.task.settings.model!r}"
    if type(world.algorithm) not in METHODS:
        return f"it does not know the method {type(world.algorithm).__name__}"
    if world.training.local_epochs is not None:
        return "training.local_epochs gives clients different numbers of batches"
    return None


@final
class BatchedEngine(Engine):
    """Chunks of clients through compiled kernels, or through torch alone."""

    def __init__(self, world: World, *, compiled: bool = True, threads: int | None = None) -> None:
        self.name = "batched" if compiled else "batched-torch"
        self.world = world
        self.model = world.new_model()
        self.threads = threads or torch.get_num_threads()
        self.chunk_clients = chunk_clients(world)
        self._compiled = compiled
        self._method = METHODS[type(world.algorithm)]
        self._pool = ThreadPoolExecutor(self.threads, "leanfed", initializer=torch.set_num_threads, initargs=(1,))
        self._tools: queue.SimpleQueue[Tools] = queue.SimpleQueue()
        for _ in range(self.threads):
            self._tools.put(self._new_tools())

    def run_round(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> RoundOutcome:
        """One exchange between server and clients."""
        mean, outcomes = self.train(server, clients, plan)
        upload = Upload(len(mean), mean)
        after = self.world.algorithm.server_update(server, [(1.0, upload)], self.world.training, plan.round)
        return self._outcome(after, outcomes, plan)

    def train(
        self, server: ServerState, clients: ClientStore, plan: RoundPlan
    ) -> tuple[torch.Tensor, list[ChunkOutcome]]:
        """The participants' part: the gamma-weighted mean of their uploads, and each chunk's columns."""
        kept = memories(self.world)
        for name, size in kept.items():
            clients.rows(name, size)
        clients.start_all(plan.participants)
        total = torch.zeros_like(server.shared)
        outcomes: list[ChunkOutcome] = []
        for outcome in self._pool.map(self._train, self._chunks(server, clients, plan)):
            total.add_(outcome.total)
            outcomes.append(replace(outcome, total=total))
        clients.mark(plan.participants, kept)
        return total.div_(float(self.world.task.gamma[list(plan.participants)].sum())), outcomes

    def _outcome(self, after: ServerState, outcomes: list[ChunkOutcome], plan: RoundPlan) -> RoundOutcome:
        training = self.world.training
        samples = np.full(len(plan.participants), training.batch_size * training.local_steps)
        loss, entries = (np.concatenate([getattr(o, name) for o in outcomes]) for name in ("loss", "entries"))
        return RoundOutcome(after, loss, samples, entries)

    def _chunks(self, server: ServerState, clients: ClientStore, plan: RoundPlan) -> Iterator[Chunk]:
        for start in range(0, len(plan.participants), self.chunk_clients):
            part = slice(start, start + self.chunk_clients)
            members = plan.participants[part]
            yield Chunk(self.world, self.model, clients, server.shared, plan.round, members, plan.k[part], plan.r[part])

    def _train(self, chunk: Chunk) -> ChunkOutcome:
        """One chunk in a worker thread, with buffers of its own."""
        tools = self._tools.get()
        try:
            with torch.no_grad():
                outcome = self._method(chunk, tools)
        finally:
            self._tools.put(tools)
        for name, rows in outcome.rows.items():
            chunk.store.scatter(name, chunk.clients, rows)
        return ChunkOutcome(outcome.total, outcome.loss, outcome.entries)

    def _new_tools(self) -> Tools:
        split, images, clients = self.world.split, self.world.task.train, self.chunk_clients
        if not self._compiled:
            return Tools(ChunkModel(split, TorchTrunk(images), clients), NumpyPicks())
        from leanfed.simulation.fast import KernelPicks, KernelTrunk

        trunk = KernelTrunk(images, clients, self.world.training.batch_size)
        return Tools(ChunkModel(split, trunk, clients), KernelPicks(split.size))


def chunk_clients(world: World) -> int:
    """Clients per chunk: CHUNK_CLIENTS, fewer where their buffers would pass CHUNK_BYTES."""
    samples = world.training.batch_size * 24_000  # bytes per sample in the buffers, rounded up
    return max(1, min(CHUNK_CLIENTS, CHUNK_BYTES // (samples + 12 * world.split.size)))
