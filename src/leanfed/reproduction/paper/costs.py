"""Cost tables: latency, energy, bits and TFLOPs at the first crossing of each target accuracy (ToA@X)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leanfed.quantities import costs
from leanfed.reproduction.catalogue import Claim, Entry, Form, Measured, Outcome, published
from leanfed.reproduction.judging import Every, Labels, Share, Trend, key_of, lowest
from leanfed.reproduction.paper.protocol import METHODS, PUBLISHED, Study, curve_of, percent, with_quantity

QUANTITIES = {axis: cost.paper for axis, (_, cost) in costs().items() if cost.paper}  # axis -> label
LATENCY = QUANTITIES["latency_s"]
YARDSTICKS = ("FedPer, equal", "FedPer, min-max", "FedAvg, equal")
ROOM = 1.1  # the paper's share is met within a tenth, either way


def share_of(yardstick: str) -> str:
    """The quantity of latencies as shares of a baseline's."""
    return f"latency over {yardstick}"


def cost_table(
    study: Study, tables: Mapping[Any, float], claims: Sequence[Claim], *, seeds: int = 3, **about: Any
) -> Entry:
    """The entry of a study's cost table."""
    return Entry(
        title=f"Communication and computation costs for {study.dataset}",
        claims=tuple(claims),
        jobs=lambda scale: study.jobs(study.of(METHODS), scale, stop=True),
        measure=lambda outcomes, scale: Measured(cost_values(study, outcomes)),
        published={**tables, **published_shares(study, tables)},
        form=Form(
            rows=("target", "method"),
            columns=("partition",),
            block="quantity",
            page=tuple(share_of(yardstick) for yardstick in YARDSTICKS[:2]),
        ),
        seeds=seeds,
        first_seed=study.first_seed,
        **about,
    )


def cost_values(study: Study, outcomes: Sequence[Outcome]) -> list[tuple[Labels, int, float | None]]:
    """Every cost of every target, and latencies as shares of the baselines'."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed = outcome.job.labels, outcome.job.settings.seed
        for target in study.targets[labels["partition"]]:
            reached = curve_of(outcome).cost_of(target) or {}
            for axis, quantity in QUANTITIES.items():
                values.append((with_quantity(labels, quantity, target=percent(target)), seed, reached.get(axis)))
    return [*values, *_shares(values)]


def _shares(values: Sequence[tuple[Labels, int, float | None]]) -> list[tuple[Labels, int, float | None]]:
    """Latency over each baseline's at the same seed, partition and target, if the baseline reached it."""
    latencies = {
        (v["method"], v["partition"], v["target"], seed): value for v, seed, value in values if v["quantity"] == LATENCY
    }
    shares: list[tuple[Labels, int, float | None]] = []
    for (method, partition, target, seed), value in latencies.items():
        for yardstick in YARDSTICKS:
            base = latencies.get((yardstick, partition, target, seed))
            if base is not None:
                labels = {"method": method, "partition": partition, "target": target, "quantity": share_of(yardstick)}
                shares.append((labels, seed, None if value is None else value / base))
    return shares


def published_costs(
    blocks: Mapping[tuple[str, float], Mapping[str, Sequence[float]]], partitions: Sequence[str]
) -> dict[Any, float]:
    """Blocks (quantity, target) -> method -> one number per partition; FLPDSP-OPT's stand beside the plain form."""
    found: dict[Any, float] = {}
    columns = [{"partition": partition} for partition in partitions]
    for (axis, target), rows in blocks.items():
        labels = {"quantity": QUANTITIES[axis], "target": percent(target)}
        named = {f"{name}, equal": numbers for name, numbers in rows.items() if name != "FLPDSP-OPT"}
        named |= {PUBLISHED: rows["FLPDSP-OPT"]}
        found |= published(named, columns, **labels)
    return found


def published_shares(study: Study, tables: Mapping[Any, float]) -> dict[Any, float]:
    """The published latencies as shares of FedPer's and FedAvg's published latencies."""
    values = [(dict(key), 0, number) for key, number in tables.items()]
    return {tuple(sorted(labels.items())): share for labels, _, share in _shares(values) if share is not None}


def shares(form: str, yardstick: str, study: Study, tables: Mapping[Any, float]) -> Every:
    """FLPDSP-OPT's latency over a yardstick's beside the paper's share, in every column."""
    paper = published_shares(study, tables)
    rules = []
    for number in range(2):
        for partition, targets in study.targets.items():
            labels = {"partition": partition, "target": percent(targets[number]), "quantity": LATENCY}
            ours = {"method": f"FLPDSP-OPT {form}", **labels}
            key = key_of({**labels, "method": PUBLISHED, "quantity": share_of("FedPer, equal")})
            rules.append(Share(ours, {"method": yardstick, **labels}, paper[key], ROOM))
    return Every(tuple(rules))


def soonest(form: str, others: Sequence[str], study: Study, quantity: str = LATENCY) -> Every:
    """FLPDSP-OPT has the lowest cost of all, for all targets and partitions."""
    cells = [
        {"partition": partition, "target": percent(target), "quantity": quantity}
        for partition, targets in study.targets.items()
        for target in targets
    ]
    rules = [
        rule
        for cell in cells
        for rule in lowest(
            {"method": f"FLPDSP-OPT {form}", **cell}, [{"method": other, **cell} for other in others]
        ).rules
    ]
    return Every(tuple(rules))


def grows(form: str, yardstick: str, study: Study, pairs: Sequence[tuple[str, str]]) -> Every:
    """The latency as a share of a baseline's falls from the milder to the stronger heterogeneity of each pair."""
    return Every(
        tuple(
            Trend(
                tuple(
                    {
                        "method": f"FLPDSP-OPT {form}",
                        "partition": partition,
                        "target": percent(study.targets[partition][number]),
                        "quantity": share_of(yardstick),
                    }
                    for partition in pair
                ),
                rising=False,
            )
            for pair in pairs
            for number in range(2)
        )
    )
