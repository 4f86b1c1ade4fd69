"""The paper's parameter table taken literally: 100 rounds of one step at learning rate 0.01."""

from __future__ import annotations

from collections.abc import Sequence

from leanfed.reproduction.catalogue import ENTRIES, GUESS, Claim, Entry, Form, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every
from leanfed.reproduction.paper.protocol import EQUAL, MNIST, OPT, curve_of, line_of, with_quantity

LITERAL = ("training.learning_rate=0.01", "rounds=100", "evaluation.every=10")
METHODS = {
    name: (*changes, *LITERAL)
    for name, changes in {**OPT, **EQUAL}.items()
    if name in ("FLPDSP-OPT safe", "FLPDSP-OPT plain", "FedPer, equal", "FedAvg, equal")
}
PARTITIONS = ("Class-2", "alpha 0.1")
FINAL = "final accuracy"


def _measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    values = []
    for outcome in outcomes:
        curve, seed = curve_of(outcome), outcome.job.settings.seed
        values.append((with_quantity(outcome.job.labels, FINAL), seed, curve.accuracy[-1]))
        values.append((with_quantity(outcome.job.labels, GUESS), seed, curve.majority_guess))
    lines = [
        line_of(outcome, curve_of(outcome).accuracy, outcome.job.labels["partition"])
        for outcome in outcomes
        if outcome.job.settings.seed == scale.seeds[0]
    ]
    return Measured(values, lines)


def cell(method: str, partition: str) -> dict[str, str]:
    """Labels of a final accuracy."""
    return {"method": method, "partition": partition, "quantity": FINAL}


ENTRIES.add(
    "literal",
    Entry(
        title="The paper's parameter table taken literally (MNIST)",
        place="Table: simulation parameters (T = 100, learning rate 0.01, batch size 32)",
        claims=(
            Claim(
                "100 rounds of one step at learning rate 0.01 reach 90 %",
                "its tables reach 90 % on both splits, and 98 to 99 % elsewhere",
                Every(tuple(Bound(cell(m, p), above=0.9) for p in PARTITIONS for m in METHODS)),
                "its tables fit hundreds to thousands of such rounds, or local epochs; all other entries use 0.1",
            ),
        ),
        jobs=lambda scale: MNIST.jobs(METHODS, scale, partitions=PARTITIONS),
        measure=_measure,
        first_seed=MNIST.first_seed,
        form=Form(rows=("method",), columns=("partition",), block="quantity", panels=PARTITIONS),
        settings=f"configs/joint_*.toml with {', '.join(LITERAL)}",
        reduced="one seed, evaluated every 10 rounds",
    ),
)
