"""The batched engine: chunks of clients through LeNet-5 written out by hand, in compiled kernels or in torch alone."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple, final

import numpy as np
import torch
from torch.nn import functional
from typing_extensions import override

from leanfed.algorithms.contract import PRIVATE, ServerState
from leanfed.compression.picks import NumpyPicks
from leanfed.errors import SettingsError
from leanfed.records import Floats, Ints
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import ENGINES, Engine, EngineSpec
from leanfed.rounds.evaluation import Hits, Results
from leanfed.rounds.world import World
from leanfed.simulation.batched.chunked import CHUNK_BYTES, CHUNK_CLIENTS, ChunkedEngine
from leanfed.simulation.batched.lenet import LeNetLearner
from leanfed.simulation.batched.trunk import TorchTrunk
from leanfed.streams import stream
from leanfed.tasks.batch import Batch
from leanfed.tasks.models import LeNet5
from leanfed.tasks.task import Images, draw_rows

TEST_PIECE = 32  # test samples of one client at a time


def misfit(world: World) -> str | None:
    """Why this world cannot run in chunks, or None if it can."""
    if not isinstance(world.task.example_model, LeNet5):
        return f"its kernels know lenet5, not {world.task.settings.model!r}"
    if not isinstance(world.task.train, Images):
        return f"its kernels know pictures in bytes, not the arrays of {world.task.settings.dataset!r}"
    if world.task.loss.compute is not functional.cross_entropy:
        return f"its kernels know cross_entropy, not {world.task.settings.loss!r}"
    if world.task.settings.augment:
        return "task.augment changes pictures as they are drawn"
    if world.task.settings.lora is not None:
        return "its kernels know no adapters (task.lora)"
    if world.device.type != "cpu":
        return f"its kernels compute on the processor, not on {world.device}"
    if world.precision != "float32":
        return f"its kernels compute in float32, not in {world.precision}"
    if world.training.local_epochs is not None:
        return "training.local_epochs gives clients different numbers of batches"
    return None


@final
class BatchedEngine(ChunkedEngine):
    """Chunks of clients through compiled kernels, or through torch alone."""

    def __init__(self, world: World, *, compiled: bool = True, threads: int | None = None) -> None:
        self.name = "batched" if compiled else "batched-torch"
        self.any_company = compiled  # torch has other kernels for few rows
        train, test = world.task.train, world.task.test
        if not isinstance(train, Images) or not isinstance(test, Images):
            raise SettingsError("The batched engine computes with pictures only. Choose engine 'auto' or 'streamed'.")
        super().__init__(world, chunk_clients(world), threads)
        self._compiled = compiled
        self._testers: queue.SimpleQueue[LeNetLearner] = queue.SimpleQueue()
        for _ in range(self.threads):
            self._learners.put(self._new_learner(train, world.training.batch_size, trains=True))
            self._testers.put(self._new_learner(test, TEST_PIECE, trains=False))

    @override
    def test(self, server: ServerState, clients: ClientStore, some: Sequence[int]) -> Results:
        """Test models on the clients' own test sets, a chunk of pieces of test sets at a time."""
        if self.world.tuning.steps:
            return super().test(server, clients, some)  # a client's pieces would each tune its model anew
        right, loss = (np.zeros(self.world.task.clients) for _ in range(2))
        hits = Hits(0, 0, 0)
        clients.start_all(some)
        pieces = test_pieces(self.world.task.partition.test, some, TEST_PIECE)
        chunks = [pieces[cut] for cut in self._cuts(len(pieces))]
        for chunk, results in zip(chunks, self._map(partial(self._test, server, clients), chunks), strict=True):
            owners = [piece.client for piece in chunk]
            np.add.at(right, owners, results[0])
            np.add.at(loss, owners, results[1])
            hits += results[2]
        chosen, test = list(some), self.world.task.partition.test
        sizes = np.array([len(test[client]) for client in chosen])
        return Results(loss[chosen] / sizes, {"accuracy": right[chosen] / sizes}, hits)

    def _test(self, server: ServerState, clients: ClientStore, chunk: Sequence[Piece]) -> tuple[Floats, Floats, Hits]:
        """(correct predictions, summed losses, hits) of some pieces; runs in a worker thread."""
        rows = torch.from_numpy(np.stack([piece.rows for piece in chunk]))
        labels = torch.from_numpy(self.world.task.test.labels[rows.numpy()])
        counted = torch.arange(rows.shape[1]) < torch.tensor([piece.counted for piece in chunk]).unsqueeze(1)
        private = clients.gather(PRIVATE, [piece.client for piece in chunk])
        learner = self._testers.get()
        try:
            with torch.no_grad():
                weights = self.world.algorithm.personal_weights(server, private, learner)
                logits = learner.logits(weights, rows)
                answers = logits.argmax(2)
                right = (answers == labels) & counted
                losses = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none") * counted
        finally:
            self._testers.put(learner)
        hits = Hits.count(answers[counted].numpy(), labels[counted].numpy())
        return right.sum(1).numpy().astype(float), losses.double().sum(1).numpy(), hits

    @override
    def _batches(self, members: Sequence[int], number: int) -> Iterable[Batch]:
        """Row numbers in place of samples, which the kernels have."""
        samples = torch.from_numpy(self._samples(members, number))
        labels = torch.from_numpy(self.world.task.train.labels[samples.numpy()])
        return (Batch(*step) for step in zip(samples, labels, strict=True))

    def _samples(self, clients: Sequence[int], number: int) -> Ints:
        """Row numbers (steps, C, B), drawn from the streams that `Task.batches` draws from."""
        task, training = self.world.task, self.world.training
        rows = np.empty((training.local_steps, len(clients), training.batch_size), dtype=np.int64)
        for place, client in enumerate(clients):
            rng = stream(task.seed, "batch", number, client)
            for step in range(training.local_steps):
                rows[step, place] = draw_rows(task.partition.train[client], training.batch_size, rng)
        return rows

    def _new_learner(self, images: Images, batch: int, *, trains: bool) -> LeNetLearner:
        split, initial, clients = self.world.split, self.learner.initial, self.chunk_clients
        if not self._compiled:
            return LeNetLearner(split, initial, TorchTrunk(images), NumpyPicks(), clients)
        from leanfed.compression.kernel_picks import KernelPicks
        from leanfed.simulation.batched.fast import KernelTrunk

        trunk = KernelTrunk(images, clients, batch, trains=trains)
        return LeNetLearner(split, initial, trunk, KernelPicks(split.size), clients)


