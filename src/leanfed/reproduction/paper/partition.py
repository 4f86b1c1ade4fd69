"""The best split of LeNet-5 into base and head, for six degrees of heterogeneity."""

from __future__ import annotations

from collections.abc import Sequence

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Job, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Trend, key_of
from leanfed.reproduction.paper.costs import LATENCY
from leanfed.reproduction.paper.protocol import OWN, Study, curve_of

ALPHAS = ("0.1", "0.3", "0.5", "0.7", "1", "2")
SPLITS = {"conv1": 0.0025, "conv2": 0.0417, "conv3": 0.8215, "fc1": 0.9862}  # last layer of the base -> its share of d
BEST = {  # alpha -> (best split, seconds, accuracy) as published
    "0.1": ("conv1", 2784, 0.9938),
    "0.3": ("conv2", 4223, 0.9891),
    "0.5": ("conv3", 4918, 0.9859),
    "0.7": ("conv3", 5541, 0.9826),
    "1": ("fc1", 5866, 0.9785),
    "2": ("fc1", 5979, 0.9668),
}
SHARE, TOP = "share of the best base", "accuracy of the best split"
ROUNDS = 100
LEARNED = 0.8  # what the best splits have to end above, for a best one to mean anything
STUDY = Study(
    dataset="MNIST",
    partitions={f"alpha {alpha}": ("joint_alpha01", (f"task.partition.alpha={alpha}",)) for alpha in ALPHAS},
    targets={},
    quick=("task.dataset=mnist-5k", "task.partition.clients=20", "radio.fleet.bandwidth_hz=2e6", "rounds=60"),
)


def _jobs(scale: Scale) -> list[Job]:
    changes = [*OWN, "algorithm.name=fedper", f"rounds={ROUNDS}", "evaluation.every=50"]
    return [
        STUDY.job("FedPer", [*changes, f"task.split={split}"], partition, seed, scale, split=split)
        for seed in scale.seeds
        for partition in STUDY.partitions
        for split in SPLITS
    ]


def _measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    values: list[tuple[Labels, int, float | None]] = []
    best: dict[tuple[str, int], tuple[float, str]] = {}
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        cell = {"partition": labels["partition"], "split": labels["split"]}
        values.append(({**cell, "quantity": "accuracy"}, seed, curve.accuracy[-1]))
        values.append(({**cell, "quantity": LATENCY}, seed, curve.spent["latency_s"][-1]))
        found = (curve.accuracy[-1], labels["split"])
        best[labels["partition"], seed] = max(best.get((labels["partition"], seed), found), found)
    for (partition, seed), (accuracy, split) in best.items():
        values.append(({"partition": partition, "split": "best", "quantity": TOP}, seed, accuracy))
        values.append(({"partition": partition, "split": "best", "quantity": SHARE}, seed, SPLITS[split]))
    return Measured(values)


def _published() -> dict[tuple[tuple[str, str], ...], float]:
    found = {}
    for alpha, (split, seconds, accuracy) in BEST.items():
        cell = {"partition": f"alpha {alpha}"}
        found[key_of({**cell, "split": split, "quantity": "accuracy"})] = accuracy
        found[key_of({**cell, "split": split, "quantity": LATENCY})] = seconds
        found[key_of({**cell, "split": "best", "quantity": SHARE})] = SPLITS[split]
        found[key_of({**cell, "split": "best", "quantity": TOP})] = accuracy
    return found


def _series(quantity: str) -> tuple[Labels, ...]:
    return tuple({"partition": f"alpha {alpha}", "split": "best", "quantity": quantity} for alpha in ALPHAS)


ENTRIES.add(
    "partition",
    Entry(
        title="The best split of LeNet-5 for six degrees of heterogeneity (MNIST)",
        place="Table: rate of base and personalization layers",
        claims=(
            Claim(
                "the best split moves toward a larger head as alpha falls: the best base's share rises with alpha",
                "0.25 %, 4.17 %, 82.15 %, 82.15 %, 98.62 %, 98.62 % for alpha 0.1 to 2",
                Every(
                    (
                        Trend(_series(SHARE), slack=0.001),  # two neighbours may have the same split
                        *(Bound(top, above=LEARNED) for top in _series(TOP)),
                    )
                ),
            ),
            Claim(
                "the best split's accuracy falls as alpha rises",
                "0.9938, 0.9891, 0.9859, 0.9826, 0.9785, 0.9668",
                Trend(_series(TOP), rising=False, slack=0.002),
            ),
        ),
        jobs=_jobs,
        measure=_measure,
        published=_published(),
        form=Form(rows=("partition",), columns=("split",), block="quantity"),
        settings=f"configs/joint_alpha01.toml, FedPer (k = r = 1) on equal shares, {ROUNDS} rounds",
        reduced=f"one seed, {ROUNDS} rounds (the paper does not say how many; its accuracies need more)",
    ),
)
