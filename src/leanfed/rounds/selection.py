"""Who is asked to take part in a round: a registry of selections, and the settings that choose one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from leanfed.errors import LeanfedError, SettingsError, nearest
from leanfed.records import Ints, Section
from leanfed.registry import Registry
from leanfed.streams import stream


@dataclass(frozen=True)
class Moment:
    """What a selection may depend on: nothing else, so that a run can be resumed without its history."""

    round: int
    seed: int
    clients: int  # N; clients are numbered from 0
    reachable: Collection[int] | None = None  # clients that can be reached; None: all, as in a simulation

    def draw(self, count: int) -> list[int]:
        """`count` distinct clients, drawn at random for this round."""
        return list(stream(self.seed, "cohort", self.round).choice(self.clients, count, replace=False).tolist())


class Selection(Protocol):
    """A function that returns who is asked in a round: distinct client numbers in any order, at least one.

    Clients that are asked and can meet their limits take part; an allocator may still leave some of them out.

    >>> @SELECTIONS.register("one-by-one")
    ... def one_by_one(settings, now):
    ...     return [now.round % now.clients]
    >>> select(Participation(rule="one-by-one"), Moment(round=7, seed=0, clients=5))
    (2,)
    >>> SELECTIONS.remove("one-by-one")
    """

    def __call__(self, settings: Participation, now: Moment, /) -> Collection[int]:
        """The clients to ask."""


SELECTIONS: Final[Registry[Selection]] = Registry("selection")
_NEEDED = {"cohorts": "cohorts", "due": "within_rounds"}  # rule -> the setting that it requires
_BUILT_IN = {"fraction", "available", "poisson", *_NEEDED}


def _registered(rule: str | None) -> str | None:
    """The name if a selection has it; else an error that names the nearest one."""
    if rule is not None and rule not in SELECTIONS:
        raise ValueError(f"no selection has that name: {nearest(rule, SELECTIONS)}")
    return rule


class Participation(Section):
    """Who is asked to take part in a round."""

    rule: Annotated[str | None, AfterValidator(_registered)] = None
    """fraction, cohorts, due, available (everyone who can be reached), poisson (each client by itself with probability
    fraction, as accounting for privacy needs it), or one of your own; None: cohorts or due if their setting below is
    given, else fraction."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of the clients drawn for each round, at least one."""
    cohorts: tuple[tuple[int, ...], ...] | None = Field(default=None, min_length=1)
    """The client numbers of each round, instead of a fraction; the lists are repeated if there are more rounds."""
    within_rounds: int | None = Field(default=None, ge=1, le=10_000_000)
    """With the rule due: in addition to the draw, every client is asked at least once in this many rounds."""

    @property
    def selection(self) -> str:
        """The rule's name; without `rule` it follows from the other settings."""
        given = "cohorts" if self.cohorts is not None else "due" if self.within_rounds is not None else "fraction"
        return self.rule or given

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Participation:
        if self.cohorts is not None and self.fraction != 1.0:
            raise ValueError("give participation.fraction or participation.cohorts, not both")
        if self.cohorts is not None and any(len(set(c)) != len(c) or not c or min(c) < 0 for c in self.cohorts):
            raise ValueError("each list in participation.cohorts must hold different client numbers from 0 on")
        for rule, key in _NEEDED.items():
            given = getattr(self, key) is not None
            if self.selection == rule and not given:
                raise ValueError(f"participation.rule = {rule!r} needs participation.{key}")
            if given and self.selection in _BUILT_IN - {rule}:
                raise ValueError(f"participation.{key} is for the rule {rule!r}, not for {self.selection!r}")
        if self.selection == "available" and self.fraction != 1.0:
            raise ValueError("participation.rule = 'available' asks everyone; leave participation.fraction out")
        return self


def select(settings: Participation, now: Moment) -> tuple[int, ...]:
    """The clients asked in a round, in increasing order."""
    chosen = sorted(SELECTIONS[settings.selection](settings, now))
    if not chosen and settings.selection == "poisson":
        return ()
    if not chosen or len(set(chosen)) != len(chosen) or not 0 <= chosen[0] <= chosen[-1] < now.clients:
        raise LeanfedError(
            f"The selection {settings.selection!r} must ask different clients from 0 to {now.clients - 1}, at least "
            f"one, but in round {now.round} it asks {chosen[:10]}."
        )
    return tuple(chosen)


@SELECTIONS.register("fraction")
def drawn_fraction(settings: Participation, now: Moment) -> Collection[int]:
    """A share of the clients, drawn anew for every round."""
    return now.draw(max(1, round(settings.fraction * now.clients)))


@SELECTIONS.register("cohorts")
def listed_cohorts(settings: Participation, now: Moment) -> Collection[int]:
    """The lists in the settings, round by round."""
    lists = settings.cohorts or ()
    listed = lists[now.round % len(lists)]
    if max(listed) >= now.clients:
        raise SettingsError(f"participation.cohorts names client {max(listed)}; the last is {now.clients - 1}.")
    return listed


@SELECTIONS.register("due")
def drawn_and_due(settings: Participation, now: Moment) -> Collection[int]:
    """A drawn share, and the clients whose turn it is: each has a fixed random turn every `within_rounds` rounds."""
    every = settings.within_rounds or 1
    turns = stream(now.seed, "turns").permutation(now.clients) % every
    return {*drawn_fraction(settings, now), *np.flatnonzero(turns == now.round % every).tolist()}


@SELECTIONS.register("poisson")
def each_by_itself(settings: Participation, now: Moment) -> Collection[int]:
    """Every client with the same probability and independently of the others; there may be none."""
    return np.flatnonzero(stream(now.seed, "cohort", now.round).random(now.clients) < settings.fraction).tolist()


@SELECTIONS.register("available")
def everyone_available(settings: Participation, now: Moment) -> Collection[int]:
    """All clients that can be reached."""
    return range(now.clients) if now.reachable is None else now.reachable


def overdue(absent: Ints, within_rounds: int) -> NDArray[np.bool_]:
    """(clients,) who must take part now to do so once in `within_rounds` rounds; `absent` counts the rounds missed."""
    return absent + 1 >= within_rounds
