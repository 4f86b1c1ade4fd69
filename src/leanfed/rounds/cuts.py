"""The cuts of a model: their sizes, work, planned costs and gains, and which of them a run takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.learner import one_thread
from leanfed.rounds.costs import Accountant
from leanfed.rounds.engine import RoundOutcome
from leanfed.rounds.planning import Planner
from leanfed.rounds.world import World
from leanfed.streams import stream, stream_seed
from leanfed.tasks.chain import operations_on
from leanfed.tasks.split import FlatModel, Split
from leanfed.tasks.task import Task, draw_rows
from leanfed.theory.agreement import agreement

SAVING: Final = 0.2  # what a smaller shared part must save of a round's seconds to be taken
ALIKE: Final = 0.5  # n*/n from which a layer is worth sharing
PLANNED: Final = 8  # rounds, whose mean stands for all
PROBED: Final = 20  # clients, at most


@dataclass(frozen=True)
class Cut:
    """One cut, with the layers up to `layer` in the base."""

    layer: str
    shared: int  # values
    private: int
    shared_operations: int | None  # multiply-adds of a sample's forward pass; None: the model cannot be counted
    private_operations: int | None
    head_steps: int  # on a batch
    seconds: float | None = None  # of a round, as planned
    joules: float | None = None  # of all clients in a round
    even_seconds: float | None = None  # of a round with whole heads that step once: what the cut alone changes
    gain: float | None = None  # n*/n of what is shared here and not at the next smaller cut
    refused: str | None = None  # why this run cannot be cut here


@dataclass(frozen=True)
class CutChoice:
    """The cuts of a model by the size of what they share, smallest first, the one that is taken, and why."""

    asked: str  # as task.split has it
    chosen: str
    own: str  # the model's own cut
    why: str
    cuts: tuple[Cut, ...]

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""
        return {**asdict(self), "cuts": [asdict(cut) for cut in self.cuts]}


def choose(cuts: Sequence[Cut], own: str, by: str) -> tuple[str, str]:
    """(layer, why). The walk begins at the model's own cut, or at the nearest smaller one that can be taken.

    By cost it goes to the next smaller shared part while that saves a fifth of a round's seconds at equal work; by gain
    to the next larger one while clients are alike in the layers that it adds: n*/n is a half or more.
    """
    taken = [cut for cut in cuts if cut.refused is None]
    up_to_own = list(cuts[: 1 + [cut.layer for cut in cuts].index(own)])
    place = max(0, sum(cut.refused is None for cut in up_to_own) - 1)
    way, begin = (-1 if by == "cost" else 1), taken[place]
    while 0 <= place + way < len(taken) and _pays(taken[place], taken[place + way], by):
        place += way
    end = taken[place]
    words = _words(begin, end, by)
    if 0 <= place + way < len(taken):
        words += f"; {_words(end, taken[place + way], by, stays=True)}"
    return end.layer, f"by {by}, from {begin.layer}: {words}"


def _pays(here: Cut, there: Cut, by: str) -> bool:
    if by == "gain":
        return there.gain is not None and there.gain >= ALIKE
    assert here.even_seconds is not None and there.even_seconds is not None  # of all that are not refused
    return there.even_seconds <= (1 - SAVING) * here.even_seconds


def _words(here: Cut, there: Cut, by: str, *, stays: bool = False) -> str:
    """What a step of the walk would change."""
    if here is there:
        return "it stays there"
    if by == "gain":
        found = "not measured" if there.gain is None else f"{there.gain:.2g}"
        return f"{there.layer} {'is not' if stays else 'is'} worth sharing (n*/n {found}, at least {ALIKE:g} wanted)"
    change = f"{there.even_seconds:.3g} s a round of equal work in place of {here.even_seconds:.3g}"
    return f"{there.layer} would take {change}, which saves too little" if stays else f"{there.layer} takes {change}"


def plain_cut(layer: str, world: World, operations: Mapping[str, int] | None) -> Cut:
    """One cut with its sizes and its work."""
    split, shared, private = world.split, None, None
    if operations is not None:
        shared, private = (
            sum(count for name, count in operations.items() if _inside(name, part))
            for part in (split.shared, split.private)
        )
    steps = int(world.algorithm.work(1.0).head_passes) + 1
    return Cut(layer, split.shared_size, split.private_size, shared, private, steps)


def with_costs(cut: Cut, planner: Planner) -> Cut:
    """The cut with seconds and joules of a round: means over the first rounds that a run would plan."""
    seconds, joules = _mean_cost(planner)
    return replace(cut, seconds=seconds, joules=joules, even_seconds=_mean_cost(_at_equal_work(planner))[0])


def _at_equal_work(planner: Planner) -> Planner:
    """The planner of the same rounds with whole heads that step once, so that every cut computes the same."""
    world, changes = planner.world, {"head_steps": 1, "r": 1.0}
    known = {name: value for name, value in changes.items() if name in type(world.algorithm).model_fields}
    algorithm = world.algorithm.model_copy(update=known)
    no_limits = {"r_min": 1.0, "head_steps_max": 0, "deadline_s": None, "energy_budget_j": None, "energy_total_j": None}
    accountant = Accountant(planner.accountant.settings, replace(world, algorithm=algorithm))
    return Planner(planner.settings.model_copy(update=no_limits), accountant, planner.rounds, planner.theory)


def _mean_cost(planner: Planner) -> tuple[float, float]:
    """(seconds, joules) of a round."""
    costs = [_planned_cost(planner, number) for number in range(min(PLANNED, planner.rounds))]
    seconds, joules = np.mean(costs, axis=0).tolist()
    return seconds, joules


def _inside(name: str, part: Mapping[str, torch.Size]) -> bool:
    """Whether a layer has weights in a part, if only those of its adapters."""
    return any(key.startswith(f"{name}.") for key in part)


def _planned_cost(planner: Planner, number: int) -> tuple[float, float]:
    """(seconds, joules) of a round, from its plan and what its participants would send."""
    plan, accountant = planner.plan(number).plan, planner.accountant
    samples = accountant.world.samples(plan.participants).astype(np.int64)
    outcome = RoundOutcome(None, samples * 0.0, samples, accountant.world.entries(plan))  # type: ignore[arg-type]  # needs no server
    cost = accountant.bill(plan, outcome).cost
    return float(cost.round_latency_s), float(np.sum(cost.energy_j))


def sample_operations(task: Task) -> dict[str, int] | None:
    """Multiply-adds of each layer for one sample; None where the model has nothing that can be counted."""
    batch = task.train.batch(task.partition.train[0][:1])
    return operations_on(task.new_model("base"), batch.inputs) or None


def with_gains(cuts: Sequence[Cut], splits: Sequence[Split], task: Task, batch_size: int) -> list[Cut]:
    """The cuts, ordered by what they share, with the gain of what each adds to the next smaller one."""
    parts = []
    known: set[str] = set()
    for split in splits:
        parts.append([name for name in split.shapes if name in split.shared and name not in known])
        known |= set(parts[-1])
    rest = [name for name in splits[-1].shapes if name not in known]
    shapes = splits[-1].shapes
    order = [name for part in (*parts, rest) for name in part]
    sizes = [sum(shapes[name].numel() for name in part) for part in (*parts, rest)]
    model = FlatModel(task.new_model("base"), Split({name: shapes[name] for name in order}, {}), loss=task.loss.compute)
    clients = _probed(task)
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream_seed(task.seed, "cut") % 2**63)  # for models that drop out
        found = agreement(_pairs(model, task, clients, batch_size), sizes)
    gains = found.worth_sharing(batch_size, float(task.partition.sizes[clients].mean()))
    return [replace(cut, gain=float(gain)) for cut, gain in zip(cuts, gains, strict=False)]


def _probed(task: Task) -> list[int]:
    """The clients that are asked, drawn by the seed."""
    drawn = stream(task.seed, "cut").choice(task.clients, min(PROBED, task.clients), replace=False)
    return sorted(drawn.tolist())


def _pairs(model: FlatModel, task: Task, clients: Sequence[int], batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Two gradients of each client at the common initial model, each on a batch of its own samples."""
    for client in clients:
        rng, rows = stream(task.seed, "cut", client), task.partition.train[client]
        batches = (task.train.batch(draw_rows(rows, batch_size, rng)) for _ in range(2))
        first, second = (
            model.loss_and_gradient(model.initial, batch.inputs, batch.labels)[1].clone() for batch in batches
        )
        yield first, second
