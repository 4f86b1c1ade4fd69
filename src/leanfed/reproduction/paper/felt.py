"""CIFAR-10 where the limits are felt: ResNet-20, ten of 100 clients a round on 1 MHz, deadline at FedPer's median.

PROTOCOL.md, next to the catalogue, says what was fixed before the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from leanfed.reproduction.catalogue import ENTRIES, GUESS, Claim, Entry, Form, Job, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Less, above
from leanfed.reproduction.paper.fair import AIDED
from leanfed.reproduction.paper.figures import cell
from leanfed.reproduction.paper.protocol import (
    EQUAL,
    OPT,
    OWN,
    Changes,
    Study,
    at_time,
    curve_of,
    line_of,
    seconds_to,
    with_quantity,
)

STUDY: Final = Study(
    dataset="CIFAR-10",
    partitions={
        "Class-2": ("felt_cifar10", ()),
        "alpha 0.1": ("felt_cifar10", ('task.partition={kind = "dirichlet", alpha = 0.1, clients = 100}',)),
    },
    targets={"Class-2": (0.7, 0.8), "alpha 0.1": (0.7, 0.8)},  # the paper's
    quick=("rounds=1", "training.batch_size=8", "training.local_steps=1", "evaluation.clients=10"),
)
FAST, TUNED = "FLPDSP-OPT fast", "FLPDSP-OPT tuned"
WITH_AIDS = ("FLPDSP, k = 0.05, fastest 60 %", "LG-FedAvg, k = 0.05 + feedback + pace")  # the strongest elsewhere
# In the order in which they are worth having.
ROWS: Final[Mapping[str, Changes]] = {
    FAST: OPT[FAST],
    "FedPer, equal": EQUAL["FedPer, equal"],
    "LG-FedAvg, equal": EQUAL["LG-FedAvg, equal"],
    "Local": (*OWN, "algorithm.name=local"),
    TUNED: ("allocation.form=tuned",),
    **{row: AIDED[row] for row in WITH_AIDS},
    "FLPDSP-OPT safe": OPT["FLPDSP-OPT safe"],
    "FedRep, equal": (*OWN, "algorithm.name=fedrep"),
    "FLPDSP-OPT plain": OPT["FLPDSP-OPT plain"],
    "FedAvg-S, equal": EQUAL["FedAvg-S, equal"],
    "FedAvg, equal": EQUAL["FedAvg, equal"],
}
BASELINES: Final = tuple(row for row in ROWS if not row.startswith("FLPDSP-OPT"))
FINAL, MOMENT = "accuracy, mean of the last three", "accuracy after 300 s"


def jobs(scale: Scale) -> list[Job]:
    """Row by row on both partitions."""
    return [
        STUDY.job(row, changes, partition, seed, scale)
        for seed in scale.seeds
        for row, changes in ROWS.items()
        for partition in STUDY.partitions
    ]


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Seconds to the targets, by sustained and first crossings, and ends."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        found: dict[str, float | None] = {FINAL: float(np.mean(curve.accuracy[-3:])), GUESS: curve.majority_guess}
        found[MOMENT] = at_time(curve.spent["latency_s"], curve.accuracy, 300.0)
        found["seconds in all"], found["joules in all"] = curve.spent["latency_s"][-1], curve.spent["energy_j"][-1]
        found |= seconds_to(curve, STUDY.targets[labels["partition"]])
        values += [(with_quantity(labels, name), seed, value) for name, value in found.items()]
    lines = [
        line_of(outcome, curve_of(outcome).accuracy, outcome.job.labels["partition"])
        for outcome in outcomes
        if outcome.job.settings.seed == scale.seeds[0]
    ]
    return Measured(values, lines)


ENTRIES.add(
    "cifar10-felt",
    Entry(
        title="CIFAR-10 where the limits are felt (ResNet-20, 1 MHz)",
        place="not in the paper",
        claims=(
            *(
                Claim(
                    f"{said} keeps 70 % sooner than every baseline, aided or not",
                    paper,
                    Every(
                        tuple(
                            Less(
                                cell(form, p, "seconds to 70 %, sustained"),
                                cell(row, p, "seconds to 70 %, sustained"),
                            )
                            for p in STUDY.partitions
                            for row in BASELINES
                        )
                    ),
                )
                for form, said, paper in (
                    (FAST, "FLPDSP-OPT (fast)", "its share of FedPer's seconds: 0.52 on Class-2, 0.39 at alpha 0.1"),
                    (TUNED, "the tuned form", "not reported"),
                )
            ),
            Claim(
                "FLPDSP-OPT (fast) ends above a model of the client's own and above the majority guess",
                "not reported",
                Every(
                    tuple(
                        above(cell(FAST, p, FINAL), other)
                        for p in STUDY.partitions
                        for other in (cell("Local", p, FINAL), cell(FAST, p, GUESS))
                    )
                ),
            ),
            Claim(
                "FLPDSP-OPT (plain) learns: it ends above 60 %",
                "above 80 %",
                Every(tuple(Bound(cell("FLPDSP-OPT plain", p, FINAL), above=0.6) for p in STUDY.partitions)),
            ),
        ),
        jobs=jobs,
        measure=measure,
        form=Form(rows=("method",), columns=("partition",), block="quantity", panels=tuple(STUDY.partitions)),
        first_seed=20,
        settings="configs/felt_cifar10.toml; baselines with algorithm.name and allocation.rule = own",
        reduced="ResNet-20 in place of ResNet-18, computed in bfloat16; 70 rounds of three steps; one seed",
    ),
)
