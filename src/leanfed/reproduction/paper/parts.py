"""Beyond the paper: what each part of the form that tunes itself brings, and which clients to ask (MNIST, four fleets).

PROTOCOL.md, next to the catalogue, says what was fixed before the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Job, Measured, Outcome, Scale
from leanfed.reproduction.judging import Every, Labels, Less
from leanfed.reproduction.paper import tuned
from leanfed.reproduction.paper.fair import heads
from leanfed.reproduction.paper.protocol import HELD, MNIST, Changes, percent
from leanfed.reproduction.paper.tuned import (
    FLEETS,
    METHODS,
    NARROW,
    PAPERS,
    PARTITIONS,
    RATE,
    SECONDS,
    SLOW,
    TUNED,
    TURNS,
    WITH_TURNS,
    WORST,
    cell,
)

WHOLE: Final = METHODS[TUNED]
PARTS: Final[Mapping[str, Changes]] = {  # what is left out, and how
    "planned head steps (five)": (*WHOLE, "allocation.head_steps_max=0", *heads(5)),
    "further head steps": (*WHOLE, "allocation.head_steps_max=0", *heads(1)),
    "own rates (k 0.05, whole heads)": (
        *WHOLE,
        *("allocation.k_min=0.05", "allocation.k_max=0.05", "allocation.r_min=1.0"),
    ),
    "a planned k (0.05)": (*WHOLE, "allocation.k_min=0.05", "allocation.k_max=0.05"),
    "error feedback": (*WHOLE, "algorithm.sparsify.error_feedback=false"),
    "pruning": (*WHOLE, "allocation.r_min=1.0"),
    "turns": (*WHOLE, "allocation.within_rounds=0"),
    "the damped server": (*("allocation.form=tuned", "algorithm.name=flpdsp"), *RATE),
}
WITHOUT: Final[Mapping[str, Changes]] = {f"without {part}": changes for part, changes in PARTS.items()}
ASKED: Final[Mapping[str, Changes]] = {  # who takes part, where devices stay what they are
    "no turns": (*WHOLE, "allocation.within_rounds=0"),
    "turns of 5 rounds": (*WHOLE, "allocation.within_rounds=5"),
    "turns of 20 rounds": (*WHOLE, "allocation.within_rounds=20"),
    "who never came by round 3": (*WHOLE, "allocation.first_within=3"),
    "60 % drawn at random": (*WHOLE, "participation.fraction=0.6"),
    TURNS: WITH_TURNS,
}
STAYING: Final = "the paper's, held"
# Fleet -> what it changes, the simulated seconds after which its runs end, and its rows beside the whole form.
ALL: Final[Mapping[str, tuple[Changes, float, Mapping[str, Changes]]]] = {
    PAPERS: (*FLEETS[PAPERS], WITHOUT),
    NARROW: (*FLEETS[NARROW], WITHOUT),
    STAYING: (HELD, 30.0, ASKED),
    SLOW: (*FLEETS[SLOW], ASKED),
}
JUDGED: Final = (0.9, 0.95)  # targets
SHARE: Final = "seconds over those of the whole form"


def jobs(scale: Scale) -> Iterator[Job]:
    """The form as it is and without each of its parts; other ways to choose who takes part."""
    for seed in scale.seeds:
        for fleet, (changes, seconds, rows) in ALL.items():
            last = (*changes, "rounds=400", "evaluation.every=2", f"run.stop_at_seconds={seconds}")
            for partition in PARTITIONS:
                for method, own in {TUNED: WHOLE, **rows}.items():
                    yield MNIST.job(method, (*own, *last), partition, seed, scale, fleet=fleet)


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """What `tuned` measures, and the seconds of each row over those of the whole form."""
    values = list(tuned.measure(outcomes, scale).values)
    times = {_place(labels, seed): seconds for labels, seed, seconds in values if labels["quantity"] == SECONDS}
    for labels, seed, seconds in list(values):
        whole = times.get(_place({**labels, "method": TUNED}, seed))
        if labels["quantity"] == SECONDS and labels["method"] != TUNED and whole is not None:
            share = None if seconds is None else seconds / whole
            values.append(({**labels, "quantity": SHARE}, seed, share))
    return Measured(values)


def _place(labels: Labels, seed: int) -> tuple[str, ...]:
    return (*(labels[name] for name in ("method", "fleet", "partition", "target")), str(seed))


def _sooner(a: str, b: str, fleets: Sequence[str]) -> Every:
    """Row a keeps the judged targets sooner than row b, on both partitions."""
    return Every(
        tuple(
            Less(cell(a, fleet, p, SECONDS, percent(t)), cell(b, fleet, p, SECONDS, percent(t)))
            for fleet in fleets
            for p in PARTITIONS
            for t in JUDGED
        )
    )


def _claims() -> Iterator[Claim]:
    said = "not reported"
    for part, row in zip(PARTS, WITHOUT, strict=True):
        yield Claim(f"without {part} the tuned form is later", said, _sooner(TUNED, row, (PAPERS, NARROW)))
    staying = (STAYING, SLOW)
    for row in ASKED:
        yield Claim(
            f"where devices stay what they are it is sooner than with: {row}", said, _sooner(TUNED, row, staying)
        )
    worse = tuple(
        Less(cell("no turns", fleet, p, WORST), cell(TUNED, fleet, p, WORST)) for fleet in staying for p in PARTITIONS
    )
    yield Claim("without turns the worst decile is lower where devices stay what they are", said, Every(worse))


ENTRIES.add(
    "parts",
    Entry(
        title="What each part of the tuned form brings, and who is asked (MNIST, four fleets)",
        place="not in the paper",
        claims=tuple(_claims()),
        jobs=lambda scale: list(jobs(scale)),
        measure=measure,
        form=Form(rows=("fleet", "method"), columns=("partition", "target"), block="quantity"),
        seeds=2,
        first_seed=45,
        settings=(
            "as tuned; on devices that are drawn anew each round one part is left out at a time, on devices that stay "
            "what they are others are asked"
        ),
    ),
)