class Piece(NamedTuple):
    """Part of one client's test set, padded to a common length with -1, which is no sample."""

    client: int
    rows: Ints  # (length,)
    counted: int  # how many of them count


def test_pieces(test: Sequence[Ints], clients: Iterable[int], length: int) -> list[Piece]:
    """The test sets of some clients cut into pieces of one length."""
    pieces = []
    for client in clients:
        rows = test[client]
        for start in range(0, len(rows), length):
            part, padded = rows[start : start + length], np.full(length, -1)
            padded[: len(part)] = part
            pieces.append(Piece(client, padded, len(part)))
    return pieces


def chunk_clients(world: World) -> int:
    """Clients per chunk: CHUNK_CLIENTS, or fewer if their buffers would exceed CHUNK_BYTES."""
    samples = world.training.batch_size * 24_000  # bytes per sample in the buffers, rounded up
    return max(1, min(CHUNK_CLIENTS, CHUNK_BYTES // (samples + 12 * world.split.size)))


def has_numba() -> bool:
    """Whether kernels can be compiled."""
    return find_spec("numba") is not None


def _obstacle(world: World, wire: str | None) -> str | None:
    return "radio.wire codes each client's upload by itself" if wire else misfit(world)


def _obstacle_to_kernels(world: World, wire: str | None) -> str | None:
    if not has_numba():
        return "numba, which compiles its kernels, is not installed; 'batched-torch' does without"
    return _obstacle(world, wire)


def _build(compiled: bool) -> Callable[[World, int | None, str | None], Engine]:
    return lambda world, threads, wire: BatchedEngine(world, compiled=compiled, threads=threads)


ENGINES.add("batched", EngineSpec(_build(True), _obstacle_to_kernels))
ENGINES.add("batched-torch", EngineSpec(_build(False), _obstacle))
