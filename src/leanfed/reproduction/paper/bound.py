"""Beyond the paper: how much any plan of the uplink could still gain, by runs whose uploads cost nothing (MNIST).

PROTOCOL.md, next to the catalogue, says what was fixed before the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Job, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels
from leanfed.reproduction.paper import tuned
from leanfed.reproduction.paper.fair import AIDED, DAMPED, FAST
from leanfed.reproduction.paper.protocol import MNIST, Changes, curve_of, percent, with_quantity
from leanfed.reproduction.paper.tuned import FASTEST_60, NARROW, PAPERS, PARTITIONS, RATE, SECONDS, TARGETS, TUNED

FREE: Final = "free uplink"
WIDE: Final[Changes] = ("radio.fleet.bandwidth_hz=1e15",)  # all that is left of an upload is far below a millisecond
LIMITS: Final[Mapping[str, Changes]] = {
    f"k = {k:g}, fastest {round(100 * share)} %": (
        *(*AIDED[FASTEST_60], *DAMPED, *RATE, *WIDE),
        *(f"algorithm.k={k:g}", f"allocation.fastest={share:g}"),
    )
    for k in (0.05, 1.0)
    for share in (0.15, 0.3, 0.6)
}
PLANS: Final = (TUNED, FAST, FASTEST_60)
DISTANCE: Final = "seconds over those of the soonest with a free uplink"


def jobs(scale: Scale) -> Iterator[Job]:
    """The plans on two fleets, as `tuned` runs them, and the runs that send for nothing."""
    for job in tuned.jobs(scale):
        if job.labels["fleet"] in (PAPERS, NARROW) and job.labels["method"] in PLANS:
            yield job
    last = ("rounds=400", "evaluation.every=2", f"run.stop_at_seconds={tuned.FLEETS[PAPERS][1]}")
    for seed in scale.seeds:
        for partition in PARTITIONS:
            for name, changes in LIMITS.items():
                yield MNIST.job(name, (*changes, *last), partition, seed, scale, fleet=FREE)


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Sustained seconds to the targets, and how far each plan is from the soonest run with a free uplink."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        for target in TARGETS:
            kept = (curve.sustained_cost_of(target) or {}).get("latency_s")
            values.append((with_quantity(labels, SECONDS, target=percent(target)), seed, kept))
    return Measured([*values, *_distances(values)])


def _distances(values: Sequence[tuple[Labels, int, float | None]]) -> Iterator[tuple[Labels, int, float | None]]:
    soonest: dict[tuple[str, str, int], float] = {}
    for labels, seed, seconds in values:
        if labels["fleet"] == FREE and seconds is not None:
            place = (labels["partition"], labels["target"], seed)
            soonest[place] = min(seconds, soonest.get(place, seconds))
    for labels, seed, seconds in values:
        least = soonest.get((labels["partition"], labels["target"], seed))
        if labels["fleet"] != FREE and least is not None:
            yield {**labels, "quantity": DISTANCE}, seed, None if seconds is None else seconds / least


def cell(method: str, fleet: str, partition: str, target: float) -> dict[str, str]:
    """Labels of one distance."""
    return tuned.cell(method, fleet, partition, DISTANCE, percent(target))


def _below(method: str, fleet: str, most: float) -> Every:
    return Every(tuple(Bound(cell(method, fleet, p, t), below=most) for p in PARTITIONS for t in TARGETS))


def _claims() -> Iterator[Claim]:
    said = "not reported"
    text = "on the paper's fleet no plan of the uplink halves the seconds of the plain rule: a free one does not"
    yield Claim(text, said, _below(FASTEST_60, PAPERS, 2.0))
    text = "on the paper's fleet the tuned form is within a quarter of a free uplink"
    yield Claim(text, said, _below(TUNED, PAPERS, 1.25))
    yield Claim("on 1 MHz the tuned form is within half of a free uplink", said, _below(TUNED, NARROW, 1.5))


ENTRIES.add(
    "bound",
    Entry(
        title="What any plan of the uplink could still gain (MNIST, two fleets)",
        place="not in the paper",
        claims=tuple(_claims()),
        jobs=lambda scale: list(jobs(scale)),
        measure=measure,
        form=Form(rows=("fleet", "method"), columns=("partition", "target"), block="quantity"),
        seeds=5,
        first_seed=40,
        settings=(
            "as tuned; runs with a free uplink have 1e15 Hz, five head steps, and wait for the 15, 30 or 60 % fastest "
            "processors of each round, which send a twentieth or all of their gradient"
        ),
    ),
)
