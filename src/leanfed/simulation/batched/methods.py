"""The methods that can run in chunks, each as one function from a chunk to what it sends and keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.fedavg import FedAvg, FedAvgP, FedAvgS
from leanfed.algorithms.fedmask import FedMask, frozen_weights
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.lg_fedavg import LgFedAvg
from leanfed.records import kept_counts
from leanfed.rounds.client_store import PRIVATE
from leanfed.rounds.world import World
from leanfed.simulation.batched.chunk import (
    Chunk,
    ChunkOutcome,
    Masking,
    Tools,
    kept,
    local_steps,
    prune,
    send_all,
    send_sparse,
)
from leanfed.simulation.batched.lenet import Weights


def train_decoupled(chunk: Chunk, tools: Tools) -> ChunkOutcome:
    """FedPer, LG-FedAvg and FedAvg: train both parts, send the shared gradient whole, keep the private part."""
    run = local_steps(chunk, tools, chunk.memory(PRIVATE))
    total, entries = send_all(chunk, run.gradient)
    return ChunkOutcome(total, run.loss, entries, kept(run))


def train_flpdsp(chunk: Chunk, tools: Tools) -> ChunkOutcome:
    """Algorithm 1: prune heads, take gradients, send the largest of the base's, update heads."""
    algorithm = chunk.world.algorithm
    assert isinstance(algorithm, Flpdsp)
    private = chunk.memory(PRIVATE)
    masking = Masking(
        private=prune(chunk, tools.picks, private, algorithm.prune),
        discard=algorithm.prune.head_memory == "discard",
        gradient=algorithm.prune.masked_gradient,
    )
    run = local_steps(chunk, tools, private, masking, algorithm.head_steps)
    memory = {}
    if algorithm.prune.score == "importance":
        memory["head_gradient"] = run.gradient[:, len(chunk.shared) :].clone()
    total, entries, residual = send_sparse(chunk, tools, run.gradient, algorithm.sparsify)
    return ChunkOutcome(total, run.loss, entries, kept(run, **memory, **residual))


def train_fedavg_s(chunk: Chunk, tools: Tools) -> ChunkOutcome:
    """FedAvg with sparsified uploads."""
    algorithm = chunk.world.algorithm
    assert isinstance(algorithm, FedAvgS)
    run = local_steps(chunk, tools, chunk.memory(PRIVATE))
    total, entries, residual = send_sparse(chunk, tools, run.gradient, algorithm.sparsify)
    return ChunkOutcome(total, run.loss, entries, kept(run, **residual))


def train_fedavg_p(chunk: Chunk, tools: Tools) -> ChunkOutcome:
    """FedAvg on pruned weights; one mask where all clients keep the same share."""
    counts = kept_counts(chunk.r, len(chunk.shared))
    distinct = counts[:1] if (counts == counts[0]).all() else counts
    scores = chunk.shared.abs().expand(len(distinct), -1).contiguous()
    mask = tools.picks.mask(scores, distinct)
    run = local_steps(chunk, tools, chunk.memory(PRIVATE), Masking(shared=mask, gradient=True))
    total, _ = send_all(chunk, run.gradient)
    return ChunkOutcome(total, run.loss, counts, kept(run))


def train_fedmask(chunk: Chunk, tools: Tools) -> ChunkOutcome:
    """FedMask: step the scores straight through the mask, send its bits."""
    algorithm, size = chunk.world.algorithm, len(chunk.shared)
    assert isinstance(algorithm, FedMask)
    everything = frozen_weights(chunk.model)
    frozen, rest = everything[:size], everything[size:].unsqueeze(0)
    own = chunk.memory(PRIVATE)
    scores = algorithm.heard(chunk.shared, own) if chunk.round else own
    losses = []
    for rows in chunk.samples():
        weights = Weights(frozen * (scores > 0), rest)
        loss, gradient = tools.model.loss_and_gradient(weights, rows, chunk.labels(rows))
        losses.append(loss)
        slope = torch.sigmoid(scores)
        step = gradient[:, :size].mul_(frozen).mul_(slope).mul_(1 - slope)  # as in fedmask.score_gradient
        scores = scores.sub(step, alpha=chunk.rate * algorithm.score_rate)
    mean = chunk.mean_loss(losses)
    total, entries = send_all(chunk, (scores > 0).to(scores.dtype))
    return ChunkOutcome(total, mean, entries, {PRIVATE: scores})


METHODS: Final[Mapping[type[Algorithm], Callable[[Chunk, Tools], ChunkOutcome]]] = {
    FedAvg: train_decoupled,
    FedAvgP: train_fedavg_p,
    FedAvgS: train_fedavg_s,
    FedMask: train_fedmask,
    FedPer: train_decoupled,
    Flpdsp: train_flpdsp,
    LgFedAvg: train_decoupled,
}


def memories(world: World) -> dict[str, int]:
    """The rows that a method keeps for a client: name -> size."""
    algorithm, split = world.algorithm, world.split
    if isinstance(algorithm, FedMask):
        return {PRIVATE: split.shared_size}
    sizes = {PRIVATE: split.private_size}
    if world.training.momentum and split.private_size:
        sizes["velocity"] = split.private_size
    if isinstance(algorithm, Flpdsp | FedAvgS) and algorithm.sparsify.error_feedback:
        sizes["residual"] = split.shared_size
    if isinstance(algorithm, Flpdsp) and algorithm.prune.score == "importance":
        sizes["head_gradient"] = split.private_size
    return sizes
