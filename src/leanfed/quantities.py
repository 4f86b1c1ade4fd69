"""The one schema of rows: each column's type, unit, label, how it adds up, and since which version it is written.

Tables, axes, pages and summaries read it; nothing else names a unit or a label of a column. A new column is one line
of `COLUMNS` and the place that computes it (CONTRIBUTING, "A row column").

>>> SCHEMA["upload_bits"].cost.head
'uploads [Gbit]'
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

R, C, E = ("rounds",), ("clients",), ("evaluations",)  # the tables
Rule = Literal["sum", "max", "mean", "last", "count", "none"]


@dataclass(frozen=True)
class Cost:
    """How a column is shown as a cost that accuracy is set against; what is left empty follows from the column."""

    axis: str = ""  # its key in JSON
    scale: float = 1.0  # so many stored units are one that is shown
    unit: str = ""  # the unit that is shown
    plotted: bool = True  # curves are drawn over it; else it is in the tables of targets only
    head: str = ""  # of a table's column
    narrow: str = ""  # the same where many columns stand side by side
    title: str = ""  # of an axis, on the page and in papers
    short: str = ""  # one word: choices on the page, names of files
    word: str = ""  # heading in the terminal
    picture: str = ""  # under the pictures of `leanfed compare`
    brief: str = ""  # heading of the live table
    said: str = ""  # after a number in a line of text
    ended: str = ""  # before the number at the end of a run
    paper: str = ""  # in the paper's cost tables; empty: they lack it

    def of(self, quantity: Quantity) -> Cost:
        """With every text filled in."""
        unit, label = self.unit or quantity.unit, quantity.label
        short, head = self.short or label, self.head or f"{label} [{unit}]"
        word = self.word or self.short or head
        return replace(
            self,
            axis=self.axis or quantity.name,
            unit=unit,
            head=head,
            narrow=self.narrow or head,
            title=self.title or f"{label} of all clients [{unit}]",
            short=short,
            word=word,
            picture=self.picture or f"{word}, all clients",
            brief=self.brief or unit,
            said=self.said or unit,
            ended=self.ended or label,
        )


@dataclass(frozen=True)
class Score:
    """How a column is shown that says how good a model is."""

    picture: str  # beside the curves of pictures and paper figures
    title: str = ""  # beside the curves of the page; empty: not drawn there
    better: Literal["up", "down"] = "up"


@dataclass(frozen=True)
class Quantity:
    """One column of the rows, or one number of the summary where it has no table."""

    name: str
    tables: Sequence[str]
    type: type[int] | type[float]
    unit: str  # as stored; 1: a rate or a share
    label: str
    over_clients: Rule = "none"  # makes the round's value of the participants'
    over_rounds: Rule = "none"  # makes the run's value of the rounds'
    in_summary: bool = False
    cost: Cost | None = None
    score: Score | None = None
    since: str = "0.1.0"

    def __post_init__(self) -> None:
        if self.cost is not None:
            object.__setattr__(self, "cost", self.cost.of(self))


# fmt: off
ROUNDS = Cost("rounds", head="rounds", title="rounds", short="rounds", picture="rounds")
SECONDS = Cost(short="seconds", narrow="time [s]", title="simulated time [s]", picture="simulated seconds",
               brief="sim s", said="simulated s", paper="latency (s)")
JOULES = Cost(short="joules", brief="joules", paper="energy (J)")
GIGABITS = Cost("gigabits", 1e9, "Gbit", short="bits", word="gigabits", picture="uplink gigabits, all clients",
                ended="uploaded", paper="uplink (Gbit)")
TFLOPS = Cost("tflops", 1e12, "TFLOP", plotted=False, short="TFLOPs", ended="computed", paper="TFLOPs")
FOOLED = Score("backdoor success", "marked pictures taken for the target, honest clients", "down")
ACCURACY = Score("test accuracy", "test accuracy, mean over clients")
LOSS = Score("test loss", "test loss, mean over clients", "down")
MAE = Score("mean absolute error", "mean absolute error, mean over clients", "down")
RMSE = Score("root mean square error", "root mean square error over clients", "down")
PERPLEXITY = Score("perplexity", "perplexity, exp of the mean loss over clients", "down")
WORST = Score("accuracy, worst decile", "test accuracy, worst tenth of clients")

# What clients measure of the vector that entries are chosen from: column -> keep rate.
KEPT: Final = {"kept_0003": 0.003, "kept_001": 0.01, "kept_003": 0.03, "kept_01": 0.1, "kept_03": 0.3}

FURTHER: Final = ("rmse", "perplexity", "attack_success")  # scores of some runs, beside accuracy, loss, mae and F1

COLUMNS: Final = (
    Quantity("round", R + C + E, int, "1", "round", over_rounds="count", cost=ROUNDS),
    Quantity("client", C + E, int, "1", "client"),
    Quantity("participants", R, int, "1", "participants"),
    Quantity("train_loss", R, float, "1", "training loss"),
    Quantity("samples", R + C, int, "1", "training samples", "sum", "sum"),
    Quantity("entries", R + C, int, "1", "entries sent", "sum", "sum"),
    Quantity("k_mean", R, float, "1", "mean keep rate of the base gradient"),
    Quantity("r_mean", R, float, "1", "mean keep rate of the head"),
    Quantity("k", C, float, "1", "keep rate of the base gradient"),
    Quantity("r", C, float, "1", "keep rate of the head"),
    Quantity("share", C, float, "1", "share of the band"),
    Quantity("width", C, float, "1", "share of the model's channels, where clients have narrower ones", since="0.2.0"),
    Quantity("weight", C, float, "1", "weight in the update, where a rule chooses it", since="0.2.0"),
    Quantity("accuracy", R + C + E, float, "1", "accuracy", "none", "last", in_summary=True, score=ACCURACY),
    Quantity("loss", R + C + E, float, "1", "loss", "none", "last", in_summary=True, score=LOSS),
    Quantity("interval", R, float, "1", "half of the 95 % interval", "none", "last", in_summary=True, since="0.2.0"),
    Quantity("worst_decile", R, float, "1", "worst decile", "none", "last", in_summary=True, score=WORST),
    *(Quantity(name, R, float, "1", f"squared norm in the largest {100 * rate:g} % of entries", since="0.2.0")
      for name, rate in KEPT.items()),
    Quantity("head_contraction", R, float, "1", "factor of a head's gradient in one step", since="0.2.0"),
    Quantity("head_steps", R, int, "1", "head steps on a batch, where they are planned", since="0.2.0"),
    Quantity("majority_guess", R, float, "1", "majority guess", "none", "last", in_summary=True),
    Quantity("mae", R + C + E, float, "1", "mean absolute error", "none", "last", in_summary=True, score=MAE),
    Quantity("rmse", R, float, "1", "root mean square error", "none", "last", in_summary=True, score=RMSE),
    Quantity("perplexity", R, float, "1", "perplexity", "none", "last", in_summary=True, score=PERPLEXITY),
    Quantity("constant_guess", R, float, "1", "best constant guess", "none", "last", in_summary=True),
    Quantity("f1", R, float, "1", "pooled F1", "none", "last", in_summary=True, score=Score("pooled F1")),
    Quantity("majority_f1", (), float, "1", "F1 of the majority guess", in_summary=True),
    Quantity("latency_s", R, float, "s", "simulated time", "none", "sum", in_summary=True, cost=SECONDS),
    Quantity("communication_s", C, float, "s", "upload time"),
    Quantity("computation_s", C, float, "s", "computation time"),
    Quantity("energy_j", R + C, float, "J", "energy", "sum", "sum", in_summary=True, cost=JOULES),
    Quantity("upload_bits", R + C, float, "bit", "uploads", "sum", "sum", in_summary=True, cost=GIGABITS),
    Quantity("exact_bits", R + C, float, "bit", "exact count (entropy bound)", "sum", "sum"),
    Quantity("paper_bits", R + C, float, "bit", "the paper's count", "sum", "sum"),
    Quantity("coded_bits", R + C, float, "bit", "coded bytes on the wire", "sum", "sum"),
    Quantity("download_bits", R, float, "bit", "broadcast", "none", "sum"),
    Quantity("flops", R + C, float, "FLOP", "computation", "sum", "sum", in_summary=True, cost=TFLOPS),
    Quantity("attack_success", R, float, "1", "backdoor success", "none", "last", in_summary=True, score=FOOLED,
             since="0.2.0"),
    Quantity("epsilon", R, float, "1", "privacy spent (epsilon)", "none", "last", in_summary=True, since="0.2.0"),
    # Theorem 1, where it is measured.
    Quantity("gradient_norm_sq", R, float, "1", "squared gradient norm"),
    *(Quantity(f"theory_{name}", R, float, "1", f"{name} of Theorem 1") for name in (
        "eta", "k", "root", "loss", "l1", "l2", "g_sq", "m", "sigma_sq", "delta_sq")),
    Quantity("gradient_norm_sq_mean", R, float, "1", "mean squared gradient norm", "none", "last"),
    Quantity("bound_corrected", R, float, "1", "corrected bound", "none", "last"),
    Quantity("bound_paper", R, float, "1", "the paper's bound", "none", "last"),
    # A fleet of real devices measures, beside what the model predicts:
    Quantity("elapsed_s", R + C, float, "s", "from sending orders to the last (round) or this (client) answer"),
    Quantity("ready_s", C, float, "s", "to load data, head and base"),
    Quantity("train_s", C, float, "s", "training on the device"),
    Quantity("test_s", C, float, "s", "evaluation on the device"),
    Quantity("upload_s", C, float, "s", "until the server saw the answer, less what an empty answer takes"),
    Quantity("frame_bytes", C, float, "byte", "coded update"),
    Quantity("base_bytes", R + C, float, "byte", "base or differences sent down", "sum", "sum", since="0.2.0"),
    Quantity("message_bytes", R + C, float, "byte", "whole answers", "sum", "sum"),
    Quantity("measured_j", C, float, "J", "measured energy, where the platform tells"),
    Quantity("prediction_error", R + C, float, "1", "predicted over measured seconds, less one", since="0.2.0"),
    Quantity("uncertainty_s", C, float, "s", "by how much the link's predicted seconds may be wrong", since="0.2.0"),
    *(Quantity(name, R, float, "1", f"clients {name}") for name in ("tested", "refused", "late", "lost")),
)
# fmt: on
SCHEMA: Final[dict[str, Quantity]] = {quantity.name: quantity for quantity in COLUMNS}


def add(quantity: Quantity) -> None:
    """One more column, for those who do not want to change this file."""
    if quantity.name in SCHEMA:
        raise ValueError(f"column {quantity.name!r} is there already: {SCHEMA[quantity.name]}")
    SCHEMA[quantity.name] = quantity


def type_of(name: str) -> type[int] | type[float]:
    """What a column holds; one without a line here is a fault of whoever writes it."""
    if name not in SCHEMA:
        raise ValueError(f"column {name!r} has no line in leanfed/quantities.py")
    return SCHEMA[name].type


def costs(*, plotted: bool = False) -> dict[str, tuple[Quantity, Cost]]:
    """Column and look of every cost by its axis: rounds first, but last where curves are plotted."""
    found = [(quantity, quantity.cost) for quantity in SCHEMA.values() if quantity.cost]
    if plotted:
        found = sorted((each for each in found if each[1].plotted), key=lambda each: each[0].over_rounds == "count")
    return {cost.axis: (quantity, cost) for quantity, cost in found}


def spent(*, plotted: bool = False) -> dict[str, Cost]:
    """The costs that are sums over rounds, by column."""
    return {quantity.name: cost for quantity, cost in costs(plotted=plotted).values() if quantity.over_rounds == "sum"}


def scores() -> dict[str, tuple[Quantity, Score]]:
    """What says how good a model is, by column."""
    return {quantity.name: (quantity, quantity.score) for quantity in SCHEMA.values() if quantity.score}


MAIN: Final = ("accuracy", "mae", "loss")  # what a run is judged by: the first of these that it has


def main_score(known: Container[str]) -> str:
    """The score that runs with these columns are judged by, compared by, and set against their best constant guess.

    >>> main_score({"loss", "mae", "rmse"})
    'mae'
    """
    return next((name for name in MAIN if name in known), MAIN[0])


def guess_of(main: str) -> str:
    """The column with the score of the best constant guess; by accuracy that is the majority guess."""
    return "majority_guess" if main == "accuracy" else "constant_guess"


def rises(name: str) -> bool:
    """Whether more of a score is better."""
    score = SCHEMA[name].score
    return score is None or score.better == "up"


def summarised(*rules: Rule) -> list[Quantity]:
    """What a summary holds, by how it is made of the rounds; everything where no rule is named."""
    return [q for q in SCHEMA.values() if q.in_summary and (not rules or q.over_rounds in rules)]


def in_order(names: Iterable[str]) -> list[str]:
    """Columns in the order of the schema."""
    places = {name: place for place, name in enumerate(SCHEMA)}
    return sorted(names, key=lambda name: places.get(name, len(places)))
