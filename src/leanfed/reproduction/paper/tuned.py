"""Beyond the paper: the form that measures what its choices are worth, against rules and forms with constants.

PROTOCOL.md, next to the catalogue, says what was fixed before the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Job, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Less, Ratio
from leanfed.reproduction.paper.fair import AIDED, DAMPED, FAST, LAST, ROWS, end_of
from leanfed.reproduction.paper.protocol import MNIST, Changes, curve_of, percent, with_quantity

PARTITIONS = ("Class-4", "alpha 0.1")
RATE: Final[Changes] = ("training.learning_rate=0.3",)  # what `fair-development` chose for every damped row
TUNED, FASTEST_60, FEDPER = "FLPDSP-OPT tuned", "FLPDSP, k = 0.05, fastest 60 %", "FedPer + head steps + pace"
EVERYONE = "FLPDSP, k = 0.05"  # the same rule, but everybody is waited for
TURNS = "FLPDSP, k = 0.05, fastest 60 % with turns"  # and everybody once in ten rounds, as the planner asks them
METHODS: Final[Mapping[str, Changes]] = {
    TUNED: ("allocation.form=tuned", "algorithm.name=flpdsp", *DAMPED, *RATE),
    FAST: (*ROWS[FAST], *DAMPED, *RATE),
    FASTEST_60: (*AIDED[FASTEST_60], *DAMPED, *RATE),
    EVERYONE: (*AIDED[EVERYONE], *DAMPED, *RATE),
    FEDPER: (*AIDED[FEDPER], *DAMPED, *RATE),
}
WITH_TURNS: Final[Changes] = (*METHODS[FASTEST_60], "allocation.wait=turns")
# Fleet -> what it changes, and the simulated seconds after which its runs end.
PAPERS, NARROW, SLOW = "the paper's", "1 MHz", "a fifth ten times slower"
FLEETS: Final[Mapping[str, tuple[Changes, float]]] = {
    PAPERS: ((), 30.0),
    NARROW: (("radio.fleet.bandwidth_hz=1e6",), 50.0),
    SLOW: (("radio.fleet.slow_share=0.2", "allocation.deadline_s=10.0", "allocation.energy_budget_j=10.0"), 60.0),
}
TARGETS = (0.8, 0.9, 0.95, 0.97)
SECONDS, JOULES = "sustained seconds to the target", "energy to the target (J), sustained"
ACCURACY, WORST, TAKING, STEPS, KEPT, END = "accuracy", "worst decile", "participants", "head steps", "mean k", "end"


def jobs(scale: Scale) -> Iterator[Job]:
    """Every method on every fleet, partition and seed."""
    for seed in scale.seeds:
        for fleet, (changes, seconds) in FLEETS.items():
            last = (*changes, "rounds=400", "evaluation.every=2", f"run.stop_at_seconds={seconds}")
            for partition in PARTITIONS:
                rows = {**METHODS, TURNS: WITH_TURNS} if fleet == SLOW else METHODS
                for method, own in rows.items():
                    yield MNIST.job(method, (*own, *last), partition, seed, scale, fleet=fleet)


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Seconds and joules to the targets; ends at equal seconds; what was chosen on average."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        for target in TARGETS:
            kept = curve.sustained_cost_of(target) or {}
            found = {SECONDS: kept.get("latency_s"), JOULES: kept.get("energy_j")}
            values += [(with_quantity(labels, name, target=percent(target)), seed, v) for name, v in found.items()]
        rounds = outcome.run.rounds
        own = outcome.job.settings.algorithm.work(1.0).head_passes + 1
        ends = {
            ACCURACY: end_of(curve),
            WORST: float(np.mean(curve.worst_decile[-LAST:])),
            TAKING: float(rounds["participants"].mean()),  # type: ignore[arg-type]
            STEPS: float(rounds["head_steps"].mean()) if "head_steps" in rounds.columns else float(own),  # type: ignore[arg-type]
            KEPT: float(rounds["k_mean"].mean()),  # type: ignore[arg-type]
        }
        values += [(with_quantity(labels, name, target=END), seed, value) for name, value in ends.items()]
    return Measured(values)


def cell(method: str, fleet: str, partition: str, quantity: str, target: str = END) -> dict[str, str]:
    """Labels of one number."""
    return {"method": method, "fleet": fleet, "partition": partition, "quantity": quantity, "target": target}


def sooner(other: str, fleet: str, targets: Sequence[float] = TARGETS) -> Every:
    """The tuned form keeps every target of a fleet sooner than another row, on both partitions."""
    return Every(
        tuple(
            Less(cell(TUNED, fleet, p, SECONDS, percent(t)), cell(other, fleet, p, SECONDS, percent(t)))
            for p in PARTITIONS
            for t in targets
        )
    )


def level(other: str, fleet: str) -> Every:
    """The tuned form keeps 90 and 95 % within a tenth of another row's seconds."""
    return Every(
        tuple(
            Ratio(cell(TUNED, fleet, p, SECONDS, percent(t)), cell(other, fleet, p, SECONDS, percent(t)), 1.1)
            for p in PARTITIONS
            for t in (0.9, 0.95)
        )
    )


def _claims() -> Iterator[Claim]:
    said = "not reported"
    text = "a plain rule with its constants is at most a tenth sooner than the tuned form"
    yield Claim(text, said, level(FASTEST_60, PAPERS))
    yield Claim("on a narrow band the tuned form is sooner than the rule", said, sooner(FASTEST_60, NARROW))
    yield Claim("with slow devices the tuned form is sooner than the rule", said, sooner(FASTEST_60, SLOW))
    yield Claim("with slow devices it is sooner than the rule that waits for all", said, sooner(EVERYONE, SLOW))
    yield Claim("with slow devices it is sooner than the rule that gives them turns", said, sooner(TURNS, SLOW))
    for fleet in FLEETS:
        text = f"without its constants the tuned form is level with the fast one ({fleet})"
        yield Claim(text, said, level(FAST, fleet))
        text = f"the tuned form is sooner than FedPer with the same aids ({fleet})"
        yield Claim(text, said, sooner(FEDPER, fleet))
    floors = tuple(Bound(cell(TUNED, fleet, p, WORST), above=0.8) for fleet in FLEETS for p in PARTITIONS)
    yield Claim("nobody is left behind: the worst decile of the tuned form ends above 80 %", said, Every(floors))


ENTRIES.add(
    "tuned",
    Entry(
        title="A form that measures what its choices are worth (MNIST, three fleets)",
        place="not in the paper",
        claims=tuple(_claims()),
        jobs=lambda scale: list(jobs(scale)),
        measure=measure,
        form=Form(rows=("fleet", "method"), columns=("partition", "target"), block="quantity"),
        seeds=5,
        first_seed=40,
        settings=(
            "configs/joint_class2.toml and joint_alpha01.toml, learning rate 0.3 and the damped server for all; tested "
            "every second round; runs end after the same simulated seconds (30, 50 and 60 by fleet)"
        ),
    ),
)
