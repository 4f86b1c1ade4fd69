"""The batched engine: clients in chunks, chunks over threads, one fixed order of every sum.

The chunk size is fixed and partial sums are added in the order of the chunks, so that the result is the same to the
last bit whatever the number of threads.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from torch.nn import functional

from leanfed.algorithms.base import Algorithm, ServerState, Upload
from leanfed.errors import SettingsError
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.rounds.client_store import PRIVATE, ClientStore
from leanfed.rounds.engine import Engine, RoundOutcome
from leanfed.rounds.evaluation import Evaluation, Hits
from leanfed.rounds.world import World
from leanfed.simulation.batched.chunk import Chunk, ChunkOutcome, Tools
from leanfed.simulation.batched.lenet import ChunkModel, Weights
from leanfed.simulation.batched.methods import METHODS, memories
from leanfed.simulation.batched.picks import NumpyPicks
from leanfed.simulation.batched.trunk import TorchTrunk
from leanfed.tasks.models import LeNet5
from leanfed.tasks.task import Images

CHUNK_CLIENTS = 10  # divides 100 clients evenly over two, and its buffers stay near the caches
TEST_PIECE = 32  # test samples of one client at a time
CHUNK_BYTES = 256 << 20  # of buffers per worker; larger batches make smaller chunks


def misfit(world: World) -> str | None:
    """Why this world cannot run in chunks, or None where it can."""
    if not isinstance(world.task.new_model("base"), LeNet5):
        return f"its kernels know lenet5, not {world.task.settings.model!r}"
    if type(world.algorithm) not in METHODS:
        return f"it does not know the method {type(world.algorithm).__name__}"
    if world.task.settings.augment:
        return "task.augment changes pictures as they are drawn"
    if world.training.local_epochs is not None:
        return "training.local_epochs gives clients different numbers of batches"
    return None


@final
class BatchedEngine(Engine):
    """Chunks of clients through compiled kernels, or through torch alone."""

    def __init__(self, world: World, *, compiled: bool = True, threads: int | None = None) -> None:
        self.name = "batched" if compiled else "batched-torch"
        train, test = world.task.train, world.task.test
        if not isinstance(train, Images) or not isinstance(test, Images):
            raise SettingsError("The batched engine computes with pictures only. Choose engine 'auto' or 'streamed'.")
        self.world = world
        self.model = world.new_model()
        self.threads = threads or torch.get_num_threads()
        self.chunk_clients = chunk_clients(world)
        self._compiled = compiled
        self._method = METHODS[type(world.algorithm)]
        self._pool = ThreadPoolExecutor(self.threads, "leanfed", initializer=torch.set_num_threads, initargs=(1,))
        self._tools: queue.SimpleQueue[Tools] = queue.SimpleQueue()
        self._testers: queue.SimpleQueue[Tools] = queue.SimpleQueue()
        for _ in range(self.threads):
            self._tools.put(self._new_tools(train, world.training.batch_size))
            self._testers.put(self._new_tools(test, TEST_PIECE))

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
            # With numpy: torch would add with threads that then spin, and take the cores from the workers.
            np.add(total.numpy(), outcome.total.numpy(), out=total.numpy())
            outcomes.append(replace(outcome, total=total))
        clients.mark(plan.participants, kept)
        return total.div_(float(self.world.task.gamma[list(plan.participants)].sum())), outcomes

    def evaluate(self, server: ServerState, clients: ClientStore) -> Evaluation:
        """Every client's model on its own test set, a chunk of pieces of test sets at a time."""
        right, loss = (np.zeros(self.world.task.clients) for _ in range(2))
        hits = Hits(0, 0, 0)
        clients.start_all(range(self.world.task.clients))
        pieces = test_pieces(self.world.task.partition.test, TEST_PIECE)
        chunks = [pieces[i : i + self.chunk_clients] for i in range(0, len(pieces), self.chunk_clients)]
        for chunk, results in zip(chunks, self._pool.map(partial(self._test, server, clients), chunks), strict=True):
            owners = [piece.client for piece in chunk]
            np.add.at(right, owners, results[0])
            np.add.at(loss, owners, results[1])
            hits += results[2]
        sizes = np.array([len(rows) for rows in self.world.task.partition.test])
        pooled = hits if self.world.task.classes == 2 else None
        return Evaluation(right / sizes, loss / sizes, self.world.task.gamma, pooled)

    def _test(self, server: ServerState, clients: ClientStore, chunk: Sequence[Piece]) -> tuple[Floats, Floats, Hits]:
        """Right answers, summed losses and hits of some pieces, in a worker thread."""
        weights = self._personal(server, clients, [piece.client for piece in chunk])
        rows = np.stack([piece.rows for piece in chunk])
        labels = torch.from_numpy(self.world.task.test.labels[rows])
        counted = torch.arange(rows.shape[1]) < torch.tensor([piece.counted for piece in chunk]).unsqueeze(1)
        tools = self._testers.get()
        try:
            with torch.no_grad():
                logits = tools.model.logits(weights, rows)
                answers = logits.argmax(2)
                right = (answers == labels) & counted
                losses = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none") * counted
        finally:
            self._testers.put(tools)
        hits = Hits.count(answers[counted].numpy(), labels[counted].numpy())
        return right.sum(1).numpy().astype(float), losses.double().sum(1).numpy(), hits

    def _personal(self, server: ServerState, clients: ClientStore, owners: Sequence[int]) -> Weights:
        """The models that these clients use; one shared part for all where a method joins [shared | private]."""
        algorithm = self.world.algorithm
        if type(algorithm).personal_weights is Algorithm.personal_weights:
            return Weights(server.shared.unsqueeze(0), clients.gather(PRIVATE, owners))
        own = {client: algorithm.personal_weights(server, clients[client], self.model) for client in set(owners)}
        weights, cut = torch.stack([own[client] for client in owners]), self.world.split.shared_size
        return Weights(weights[:, :cut], weights[:, cut:])

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

    def _new_tools(self, images: Images, batch: int) -> Tools:
        split, clients = self.world.split, self.chunk_clients
        if not self._compiled:
            return Tools(ChunkModel(split, TorchTrunk(images), clients), NumpyPicks())
        from leanfed.simulation.batched.fast import KernelPicks, KernelTrunk

        trunk = KernelTrunk(images, clients, batch)
        return Tools(ChunkModel(split, trunk, clients), KernelPicks(split.size))


class Piece(NamedTuple):
    """Part of one client's test set, filled up to a common length with samples that do not count."""

    client: int
    rows: Ints  # (length,)
    counted: int  # how many of them count


def test_pieces(test: Sequence[Ints], length: int) -> list[Piece]:
    """Every client's test set cut into pieces of one length."""
    pieces = []
    for client, rows in enumerate(test):
        for start in range(0, len(rows), length):
            part = rows[start : start + length]
            pieces.append(Piece(client, np.resize(part, length), len(part)))
    return pieces


def chunk_clients(world: World) -> int:
    """Clients per chunk: CHUNK_CLIENTS, fewer where their buffers would pass CHUNK_BYTES."""
    samples = world.training.batch_size * 24_000  # bytes per sample in the buffers, rounded up
    return max(1, min(CHUNK_CLIENTS, CHUNK_BYTES // (samples + 12 * world.split.size)))
