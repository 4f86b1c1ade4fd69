"""Figures of loss or accuracy over simulated seconds, one panel per partition, and the numbers read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leanfed.charts.costs import sustained_crossing
from leanfed.files import read_json
from leanfed.reproduction.catalogue import GUESS, Claim, Entry, Form, Line, Measured, Outcome, Scale
from leanfed.reproduction.judging import Every, Labels, Less, above, lowest
from leanfed.reproduction.paper.protocol import (
    EQUAL,
    Study,
    at_time,
    curve_of,
    line_of,
    percent,
    with_quantity,
)
from leanfed.runs.compare import ComparedRun

FINAL, END_LOSS, SHARED_LOSS = "final accuracy", "final loss", "loss when the quickest run ends"
END_F1 = "final pooled F1"
GAIN = "points above the majority guess"
SUSTAINED = "sustained seconds to"  # from then on never more than half a point below
OWN_PACE = "seconds to 95 % of its own final accuracy"
SHOWN = {"f1": "F1"}
GUESSED = {"accuracy": "majority_guess", "f1": "majority_f1"}  # quantity -> its key in a run's summary
LEARNED = 0.05  # what a method has to end above the majority guess, to be said to have learned
Value = tuple[Labels, int, float | None]


def figure(study: Study, quantity: str, claims: Sequence[Claim], **about: Any) -> Entry:
    """The entry of a study's loss or accuracy figure."""
    letters = "abcdefgh"
    return Entry(
        title=f"{SHOWN.get(quantity, quantity.capitalize())} against latency on {study.dataset}",
        claims=tuple(claims),
        jobs=lambda scale: study.jobs(study.of(study.drawn), scale),
        measure=lambda outcomes, scale: measure_curves(study, quantity, outcomes, scale),
        read_off=lambda lines: sustained_of(study, lines) if quantity == "accuracy" else (),
        form=Form(
            rows=("method",),
            columns=("partition",),
            block="quantity",
            y_label=f"test {quantity}" if quantity not in SHOWN else f"pooled {SHOWN[quantity]}",
            y_log=quantity == "loss",  # FedMask starts five times higher than the others
            panels=tuple(f"({letter}) {name}" for letter, name in zip(letters, study.partitions, strict=False)),
        ),
        first_seed=study.first_seed,
        **about,
    )


