"""Beyond the paper: what values in 8, 4 or 1 bits save, and what they cost (MNIST, the damped fast form)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Ratio, above
from leanfed.reproduction.paper.fair import DAMPED_FAST, LAST, PROTOCOL, ROWS, end_of
from leanfed.reproduction.paper.protocol import MNIST, Changes, curve_of, percent, with_quantity

PARTITIONS = ("Class-2", "alpha 0.1")


def row(kind: str) -> str:
    """The row of a code."""
    return f"{DAMPED_FAST}, {kind}"


METHODS: Final[Mapping[str, Changes]] = {
    row(kind): (*ROWS[DAMPED_FAST], *PROTOCOL, f"radio.values={kind}") for kind in ("float32", "log8", "log4", "sign")
}
SECONDS, MEGABITS = "sustained seconds to the target", "megabits to the target, sustained"
ACCURACY, WORST, END = "accuracy", "worst decile", "end"
LEARNED = 0.9  # what the run in 32 bits has to end above


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Seconds and bits to the targets, and ends as means of the last evaluations."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        for target in MNIST.targets[labels["partition"]]:
            spent = curve.sustained_cost_of(target)
            bits = None if spent is None else 1e3 * spent["gigabits"]
            found = {SECONDS: None if spent is None else spent["latency_s"], MEGABITS: bits}
            values += [(with_quantity(labels, name, target=percent(target)), seed, v) for name, v in found.items()]
        ends = {ACCURACY: end_of(curve), WORST: float(np.mean(curve.worst_decile[-LAST:]))}
        values += [(with_quantity(labels, name, target=END), seed, value) for name, value in ends.items()]
    return Measured(values)


def cell(method: str, partition: str, quantity: str, target: str = END) -> dict[str, str]:
    """Labels of one number."""
    return {"method": method, "partition": partition, "quantity": quantity, "target": target}


def _ratios(kind: str, quantity: str, below: float) -> Every:
    """A code over float32 to both targets on both partitions."""
    return Every(
        tuple(
            Ratio(cell(row(kind), p, quantity, percent(t)), cell(row("float32"), p, quantity, percent(t)), below)
            for p in PARTITIONS
            for t in MNIST.targets[p]
        )
    )


def _claims(kind: str, since: str = "") -> Iterator[Claim]:
    """What a code is to save, and not to lose."""
    said, whole = "not reported", {p: cell(row("float32"), p, ACCURACY) for p in PARTITIONS}
    bits = f"{kind} keeps 80 % and 90 % for at most 0.3 of the bits of float32"
    yield Claim(bits + since, said, _ratios(kind, MEGABITS, 0.3))
    soon = f"{kind} keeps 80 % and 90 % as soon as float32, within 5 %"
    yield Claim(soon + since, said, _ratios(kind, SECONDS, 1.05))
    level = tuple(above(cell(row(kind), p, ACCURACY), whole[p], 0.005) for p in PARTITIONS)
    learned = tuple(Bound(whole[p], above=LEARNED) for p in PARTITIONS)
    yield Claim(f"{kind} ends within half a point of float32" + since, said, Every((*level, *learned)))


ENTRIES.add(
    "values",
    Entry(
        title="Values in 32, 8, 4 and 1 bits (MNIST)",
        place="not in the paper",
        claims=(*_claims("log8"), *_claims("log4", since=" (claimed after its numbers were seen)")),
        jobs=lambda scale: MNIST.jobs(METHODS, scale, partitions=PARTITIONS),
        measure=measure,
        form=Form(rows=("method",), columns=("partition", "target"), block="quantity"),
        seeds=5,
        first_seed=30,
        settings=(
            "configs/joint_class2.toml and joint_alpha01.toml with the headline's damped fast form, tested after every "
            "round; error feedback remembers what rounding takes; nothing was tuned for coded values"
        ),
    ),
)
