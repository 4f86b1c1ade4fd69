"""A chunk of clients in one round: what the methods of the algorithms room do, for all clients of the chunk at once.

Each method here has its plain form in `algorithms`, which is the reference; the conformance tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.base import Training
from leanfed.algorithms.local import refuse_divergence
from leanfed.compression.prune import Pruning
from leanfed.compression.selection import drawn
from leanfed.compression.sparsify import Sparsification
from leanfed.records import Floats, Ints, kept_count
from leanfed.simulation.clients import PRIVATE, ClientStore
from leanfed.simulation.lenet import ChunkModel, Weights
from leanfed.simulation.picks import Picks
from leanfed.simulation.world import World
from leanfed.streams import stream
from leanfed.tasks.split import FlatModel
from leanfed.tasks.task import draw_rows


@dataclass(frozen=True)
class Chunk:
    """Some participants of a round and what is asked of them."""

    world: World
    model: FlatModel  # as it was built: names, shapes, initial weights
    store: ClientStore
    shared: Tensor  # (d_shared,)
    round: int
    clients: tuple[int, ...]
    k: Floats  # (C,)
    r: Floats  # (C,)

    @property
    def training(self) -> Training:
        """How clients step."""
        return self.world.training

    @property
    def rate(self) -> float:
        """eta of this round."""
        return self.training.rate(self.round)

    @property
    def gamma(self) -> Floats:
        """(C,)."""
        return self.world.task.gamma[list(self.clients)]

    def samples(self) -> Ints:
        """Row numbers (steps, C, B), drawn from the streams that `Task.batches` draws from."""
        task, training = self.world.task, self.training
        rows = np.empty((training.local_steps, len(self.clients), training.batch_size), dtype=np.int64)
        for i, client in enumerate(self.clients):
            rng = stream(task.seed, "batch", self.round, client)
            for step in range(training.local_steps):
                rows[step, i] = draw_rows(task.partition.train[client], training.batch_size, rng)
        return rows

    def counts(self, rates: Floats, size: int) -> Ints:
        """Entries kept of `size` by each client."""
        return np.array([kept_count(rate, size) for rate in rates.tolist()], dtype=np.int64)

    def memory(self, name: str) -> Tensor:
        """The clients' rows of a name."""
        return self.store.gather(name, self.clients)

    def held(self, name: str) -> list[bool]:
        """Whether each client has something under a name."""
        return [self.store.holds(name, client) for client in self.clients]

    def refuse_divergence(self, losses: Tensor) -> None:
        """Name the first client with a loss (C, steps) that is not finite."""
        if torch.isfinite(losses).all():
            return
        for client, k, r, mine in zip(self.clients, self.k.tolist(), self.r.tolist(), losses.tolist(), strict=True):
            for loss in mine:
                refuse_divergence(loss, self.world.job(client, self.round, k, r))


@dataclass(frozen=True)
class Tools:
    """One worker's buffers."""

    model: ChunkModel
    picks: Picks


@dataclass(frozen=True)
class ChunkOutcome:
    """What a chunk sends, already summed, and a column per quantity."""

    total: Tensor  # (d_shared,) sum of gamma x upload
    loss: Floats  # (C,)
    entries: Ints  # (C,)
    rows: dict[str, Tensor] = field(default_factory=dict)  # what the clients keep: name -> (C, size)


@dataclass(frozen=True)
class ChunkRun:
    """Where the clients' steps ended."""

    gradient: Tensor  # (C, d) sum over the steps; may be written over
    private: Tensor  # (C, d_private)
    velocity: Tensor | None
    loss: Floats  # (C,)


def local_steps(
    chunk: Chunk,
    tools: Tools,
    private: Tensor,
    *,
    shared_mask: Tensor | None = None,
    private_mask: Tensor | None = None,
    discard: bool = False,
    masked_gradient: bool = False,
) -> ChunkRun:
    """`algorithms.local.local_steps` for a chunk; the shared weights are one row until a step sets them apart."""
    cut, training = len(chunk.shared), chunk.training
    shared, velocity, total = chunk.shared.unsqueeze(0), None, None
    if training.momentum and private.shape[1]:
        velocity = chunk.memory("velocity")
    losses = []
    for rows in chunk.samples():
        if discard:
            private = masked(private, private_mask)
        used = Weights(masked(shared, shared_mask), masked(private, private_mask))
        loss, gradient = tools.model.loss_and_gradient(used, rows, chunk_labels(chunk, rows))
        losses.append(loss)
        here = Weights(gradient[:, :cut], gradient[:, cut:])
        if training.weight_decay:
            here.shared.add_(used.shared, alpha=training.weight_decay)
            here.private.add_(used.private, alpha=training.weight_decay)
        if masked_gradient:
            here.shared.copy_(masked(here.shared, shared_mask))
            here.private.copy_(masked(here.private, private_mask))
        total = gradient if training.local_steps == 1 else gradient.clone() if total is None else total.add_(gradient)
        if velocity is not None:
            velocity = here.private.add(velocity, alpha=training.momentum)
        private = private.sub(here.private if velocity is None else velocity, alpha=chunk.rate)
        if len(losses) < training.local_steps:
            shared = shared.sub(here.shared, alpha=chunk.rate)
    stacked = torch.stack(losses, 1)
    chunk.refuse_divergence(stacked)
    assert total is not None  # there is at least one step
    return ChunkRun(total, private, velocity, mean_loss(stacked))


def masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Weights x mask, where there is one."""
    return weights if mask is None else weights * mask


def mean_loss(losses: Tensor) -> Floats:
    """Over the steps, (C, steps) -> (C,)."""
    return np.asarray(losses.to(torch.float64).mean(1).numpy())


def chunk_labels(chunk: Chunk, rows: Ints) -> Tensor:
    """The labels of the chunk's samples, (C, B)."""
    return torch.from_numpy(chunk.world.task.train.labels[rows])


def send_all(chunk: Chunk, gradient: Tensor) -> tuple[Tensor, Ints]:
    """Dense uploads: their weighted sum, and the entries of each."""
    size = len(chunk.shared)
    total = torch.from_numpy(chunk.gamma).to(torch.float32) @ gradient[:, :size]
    return total, np.full(len(chunk.clients), size, dtype=np.int64)


def send_sparse(
    chunk: Chunk, tools: Tools, gradient: Tensor, settings: Sparsification
) -> tuple[Tensor, Ints, dict[str, Tensor]]:
    """Eq. (5) for all clients: the weighted sum of what is sent, entries of each, and what error feedback remembers."""
    size = len(chunk.shared)
    counts = chunk.counts(chunk.k, size)
    corrected = gradient[:, :size]
    if settings.error_feedback:
        corrected.add_(chunk.memory("residual"))
    rest = torch.empty(len(counts), size) if settings.error_feedback else None
    total = torch.zeros(size)
    if settings.select == "topk":
        tools.picks.add_largest(gradient, counts, chunk.gamma, total, rest)
    else:
        _add_drawn(chunk, corrected, counts, settings, total, rest)
    return total, counts, {} if rest is None else {"residual": rest}


def _add_drawn(
    chunk: Chunk, values: Tensor, counts: Ints, settings: Sparsification, total: Tensor, rest: Tensor | None
) -> None:
    """Random selection from each client's own stream."""
    for i, (client, count, gamma) in enumerate(zip(chunk.clients, counts.tolist(), chunk.gamma.tolist(), strict=True)):
        rng = stream(chunk.world.task.seed, "sparsify", chunk.round, client)
        positions = torch.from_numpy(drawn(len(total), count, rng))
        scale = len(total) / count if settings.rescale and count else 1.0
        total.index_add_(0, positions, values[i, positions], alpha=gamma * scale)
        if rest is not None:
            rest[i] = values[i].index_fill(0, positions, 0)


def prune(chunk: Chunk, picks: Picks, private: Tensor, settings: Pruning) -> Tensor:
    """The pruning indicators of Eq. (3) as zeros and ones, (C, d_private)."""
    counts = chunk.counts(chunk.r, private.shape[1])
    if settings.score.startswith("random"):
        return _drawn_masks(chunk, private, counts, redrawn=settings.score == "random-redrawn")
    scores = private.abs()
    if settings.score == "importance":
        held = torch.tensor(chunk.held("head_gradient")).unsqueeze(1)
        scores = torch.where(held, (private * chunk.memory("head_gradient")).square_(), scores)
    return picks.mask(scores, counts)


def _drawn_masks(chunk: Chunk, private: Tensor, counts: Ints, *, redrawn: bool) -> Tensor:
    """Each client's random mask, fixed or redrawn every round."""
    mask = torch.zeros_like(private)
    for row, client, count in zip(mask, chunk.clients, counts.tolist(), strict=True):
        labels: Sequence[int] = (client, chunk.round) if redrawn else (client,)
        row[torch.from_numpy(drawn(len(row), count, stream(chunk.world.task.seed, "prune", *labels)))] = 1
    return mask


def kept(run: ChunkRun, **more: Tensor) -> dict[str, Tensor]:
    """What the clients keep after a round: private weights and memories."""
    rows = {PRIVATE: run.private, **more}
    return rows if run.velocity is None else {**rows, "velocity": run.velocity}