def measure_curves(study: Study, quantity: str, outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Curves of the first seed, and the numbers of every seed that the claims need."""
    values: list[Value] = []
    lines = []
    panels = {name: f"({letter}) {name}" for letter, name in zip("abcdefgh", study.partitions, strict=False)}
    for (partition, seed), group in grouped(outcomes).items():
        curves = {outcome.job.labels["method"]: curve_of(outcome) for outcome in group}
        values += _numbers(study, quantity, group, curves, seed)
        if seed == scale.seeds[0]:
            lines += [line_of(o, getattr(curve_of(o), quantity), panels[partition]) for o in group]
    return Measured(values, lines)


def grouped(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], list[Outcome]]:
    """Outcomes that may be compared: the same partition and seed."""
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.job.labels["partition"], outcome.job.settings.seed), []).append(outcome)
    return groups


def _numbers(
    study: Study, quantity: str, group: Sequence[Outcome], curves: Mapping[str, ComparedRun], seed: int
) -> list[Value]:
    moment = min(curve.spent["latency_s"][-1] for curve in curves.values())
    values: list[Value] = []
    if quantity in GUESSED:
        beside = cell(GUESS, group[0].job.labels["partition"], END_F1 if quantity == "f1" else FINAL)
        values.append((beside, seed, guess_of(group[0], quantity)))
    for outcome in group:
        labels, curve = outcome.job.labels, curve_of(outcome)
        if quantity == "f1":
            values.append((with_quantity(labels, END_F1), seed, curve.f1[-1]))
            continue
        if quantity == "loss":
            values.append((with_quantity(labels, END_LOSS), seed, curve.loss[-1]))
            early = at_time(curve.spent["latency_s"], curve.loss, moment)
            values.append((with_quantity(labels, SHARED_LOSS), seed, early))
            continue
        values.append((with_quantity(labels, FINAL), seed, curve.accuracy[-1]))
        values.append((with_quantity(labels, "worst decile"), seed, curve.worst_decile[-1]))
        pace = (curve.cost_of(0.95 * curve.accuracy[-1]) or {}).get("latency_s")
        values.append((with_quantity(labels, OWN_PACE), seed, pace))
        for target in study.targets[labels["partition"]]:
            seconds = (curve.cost_of(target) or {}).get("latency_s")
            values.append((with_quantity(labels, f"seconds to {percent(target)}"), seed, seconds))
            kept = (curve.sustained_cost_of(target) or {}).get("latency_s")
            values.append((with_quantity(labels, f"{SUSTAINED} {percent(target)}"), seed, kept))
        if "FedPer, equal" in curves:
            gap = curves["FedPer, equal"].accuracy[-1] - curve.accuracy[-1]
            values.append((with_quantity(labels, "FedPer's lead at the end"), seed, gap))
    return values


def sustained_of(study: Study, lines: Sequence[Line]) -> list[tuple[Labels, float | None]]:
    """Sustained times of every drawn method, from the evaluations that a figure of accuracies holds."""
    methods = {name.removesuffix(", equal"): name for name in study.of(study.drawn)}
    return [
        (
            cell(methods[line.label], partition, f"{SUSTAINED} {percent(target)}"),
            sustained_crossing(line.x, line.y, target),
        )
        for line in lines
        for partition in (line.panel.partition(") ")[2],)
        for target in study.targets[partition]
    ]


def guess_of(outcome: Outcome, quantity: str) -> float:
    """The score of always predicting each client's most frequent label."""
    return float(read_json(outcome.run.folder.summary)[GUESSED[quantity]])


def cell(method: str, partition: str, quantity: str) -> dict[str, str]:
    """Labels of a figure's number."""
    return {"method": method, "partition": partition, "quantity": quantity}


def soonest_in_every_panel(form: str, study: Study, quantity: str = "seconds to") -> Every:
    """FLPDSP-OPT crosses every target before every baseline, for the first time or for good."""
    rules = [
        rule
        for partition, targets in study.targets.items()
        for target in targets
        for rule in lowest(
            cell(f"FLPDSP-OPT {form}", partition, f"{quantity} {percent(target)}"),
            [cell(other, partition, f"{quantity} {percent(target)}") for other in study.of(EQUAL)],
        ).rules
    ]
    return Every(tuple(rules))


def learned(method: str, study: Study, points: float = LEARNED, quantity: str = FINAL) -> tuple[Less, ...]:
    """A method ends above the majority guess in every panel: what is said of its end is said of something learned."""
    return tuple(
        above(cell(method, partition, quantity), cell(GUESS, partition, quantity), -points)
        for partition in study.partitions
    )


def ends_highest(form: str, study: Study, slack: float) -> Every:
    """FLPDSP-OPT's final accuracy is above the others', or below by less than `slack`, and it has learned."""
    method = f"FLPDSP-OPT {form}"
    ahead = (
        above(cell(method, partition, FINAL), cell(other, partition, FINAL), slack)
        for partition in study.partitions
        for other in study.of(EQUAL)
    )
    return Every((*ahead, *learned(method, study)))


def loss_claims(study: Study, forms: Sequence[str]) -> list[Claim]:
    """The paper's claims about a figure of losses."""
    return [
        *(
            Claim(
                f"the loss of FLPDSP-OPT ({form}) is the lowest at equal time: when the quickest run ends",
                "the best time efficiency in all four cases",
                Every(
                    tuple(
                        rule
                        for p in study.partitions
                        for rule in lowest(
                            cell(f"FLPDSP-OPT {form}", p, SHARED_LOSS),
                            [cell(other, p, SHARED_LOSS) for other in study.of(EQUAL)],
                        ).rules
                    )
                ),
            )
            for form in forms
        ),
        Claim(
            "personalised methods (FedPer, LG-FedAvg) end at a lower loss than FedAvg",
            "personalised models handle non-IID data better",
            Every(
                tuple(
                    Less(cell(name, p, END_LOSS), cell("FedAvg, equal", p, END_LOSS))
                    for p in study.partitions
                    for name in ("FedPer, equal", "LG-FedAvg, equal")
                )
            ),
        ),
    ]


def in_order(worse: str, better: str, quantity: str, study: Study, slack: float = 0.0) -> Every:
    """The first method's number is above the second's in every panel (costs: slower; gaps: wider)."""
    return Every(
        tuple(
            Less(cell(better, partition, quantity), cell(worse, partition, quantity), slack)
            for partition in study.partitions
        )
    )
