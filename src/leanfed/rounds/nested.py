"""Clients with narrower models: what each of them sees of the whole, and what the whole gets back.

Server and clients keep whole vectors; a narrower client's own part is taken out before it trains or is tested and put
back afterwards, so that all else (methods, learners, checkpoints) sees ordinary models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ClientState, Cohort, ServerState, Updates
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.uploads import Listed
from leanfed.compression import exact
from leanfed.records import Floats
from leanfed.tasks.nest import Nest

STATISTICS = "statistics"  # memory name: of clients for all statistics, of the server for the shared ones


def narrowed(server: ServerState, cohort: Cohort, learner: FlatLearner) -> tuple[ServerState, Cohort, FlatLearner]:
    """What a cohort of one with a narrower model trains with."""
    nest = cohort.nest
    assert nest is not None
    memory = {
        name: rows[:, nest.statistics] if name == STATISTICS else nest.narrow(rows)
        for name, rows in cohort.memory.items()
    }
    own = replace(cohort, private=nest.narrow(cohort.private), memory=memory, nest=None)
    return ServerState(nest.narrow(server.shared)), own, learner.nested[nest.width]


def widened(updates: Updates, cohort: Cohort, learner: FlatLearner) -> Updates:
    """Its updates in the whole model's places; what it does not have stays as it was."""
    nest = cohort.nest
    assert nest is not None
    initial = learner.model.statistics.initial.cpu().unsqueeze(0)
    memory = {}
    for name, rows in updates.memory.items():
        if name == STATISTICS:
            memory[name] = cohort.memory.get(name, initial).index_copy(1, nest.statistics, rows)
        else:
            memory[name] = nest.widen(rows, cohort.memory[name])
    uploads = Listed([replace(upload, within=nest.shared) for upload in updates.uploads])
    return replace(updates, uploads=uploads, private=nest.widen(updates.private, cohort.private), memory=memory)


def narrow_states(nest: Nest, server: ServerState, client: ClientState) -> tuple[ServerState, ClientState]:
    """What a narrower client's model is made of, for its tests."""
    memory = {
        name: rows[nest.statistics] if name == STATISTICS else nest.narrow(rows) for name, rows in client.memory.items()
    }
    return ServerState(nest.narrow(server.shared)), ClientState(nest.narrow(client.private), memory)


def coverage(nests: Sequence[Nest | None], gamma: Floats, size: int) -> Tensor:
    """(size,) float64: the sum of gamma_n over those that have each entry of the shared part; None has all of them."""
    weights = exact.zeros(size)
    widths = np.array([1.0 if nest is None else nest.width for nest in nests])
    for width in sorted(set(widths.tolist()), reverse=True):  # who has more has all that others have
        nest = nests[int(np.argmax(widths == width))]
        weights[slice(None) if nest is None else nest.shared] = math.fsum(gamma[widths >= width])
    return weights


def covered_mean(total: Tensor, weights: Tensor) -> Tensor:
    """The mean (float32) of each entry over those that have it; zero where nobody does."""
    return torch.where(weights > 0, total / weights, total).to(torch.float32)


def why_whole(algorithm: Algorithm, nest: Nest, inner: dict[str, int], whole: dict[str, int]) -> str | None:
    """Why a method's clients cannot have narrower models, as a clause; None if they can.

    `inner` and `whole` are the sizes of what a client keeps and of the server's vector, by name.
    """
    if algorithm.prunes_units or algorithm.upload_form in ("mask", "common"):
        what = "prunes units of the head" if algorithm.prunes_units else "does not send values that each client chooses"
        return f"it {what}"
    if type(algorithm).step is not Algorithm.step:
        return "its server does not step along a gradient"
    if nest.whole.shared_size == nest.whole.private_size:
        return (
            "base and head are of one size, so that it cannot be told what goes with which; choose another task.split"
        )
    for name, size in whole.items():
        places = nest.places(size)
        if inner[name] != (size if places is None else len(places)):
            return f"what is kept as {name!r} does not go with single weights"
    return None
