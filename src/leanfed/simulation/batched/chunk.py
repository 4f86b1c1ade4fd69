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
from leanfed.records import Floats, Ints, kept_counts
from leanfed.rounds.client_store import PRIVATE, ClientStore
from leanfed.rounds.world import World
from leanfed.simulation.batched.lenet import ChunkModel, Weights
from leanfed.simulation.batched.picks import Picks
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

    def memory(self, name: str) -> Tensor:
        """The clients' rows of a name."""
        return self.store.gather(name, self.clients)

    def held(self, name: str) -> list[bool]:
        """Whether each client has something under a name."""
        return [self.store.holds(name, client) for client in self.clients]

    def labels(self, rows: Ints) -> Tensor:
        """The labels of samples (C, B)."""
        return torch.from_numpy(self.world.task.train.labels[rows])

    def mean_loss(self, steps: Sequence[Tensor]) -> Floats:
        """Each client's mean over its steps; the first client with a loss that is not finite is named."""
        losses = torch.stack(list(steps), 1).to(torch.float64)
        if not torch.isfinite(losses).all():
            for client, k, r, mine in zip(self.clients, self.k.tolist(), self.r.tolist(), losses.tolist(), strict=True):
                for loss in mine:
                    refuse_divergence(loss, self.world.job(client, self.round, k, r))
        return np.asarray(losses.mean(1).numpy())


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


@dataclass(frozen=True)
class Masking:
    """Which weights take part, as zeros and ones, and what becomes of the others; None where all do."""

    shared: Tensor | None = None  # (1 or C, d_shared)
    private: Tensor | None = None  # (C, d_private)
    discard: bool = False  # masked weights are gone, not only unused
    gradient: bool = False  # masked weights get no update

    def used(self, weights: Weights) -> Weights:
        """The weights at which gradients are taken."""
        return Weights(masked(weights.shared, self.shared), masked(weights.private, self.private))

    def kept(self, weights: Weights) -> Weights:
        """The weights that are left before a step."""
        return self.used(weights) if self.discard else weights


UNMASKED = Masking()


def local_steps(
    chunk: Chunk, tools: Tools, private: Tensor, masking: Masking = UNMASKED, head_steps: int = 1
) -> ChunkRun:
    """`algorithms.local.local_steps` for a chunk; the shared weights are one row until a step sets them apart."""
    steps, cut = chunk.training.local_steps, len(chunk.shared)
    weights = Weights(chunk.shared.unsqueeze(0), private)
    velocity = chunk.memory("velocity") if chunk.training.momentum and private.shape[1] else None
    losses, total = [], torch.empty(0)
    for step, rows in enumerate(chunk.samples()):
        weights = masking.kept(weights)
        loss, gradient = gradient_step(chunk, tools, weights, masking, rows)
        losses.append(loss)
        total = total.add_(gradient) if step else gradient if steps == head_steps == 1 else gradient.clone()
        last = step == steps - 1
        shared = weights.shared if last else weights.shared.sub(gradient[:, :cut], alpha=chunk.rate)
        weights, velocity = step_heads(chunk, weights, gradient[:, cut:], velocity)
        for _ in range(head_steps - 1):
            weights = masking.kept(weights)
            slope = head_step(chunk, tools, weights, masking, rows)
            total[:, cut:].add_(slope)
            weights, velocity = step_heads(chunk, weights, slope, velocity)
        weights = Weights(shared, weights.private)
    return ChunkRun(total, weights.private, velocity, chunk.mean_loss(losses))


def step_heads(chunk: Chunk, weights: Weights, slope: Tensor, velocity: Tensor | None) -> tuple[Weights, Tensor | None]:
    """The weights after a step of the private parts, and its velocity where there is momentum."""
    if velocity is not None:
        velocity = slope = slope.add(velocity, alpha=chunk.training.momentum)
    return Weights(weights.shared, weights.private.sub(slope, alpha=chunk.rate)), velocity


def gradient_step(chunk: Chunk, tools: Tools, weights: Weights, masking: Masking, rows: Ints) -> tuple[Tensor, Tensor]:
    """Loss (C,) and the gradient (C, d) that a step follows, with weight decay and mask."""
    used, cut = masking.used(weights), len(chunk.shared)
    loss, gradient = tools.model.loss_and_gradient(used, rows, chunk.labels(rows))
    decay_and_mask(chunk, gradient[:, :cut], used.shared, masking.shared if masking.gradient else None)
    decay_and_mask(chunk, gradient[:, cut:], used.private, masking.private if masking.gradient else None)
    return loss, gradient


def head_step(chunk: Chunk, tools: Tools, weights: Weights, masking: Masking, rows: Ints) -> Tensor:
    """The gradient (C, d_private) that a further step of the heads follows, with weight decay and mask."""
    used = masking.used(weights)
    slope = tools.model.head_gradient(used, rows, chunk.labels(rows))
    decay_and_mask(chunk, slope, used.private, masking.private if masking.gradient else None)
    return slope


def decay_and_mask(chunk: Chunk, slope: Tensor, at: Tensor, mask: Tensor | None) -> None:
    """Add weight decay to a part's slope, then let go of what gets no update."""
    if chunk.training.weight_decay:
        slope.add_(at, alpha=chunk.training.weight_decay)
    if mask is not None:
        slope.mul_(mask)


def masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Weights x mask, where there is one."""
    return weights if mask is None else weights * mask


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
    counts = kept_counts(chunk.k, size)
    if (counts == size).all() and settings.select == "topk" and not settings.error_feedback:
        return *send_all(chunk, gradient), {}  # nothing is left out: FedPer's sum, bit for bit
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
    counts = kept_counts(chunk.r, private.shape[1])
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
