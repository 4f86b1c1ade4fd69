"""Theorem 1 on real runs: the corrected bound, the paper's, and the squared gradient norm that they bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Line, Measured, Outcome, Scale
from leanfed.reproduction.judging import Every, Labels, Less
from leanfed.reproduction.paper.protocol import MNIST, OWN, Changes, with_quantity
from leanfed.theory.bound import theorem1
from leanfed.theory.recorded import constants_so_far

PARTITION = "alpha 0.1"
# At 0.1 the learning rate is above 3/L2, where the theorem rewards uploading less; the paper's own is below it.
SETTINGS = ("training.learning_rate=0.01", "theory.every=10", "rounds=100", "evaluation.every=50")
RATES = {"k = 1, r = 1": (1.0, 1.0), "k = 0.1, r = 1": (0.1, 1.0), "k = 1, r = 0.5": (1.0, 0.5)}
WHOLE = "k = 1, r = 1"
METHODS: Mapping[str, Changes] = {
    name: (*OWN, "algorithm.name=flpdsp", f"algorithm.k={k:g}", f"algorithm.r={r:g}", *SETTINGS)
    for name, (k, r) in RATES.items()
}
PAPERS = "bound of Theorem 1, the paper's form"
NORM, BOUND, RATIO = "mean squared gradient norm", "bound of Theorem 1, corrected", "bound / norm"
SAME = f"bound with the constants of {WHOLE}"


def _measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    values: list[tuple[Labels, int, float | None]] = []
    lines: list[Line] = []
    for outcome in outcomes:
        labels, seed = outcome.job.labels, outcome.job.settings.seed
        seen = outcome.run.rounds.filter(pl.col("gradient_norm_sq").is_not_null())
        norm, bound = seen["gradient_norm_sq_mean"].to_numpy(), seen["bound_corrected"].to_numpy()
        found = {NORM: norm[-1], BOUND: bound[-1], RATIO: bound[-1] / norm[-1]}
        values += [(with_quantity(labels, name), seed, float(value)) for name, value in found.items()]
        papers = seen["bound_paper"].to_list()  # empty where eta > 3/L2
        values.append((with_quantity(labels, PAPERS), seed, papers[-1]))
        if labels["method"] == WHOLE:
            values += [
                (with_quantity({**labels, "method": name}, SAME), seed, _bound_at(outcome.run.rounds, *rates))
                for name, rates in RATES.items()
            ]
        if seed == scale.seeds[0]:
            rounds = (seen["round"] + 1).to_list()
            lines += [
                Line(labels["method"], "the bound, corrected", rounds, bound.tolist()),
                Line(labels["method"], "measured, mean so far", rounds, norm.tolist()),
                *([] if None in papers else [Line(labels["method"], "the bound, the paper's", rounds, papers)]),
            ]
    return Measured(values, lines)


def _bound_at(rounds: pl.DataFrame, k: float, r: float) -> float:
    """The bound of Theorem 1 at other rates, with everything else as measured on this run."""
    each = np.ones((rounds.height, 1))
    largest = float(rounds["theory_delta_sq"].drop_nulls().to_numpy().max())
    first_loss = rounds["theory_loss"].drop_nulls()[0]
    return theorem1([first_loss], k * each, r * each, [1.0], constants_so_far(rounds), divergence_sq=largest)


def cell(method: str, quantity: str) -> dict[str, str]:
    """Labels of one number."""
    return {"method": method, "partition": PARTITION, "quantity": quantity}


ENTRIES.add(
    "convergence",
    Entry(
        title="Theorem 1 and the squared gradient norm that it bounds",
        place="Theorem 1, Eq. (26); the paper shows no such figure",
        claims=(
            Claim(
                "the mean squared gradient norm stays below the corrected bound",
                "proved, with two steps that do not hold as written",
                Every(tuple(Less(cell(name, NORM), cell(name, BOUND)) for name in RATES)),
            ),
            Claim(
                "smaller k or smaller r gives a larger bound",
                "said of Theorem 1",
                Every(tuple(Less(cell(WHOLE, SAME), cell(name, SAME)) for name in RATES if name != WHOLE)),
                "it holds for learning rates below 3/L2 only",
            ),
        ),
        jobs=lambda scale: MNIST.jobs(METHODS, scale, partitions=[PARTITION]),
        measure=_measure,
        form=Form(
            rows=("method",),
            block="quantity",
            x_label="rounds",
            x_column="round",
            y_label="squared gradient norm",
            panels=tuple(RATES),
            y_log=True,
            looks={
                "the bound, corrected": (1, "--"),
                "the bound, the paper's": (2, ":"),
                "measured, mean so far": (0, "-"),
            },
        ),
        settings=f"configs/joint_alpha01.toml with fixed k and r and {', '.join(SETTINGS)}",
        reduced="one seed; 8 clients are measured every 10 rounds on 256 of their samples; L1 and L2 are slopes met",
    ),
)
