"""The stacked engine: chunks of clients through the known layers of any model, in torch alone.

Whether `auto` takes it is a rule on the model's shape and not on a measurement: a choice by the clock would change the
last digits of a run from one start to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.contract import ServerState, Weights
from leanfed.algorithms.learner import FlatLearner
from leanfed.errors import first_line
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import ENGINES, Engine, EngineSpec
from leanfed.rounds.evaluation import Results
from leanfed.rounds.world import World
from leanfed.simulation.batched.chunked import CHUNK_BYTES, CHUNK_CLIENTS, ChunkedEngine
from leanfed.simulation.batched.leaves import CONVOLUTIONS
from leanfed.simulation.batched.stacked import ALIGNED, StackedLearner, unfit
from leanfed.simulation.streamed import StreamedEngine, saved_bytes
from leanfed.tasks.batch import CPU, Batch
from leanfed.tasks.text import Tokens

TOLERANCE = 1e-3  # relative, of a loss and of a gradient; a model that mixes samples differs by far more
PROBED = (2, 4)  # clients, samples of each
MOST_WEIGHTS = 200_000  # above it a processor is busy with matrix products, which are the same either way


def new_learner(world: World) -> StackedLearner:
    """A learner of the world's model, on its device."""
    return StackedLearner(world.task.new_model("base").to(world.device), world.split, world.task.loss)


@final
class StackedEngine(ChunkedEngine):
    """Chunks of clients through `StackedLearner`; tests client by client, as the streamed engine does."""

    name = "stacked"

    def __init__(self, world: World, threads: int | None = None) -> None:
        super().__init__(world, chunk_clients(world), threads)
        self.any_company = same_alone(world, self.chunk_clients)
        self._alone: Engine = StreamedEngine(world, threads=self.threads)
        for _ in range(self.threads):
            self._learners.put(new_learner(world))

    @override
    def at(self, world: World) -> Engine:
        other = super().at(world)
        if isinstance(other, StackedEngine):
            other._alone = self._alone.at(world)
        return other

    @override
    def test(self, server: ServerState, clients: ClientStore, some: Sequence[int]) -> Results:
        return self._alone.test(server, clients, some)

    @override
    def _batches(self, members: Sequence[int], number: int) -> Iterable[Batch]:
        """Samples side by side, as `Task.batches` draws them for each."""
        task, settings = self.world.task, self.world.training
        drawn = (
            task.batches(client, number, settings.batch_size, steps=settings.local_steps, epochs=None)
            for client in members
        )
        for step in zip(*drawn, strict=True):
            yield Batch(torch.stack([own.inputs for own in step]), torch.stack([own.labels for own in step]))


def chunk_clients(world: World) -> int:
    """Clients per chunk: CHUNK_CLIENTS, or fewer if activations and weights would exceed CHUNK_BYTES."""
    pair = world.task.train.batch(np.resize(world.task.partition.train[0], 2))
    sample = saved_bytes(world.new_learner(CPU).model, pair.inputs) // 2
    needed = world.training.batch_size * sample + 12 * world.split.size
    return max(1, min(CHUNK_CLIENTS, CHUNK_BYTES // max(1, needed)))


def misfit(world: World, wire: str | None) -> str | None:
    """Why this world cannot be computed layer by layer for several clients, or None if it can."""
    if world.widths is not None:
        return "[width] gives clients models of different widths"
    if wire:
        return "radio.wire codes each client's upload by itself"
    if world.training.local_epochs is not None:
        return "training.local_epochs gives clients different numbers of batches"
    if world.precision != "float32":
        return f"its layers compute in float32, not in {world.precision}"
    if isinstance(world.task.train, Tokens):
        return "texts are cut to the longest of a batch, which is another one in company"
    return unfit(world.task.example_model) or departure(world)


def departure(world: World) -> str | None:
    """How the stacked layers differ from the model itself on one batch, as a clause; None if they agree.

    A model that mixes samples, or uses the weights of a layer beside it, is found here.
    """
    weights, batch, reference = _probe(world, *PROBED)
    expected = reference.loss_and_gradient(weights, batch)
    try:
        found = new_learner(world).loss_and_gradient(weights, batch)
    except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
        return f"its layers cannot be computed for several clients ({first_line(error)})"
    far = [float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(found, expected, strict=True)]
    if max(far) <= TOLERANCE:
        return None
    return f"layer by layer for several clients its gradients differ by {max(far):.1g} from its own"


def same_alone(world: World, clients: int = CHUNK_CLIENTS) -> bool:
    """Whether a client's numbers are the same to the last bit in company and alone.

    Samples of all clients begin alike in memory if a batch fills whole rows of `ALIGNED` values; one batch is tried.
    """
    if world.training.batch_size % ALIGNED:
        return False
    weights, batch, _ = _probe(world, clients, world.training.batch_size)
    learner = new_learner(world)
    losses, together = (part.clone() for part in learner.loss_and_gradient(weights, batch))
    for row in range(len(losses)):
        own = Weights(weights.shared, weights.private[row : row + 1])
        one = Batch(batch.inputs[row : row + 1], batch.labels[row : row + 1])
        loss, gradient = learner.loss_and_gradient(own, one)
        if not (torch.equal(loss[0], losses[row]) and torch.equal(gradient[0], together[row])):
            return False
    return True


def _probe(world: World, clients: int, samples: int) -> tuple[Weights, Batch, FlatLearner]:
    """Weights and a batch of some clients whose private parts differ, and the learner that is right by definition."""
    reference, cut = world.new_learner(), world.split.shared_size
    base = reference.initial[:cut].clone().unsqueeze(0)
    own: list[Tensor] = [reference.initial[cut:] * (1 + row / 8) for row in range(clients)]
    rows = np.resize(world.task.partition.train[0], clients * samples)
    drawn = world.task.train.batch(rows).to(world.device)
    inputs, labels = (part.view(clients, samples, *part.shape[1:]) for part in (drawn.inputs, drawn.labels))
    return Weights(base, torch.stack(own)), Batch(inputs, labels), reference


def pays(world: World) -> bool:
    """Whether several clients at once are faster than one after another.

    On a GPU they are. A processor gains where layers are dense and small, since it makes fewer calls, and loses at
    convolutions, whose activations leave its caches.
    """
    if world.device.type != "cpu":
        return True
    if world.split.size > MOST_WEIGHTS:
        return False
    return not any(isinstance(layer, CONVOLUTIONS) for layer in world.task.example_model.modules())


ENGINES.add("stacked", EngineSpec(lambda world, threads, wire: StackedEngine(world, threads), misfit))
