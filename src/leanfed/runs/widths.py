"""The widths of a run's clients, as its settings ask for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leanfed.rounds.costs import step_share
from leanfed.rounds.width import CLOCKS, drawn_widths, listed_widths, widths_by_speed
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings


def with_widths(world: World, settings: Settings) -> World:
    """The world with the width of every client's model; the same where all are whole."""
    asked, clients, seed = settings.width, world.task.clients, world.task.seed
    if not asked.shares:
        return world
    if asked.by == "draw":
        widths = drawn_widths(asked.shares, clients, seed)
    elif asked.by == "client":
        widths = listed_widths(asked.shares, clients)
    else:
        radio = settings.radio.model_copy(update={"computation": "operations"})  # what real time follows
        work = tuple(1.0 if w == 1.0 else step_share(world.inner(w)[0], world, radio) for w in asked.shares)
        fleet = settings.radio.open_fleet(clients, seed)
        rounds = min(CLOCKS, settings.rounds)
        clocks = np.mean([fleet.state(number).cpu_hz for number in range(rounds)], axis=0)
        widths = widths_by_speed(asked.shares, work, clocks)
    return replace(world, widths=tuple(widths.tolist()))
