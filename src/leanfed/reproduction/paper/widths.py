"""Beyond the paper: a fleet of models of four widths against whole and against narrow ones (CIFAR-10, ResNet-18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from leanfed.reproduction.catalogue import ENTRIES, GUESS, Claim, Entry, Form, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Ratio, above
from leanfed.reproduction.paper.protocol import Changes, Study, curve_of, line_of, with_quantity

PARTITION = "Class-2"
STUDY: Final = Study(
    dataset="CIFAR-10",
    partitions={PARTITION: ("widths_small", ())},
    targets={},
    quick=("rounds=2", "evaluation.every=1", "training.batch_size=8", "training.local_steps=1"),
)
FULL, MIXED, HALF, QUARTER = "all whole", "a quarter each at 0.25, 0.5, 0.75, 1", "all at 0.5", "all at 0.25"
ROWS: Final[Mapping[str, Changes]] = {
    FULL: ("width.shares=[1.0]",),
    MIXED: (),
    HALF: ("width.shares=[0.5]",),
    QUARTER: ("width.shares=[0.25]",),
}
LAST = 3  # evaluations whose mean is an end
FINAL, SECONDS, IN_ALL = "accuracy, mean of the last three", "sustained seconds to the target", "seconds in all"


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Ends, seconds, and seconds to halfway between the guess and the end of whole models."""
    values: list[tuple[Labels, int, float | None]] = []
    ends = {
        outcome.job.settings.seed: float(np.mean(curve_of(outcome).accuracy[-LAST:]))
        for outcome in outcomes
        if outcome.job.labels["method"] == FULL
    }
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        found: dict[str, float | None] = {FINAL: float(np.mean(curve.accuracy[-LAST:])), GUESS: curve.majority_guess}
        found["worst decile"] = float(np.mean(curve.worst_decile[-LAST:]))
        found |= {IN_ALL: curve.spent["latency_s"][-1], "joules in all": curve.spent["energy_j"][-1]}
        if seed in ends:
            spent = curve.sustained_cost_of((curve.majority_guess + ends[seed]) / 2)
            found[SECONDS] = None if spent is None else spent["latency_s"]
        values += [(with_quantity(labels, name), seed, value) for name, value in found.items()]
    first = [outcome for outcome in outcomes if outcome.job.settings.seed == scale.seeds[0]]
    return Measured(values, [line_of(outcome, curve_of(outcome).accuracy, PARTITION) for outcome in first])


def cell(method: str, quantity: str) -> dict[str, str]:
    """Labels of one number."""
    return {"method": method, "partition": PARTITION, "quantity": quantity}


LEARNED: Final = Bound(cell(MIXED, FINAL), above=0.6)  # ten points above the guess

ENTRIES.add(
    "widths",
    Entry(
        title="Models of four widths in one fleet (CIFAR-10, ResNet-18, reduced)",
        place="not in the paper",
        claims=(
            Claim(
                "a quarter of the clients each at widths 0.25, 0.5, 0.75 and 1 ends within two points of all whole",
                "not reported",
                Every((above(cell(MIXED, FINAL), cell(FULL, FINAL), 0.02), LEARNED)),
            ),
            Claim(
                "the mixed fleet keeps halfway between the guess and the end of all whole sooner",
                "not reported",
                Ratio(cell(MIXED, SECONDS), cell(FULL, SECONDS), 1.0),
            ),
            Claim(
                "the mixed fleet takes less simulated time for as many rounds",
                "not reported",
                Every((Ratio(cell(MIXED, IN_ALL), cell(FULL, IN_ALL), 1.0), LEARNED)),
            ),
            *(
                Claim(f"the mixed fleet ends above all at {width}", "not reported", above(cell(MIXED, FINAL), narrow))
                for width, narrow in (("0.25", cell(QUARTER, FINAL)), ("0.5", cell(HALF, FINAL)))
            ),
            Claim("whole models learn: they end above 65 %", "not reported", Bound(cell(FULL, FINAL), above=0.65)),
        ),
        jobs=lambda scale: STUDY.jobs(ROWS, scale),
        measure=measure,
        form=Form(rows=("method",), columns=("partition",), block="quantity", panels=(PARTITION,)),
        seeds=3,
        first_seed=60,
        settings="configs/widths_small.toml with width.shares as the rows say; FedPer, charged by operations",
        reduced=(
            "ResNet-18 with the ImageNet stem at 32x32 (a fifteenth of the arithmetic), 12 clients of two classes with "
            "400 training and 80 test samples each, six a round, 24 rounds of two steps on 16 samples"
        ),
    ),
)
