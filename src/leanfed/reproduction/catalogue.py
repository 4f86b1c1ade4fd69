"""The catalogue: every table and figure of the paper as an entry, with the runs it needs and the claims to judge.

An entry is one call of `ENTRIES.add` in a file of reproduction/paper/. It names the runs it needs, turns finished runs
into numbers and curves, holds the published numbers under the same labels, and lists claims judged on both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leanfed.quantities import costs
from leanfed.registry import Registry
from leanfed.reproduction.judging import Book, Labels, Number, Rule, Verdict, key_of
from leanfed.reproduction.library import FinishedRun
from leanfed.runs.settings import Settings

FORMS: Final = ("plain", "safe", "fast")  # of FLPDSP-OPT: as published, with its heads kept, ours
GUESS: Final = "majority guess"  # always predicting each client's most frequent label; a row, or a quantity


@dataclass(frozen=True)
class Scale:
    """The size of a reproduction: full, or quick, which is labelled as such."""

    seeds: tuple[int, ...]
    quick: bool = False


@dataclass(frozen=True)
class Job:
    """One run that an entry needs; `labels` identify its numbers."""

    labels: Labels
    settings: Settings
    clients: bool = False  # whether rows of single clients are measured, which kept runs do not have
    turn: int = 0  # what is read first is run first, for all seeds: a lower turn goes before a higher one


@dataclass(frozen=True)
class Outcome:
    """A job and the finished run that provides its numbers."""

    job: Job
    run: FinishedRun


@dataclass(frozen=True)
class Line:
    """One curve in a panel of a figure, over simulated seconds or the form's own x axis."""

    panel: str
    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Measured:
    """The numbers of an entry's runs: values by labels and seed, and curves if it is a figure."""

    values: Sequence[tuple[Labels, int, float | None]]
    lines: Sequence[Line] = ()


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper (or of ours) and how it is judged."""

    text: str
    paper: str  # the paper's result in a few words
    rule: Rule
    why: str = ""  # the reason given if it fails

    @property
    def form(self) -> str:
        """The form of FLPDSP-OPT that is judged (plain is the published one); none where it is about others."""
        words = {word for labels in self.rule.cells() for text in labels.values() for word in re.findall(r"\w+", text)}
        found = [form for form in FORMS if form in words]
        return found[0] if len(found) == 1 and "tuned" not in words else ""  # tuned is compared with them, not one


@dataclass(frozen=True)
class Form:
    """How the numbers are laid out in tables, and how curves are drawn."""

    rows: tuple[str, ...] = ()  # labels that make up a row's head
    columns: tuple[str, ...] = ()  # labels that make up a column's head
    block: str = ""  # the label whose every value gets its own block of rows
    page: tuple[str, ...] = ()  # blocks shown on the results page; empty: all
    x_label: str = costs()["latency_s"][1].title
    x_column: str = "seconds"  # its name in curves.parquet
    y_label: str = "test accuracy"
    panels: tuple[str, ...] = ()  # order and captions of the panels
    y_log: bool = False
    looks: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # label of no method -> colour and dash


@dataclass(frozen=True)
class Entry:
    """One table or figure."""

    title: str
    place: str  # its place in the paper
    claims: tuple[Claim, ...] = ()
    jobs: Callable[[Scale], Sequence[Job]] = lambda scale: ()
    measure: Callable[[Sequence[Outcome], Scale], Measured] = lambda outcomes, scale: Measured(())
    read_off: Callable[[Sequence[Line]], Sequence[tuple[Labels, float | None]]] = lambda lines: ()
    """Numbers of the first seed that its curves hold: results written before they were measured get them too."""
    published: Mapping[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    form: Form = Form()
    seeds: int = 1  # of a full reproduction
    first_seed: int = 0  # not 0 if settings were chosen by looking at seed 0
    settings: str = ""  # what was run: settings file and what differs from it
    reduced: str = ""  # what is smaller than in the paper, and why

    def scale(self, seeds: int | None, quick: bool) -> Scale:
        """The full scale or the quick one; `seeds` replaces the number of seeds."""
        count = seeds or (1 if quick else self.seeds)
        return Scale(tuple(range(self.first_seed, self.first_seed + count)), quick)

    def book(self, measured: Measured) -> Book:
        """Published and measured numbers under the same labels."""
        found: dict[Any, dict[int, float | None]] = {key: {} for key in self.published}
        for labels, seed, value in measured.values:
            found.setdefault(key_of(labels), {})[seed] = value
        return Book([Number(dict(key), self.published.get(key), values) for key, values in found.items()])

    def judged(self, book: Book) -> list[tuple[Claim, Verdict]]:
        """Every claim with its verdict."""
        return [(claim, claim.rule.judge(book)) for claim in self.claims]


ENTRIES: Final[Registry[Entry]] = Registry("table or figure")


def published(
    rows: Mapping[str, Sequence[float]], columns: Sequence[Mapping[str, str]], **labels: str
) -> dict[Any, float]:
    """Published numbers of a block of a table: one row per method, one column per set of labels.

    >>> published({"FedPer": [912, 867]}, [{"partition": "Class-4"}, {"partition": "Class-2"}], target="80 %")[
    ...     ("method", "FedPer"), ("partition", "Class-2"), ("target", "80 %")]
    867
    """
    return {
        key_of({"method": method, **column, **labels}): value
        for method, values in rows.items()
        for column, value in zip(columns, values, strict=True)
    }
