"""A cut that moves during a run: layers of the shared base become private, each client's own from then on.

At the switch a client's private part becomes [values of these layers as clients last saw them | private part], so that
its whole model stays what it was, bit for bit. Memories of weights that move begin anew, as zeros.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ClientState, ServerState
from leanfed.errors import SettingsError
from leanfed.rounds.broadcast import seen
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.loop import Progress
from leanfed.rounds.world import HANDED, World, check_fit


def switched(progress: Progress, before: World, after: World) -> Progress:
    """The state of a run between its last round at a cut and its first at the next one."""
    size, server = after.vector_size, progress.server
    tail = seen(server).shared[size:]
    memory = {name: _shared_part(values, before.vector_size, size) for name, values in server.memory.items()}
    memory[HANDED] = torch.cat([tail, server.memory.get(HANDED, torch.empty(0))])
    clients = after.new_clients(memory[HANDED])
    _move(progress.clients, clients, tail, after)
    return Progress(progress.round, ServerState(server.shared[:size].clone(), memory), clients)


def _shared_part(values: Tensor, before: int, after: int) -> Tensor:
    """What the server remembers of the weights that stay shared; memories of another size stay whole."""
    return values[:after].clone() if values.dim() == 1 and len(values) == before else values


def _move(given: ClientStore, taken: ClientStore, tail: Tensor, after: World) -> None:
    """Every client that has a state, with the layers that became its own."""
    for client in given.started():
        state = given[client]
        memory = {name: _resized(rows, after.holds.get(name, len(rows))) for name, rows in state.memory.items()}
        taken[client] = ClientState(torch.cat([tail, state.private]), memory)


def _resized(values: Tensor, size: int) -> Tensor:
    """A memory of shared weights without those that left, or one of private weights with zeros for those that came."""
    return values[:size] if len(values) >= size else torch.cat([torch.zeros(size - len(values)), values])


def with_schedule(world: World) -> World:
    """The world with those of its later rounds, as `task.split_schedule` has them; refused where it cannot be."""
    later: list[tuple[int, World]] = []
    for number, layer in world.task.settings.split_schedule:
        before = later[-1][1] if later else world
        cut = world.task.settings.model_copy(update={"split": layer})
        after = replace(world, task=replace(world.task, settings=cut))
        check_fit(after)
        _check_move(number, before, after)
        later.append((number, after))
    return replace(world, later=tuple(later)) if later else world


def _check_move(number: int, before: World, after: World) -> None:
    """Refuse a switch that the method cannot make, or that shares more than before."""
    layer = after.task.settings.split
    if reason := why_not(before, after):
        method = before.algorithm.model_dump()["name"]
        raise SettingsError(f"task.split_schedule = [[{number}, {layer!r}]] does not fit {method!r}: {reason}.")
    if not 0 < after.split.shared_size < before.split.shared_size:
        raise SettingsError(
            f"task.split_schedule moves the cut to {layer!r} in round {number}, but layers can only become private: "
            f"{before.split.shared_size} values are shared before and {after.split.shared_size} from then on. Name an "
            "earlier layer."
        )


def why_not(before: World, after: World) -> str | None:
    """Why a method cannot go on at another cut, as a clause with the way out; None if it can."""
    method, split = before.algorithm, before.split
    if split != before.task.split or method.private_size(split) != split.private_size:
        return "its clients do not keep the head alone; choose a method such as fedper or flpdsp"
    if type(method).step is not Algorithm.step or method.vector_size(split) != split.shared_size:
        return "its server does not step along a gradient of the base; choose a method such as fedper or flpdsp"
    changes = {split.shared_size: after.split.shared_size, split.private_size: after.split.private_size}
    for name, size in before.holds.items():
        if after.holds.get(name) not in (changes.get(size), size):
            return f"what is kept as {name!r} does not go with single weights; choose a method such as fedper or flpdsp"
    return None
