"""A run as Python sees it: its numbers, its rows, its folder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from leanfed.quantities import SCHEMA, guess_of, main_score, spent, summarised
from leanfed.runs.settings import Settings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Run:
    """A run: its settings, its numbers, its rows, and its folder if it has one.

    `finished` tells whether it went to its end; the summary of one that did not is that of its rounds so far.
    """

    settings: Settings
    summary: dict[str, Any]
    rounds: pl.DataFrame
    clients: pl.DataFrame
    folder: Path | None = None
    finished: bool = True

    @property
    def accuracy(self) -> float:
        """Final gamma-weighted test accuracy; NaN where accuracy is no score of the task."""
        return math.nan if self.summary.get("accuracy") is None else float(self.summary["accuracy"])

    @property
    def main(self) -> str:
        """The score that the run is judged by: accuracy, else mae, else loss."""
        return main_score({name for name, value in self.summary.items() if value is not None})

    @property
    def score(self) -> float:
        """The final value of the score that the run is judged by; NaN before the first evaluation."""
        value = self.summary.get(self.main)
        return math.nan if value is None else float(value)

    @property
    def guess(self) -> float:
        """The same score of the best constant guess, which a model must beat."""
        value = self.summary.get(guess_of(self.main))
        return math.nan if value is None else float(value)

    def to_pandas(self, table: Literal["rounds", "clients"] = "rounds") -> pd.DataFrame:
        """The rows of a table as a pandas DataFrame; unlike polars' own method it does without pyarrow."""
        import pandas as pd

        rows: pl.DataFrame = getattr(self, table)
        return pd.DataFrame({column.name: column.to_numpy() for column in rows})

    def _facts(self) -> dict[str, str]:
        """What a reader wants to see first, by name."""
        facts = {}
        if not math.isnan(self.score):
            facts = {
                SCHEMA[self.main].label: f"{self.score:.4g}",
                SCHEMA[guess_of(self.main)].label: f"{self.guess:.4g}",
            }
        costs = spent(plotted=True)
        for quantity in summarised("sum"):
            value = self.summary.get(quantity.name)
            if quantity.name in costs and value is not None:
                cost = costs[quantity.name]
                facts[cost.ended or quantity.label] = f"{value / cost.scale:.4g} {cost.unit}"
        return facts

    def _title(self) -> str:
        known, rounds = self.summary, self.rounds.height
        done = f"{rounds} rounds" if self.finished else f"{rounds} of {self.settings.rounds} rounds"
        return f"{known['algorithm']} on {known['dataset']} ({known['partition']}), {done}"

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        where = "" if self.folder is None else f" in {str(self.folder)!r}"
        return f"<Run {self.settings.name!r}: {self._title()}: {facts or 'not evaluated yet'}{where}>"

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._facts().items()
        )
        where = "" if self.folder is None else f"<br><code>{escape(str(self.folder))}</code>"
        title = f"<b>{escape(self.settings.name)}</b>: {escape(self._title())}{where}"
        return f"<table><caption>{title}</caption>{rows}</table>"
