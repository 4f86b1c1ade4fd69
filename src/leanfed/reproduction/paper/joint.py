"""Beyond the paper: FLPDSP-OPT with fixed devices, under other deadlines, without some parts, and at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Less, Ratio, above
from leanfed.reproduction.paper.costs import LATENCY
from leanfed.reproduction.paper.protocol import (
    HELD,
    METHODS,
    MNIST,
    OPT,
    YARDSTICK,
    Changes,
    curve_of,
    percent,
    with_quantity,
)

PARTITIONS = ("Class-2", "alpha 0.1")
FAST, SAFE = OPT["FLPDSP-OPT fast"], OPT["FLPDSP-OPT safe"]
FINAL, WORST, TAKING = "final accuracy", "worst decile", "participants a round"
DEADLINE_S = 0.8  # of the protocol

HELD_METHODS: Mapping[str, Changes] = {
    **{f"{name}, held": (*METHODS[name], *HELD) for name in (YARDSTICK, "FedPer, min-max", "FLPDSP-OPT fast")},
    "FLPDSP-OPT fast without floor, held": (*FAST, *HELD, "allocation.within_rounds=0", "allocation.settle=0.0"),
}
DEADLINES: Mapping[str, Changes] = {
    **{
        f"FLPDSP-OPT {form}, deadline x {factor:g}": (
            f"allocation.form={form}",
            *(() if factor == 1 else (f"allocation.deadline_s={DEADLINE_S * factor:g}",)),
        )
        for form in ("safe", "fast")
        for factor in (0.6, 0.8, 1, 1.5)
    },
    **{name: METHODS[name] for name in (YARDSTICK, "FedPer, min-max")},
}
SETTLED, OPERATIONS = "fast without settling", ("radio.computation=operations",)
PARTS: Mapping[str, Changes] = {
    "FLPDSP-OPT fast": FAST,
    "fast without error feedback": (*FAST, "algorithm.name=flpdsp", "algorithm.sparsify.error_feedback=false"),
    "fast with heads discarded": (*FAST, "algorithm.name=flpdsp", "algorithm.prune.head_memory=discard"),
    "fast without floor": (*FAST, "allocation.within_rounds=0"),
    SETTLED: (*FAST, "allocation.settle=0.0"),
    "fast with any k": (*FAST, "allocation.k_max=1.0"),
    "fast with one head step": (*FAST, "algorithm.name=flpdsp", "algorithm.head_steps=1"),
    "FLPDSP-OPT safe": SAFE,
    "FLPDSP-OPT safe, r_min 0.5": (*SAFE, "allocation.r_min=0.5"),
    YARDSTICK: METHODS[YARDSTICK],
    "FLPDSP-OPT fast, by operations": (*FAST, *OPERATIONS),
    f"{YARDSTICK}, by operations": (*METHODS[YARDSTICK], *OPERATIONS),
}
ENDS: Mapping[str, Changes] = {name: METHODS[name] for name in (*OPT, YARDSTICK)}


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Seconds to the targets, final accuracy, and participants."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        for target in MNIST.targets[labels["partition"]]:
            reached = curve.cost_of(target) or {}
            values.append((with_quantity(labels, LATENCY, target=percent(target)), seed, reached.get("latency_s")))
        ends = {
            FINAL: curve.accuracy[-1],
            WORST: curve.worst_decile[-1],
            TAKING: float(outcome.run.rounds["participants"].mean()),  # type: ignore[arg-type]
        }
        values += [(with_quantity(labels, name, target="end"), seed, value) for name, value in ends.items()]
    return Measured(values)


def cell(method: str, partition: str, quantity: str, target: str = "end") -> dict[str, str]:
    """Labels of one number."""
    return {"method": method, "partition": partition, "quantity": quantity, "target": target}


def faster(method: str, yardstick: str, below: float) -> Every:
    """The latency to 80 % and 90 % over a yardstick's is below a bound, on both partitions."""
    return Every(
        tuple(
            Ratio(cell(method, p, LATENCY, percent(t)), cell(yardstick, p, LATENCY, percent(t)), below)
            for p in PARTITIONS
            for t in MNIST.targets[p]
        )
    )


def entry(
    title: str, methods: Mapping[str, Changes], claims: Sequence[Claim], seeds: int = 1, reduced: str = ""
) -> Entry:
    """An entry that is not in the paper, under its protocol, on Class-2 and alpha 0.1."""
    return Entry(
        title=title,
        place="not in the paper",
        claims=tuple(claims),
        jobs=lambda scale: MNIST.jobs(methods, scale, partitions=PARTITIONS),
        measure=measure,
        first_seed=MNIST.first_seed,
        form=Form(rows=("method",), columns=("partition", "target"), block="quantity"),
        seeds=seeds,
        settings=(
            "configs/joint_class2.toml and joint_alpha01.toml; ratios are told for 80 % and 90 % on Class-2, then on "
            "alpha 0.1"
        ),
        reduced=reduced,
    )


LEARNED = 0.9  # what a yardstick has to end above, for a method that keeps up with it to have learned anything


def _loses(method: str, points: float, quantity: str, yardstick: str = YARDSTICK) -> Every:
    """A method ends less than some points below a yardstick that has learned."""
    keeps_up = (above(cell(method, p, quantity), cell(yardstick, p, quantity), points) for p in PARTITIONS)
    return Every((*keeps_up, *(Bound(cell(yardstick, p, FINAL), above=LEARNED) for p in PARTITIONS)))


ENTRIES.add(
    "opt-ends",
    entry(
        "Where FLPDSP-OPT ends after the same number of rounds as FedPer",
        ENDS,
        [
            *(
                Claim(f"FLPDSP-OPT ({form}) ends within one point of FedPer", "negligible accuracy loss", rule)
                for form, rule in ((f, _loses(f"FLPDSP-OPT {f}", 0.01, FINAL)) for f in ("fast", "safe", "plain"))
            ),
            *(
                Claim(f"the worst decile of FLPDSP-OPT ({form}) is within two points of FedPer's", "not reported", rule)
                for form, rule in ((f, _loses(f"FLPDSP-OPT {f}", 0.02, WORST)) for f in ("fast", "safe", "plain"))
            ),
            Claim(
                "FLPDSP-OPT (fast) reaches 80 % and 90 % in less than a quarter of FedPer's time on equal shares",
                "0.48, 0.50 on Class-2; 0.47, 0.46 at alpha 0.1",
                faster("FLPDSP-OPT fast", YARDSTICK, 0.25),
            ),
        ],
        seeds=3,
    ),
)
ENTRIES.add(
    "opt-held",
    entry(
        "Devices whose place, clock and power are held over all rounds",
        HELD_METHODS,
        [
            Claim(
                "FLPDSP-OPT (fast) is sooner than FedPer on held devices",
                "not reported",
                faster("FLPDSP-OPT fast, held", f"{YARDSTICK}, held", 1.0),
            ),
            Claim(
                "the worst decile stays within two points of FedPer's on held devices",
                "not reported",
                _loses("FLPDSP-OPT fast, held", 0.02, WORST, f"{YARDSTICK}, held"),
            ),
            Claim(
                "without the participation floor slow devices are left behind: the worst decile is lower",
                "not reported",
                Every(
                    tuple(
                        Less(
                            cell("FLPDSP-OPT fast without floor, held", p, WORST),
                            cell("FLPDSP-OPT fast, held", p, WORST),
                        )
                        for p in PARTITIONS
                    )
                ),
            ),
        ],
        reduced="one seed",
    ),
)
ENTRIES.add(
    "opt-deadline",
    entry(
        "Other deadlines: tau x 0.6, 0.8, 1, 1.5",
        DEADLINES,
        [
            Claim(
                f"FLPDSP-OPT ({form}) is sooner than {yardstick.replace(',', ' on')} with tau x {factor:g}",
                "not reported",
                faster(f"FLPDSP-OPT {form}, deadline x {factor:g}", yardstick, 1.0),
            )
            for form in ("safe", "fast")
            for yardstick in (YARDSTICK, "FedPer, min-max")
            for factor in (0.6, 0.8, 1, 1.5)
        ],
        reduced="one seed",
    ),
)
ENTRIES.add(
    "opt-parts",
    entry(
        "The fast form with one of its parts taken away",
        PARTS,
        [
            Claim(
                "the fast form needs it: without settling the worst decile ends lower",
                "not reported",
                Every(tuple(Less(cell(SETTLED, p, WORST), cell("FLPDSP-OPT fast", p, WORST)) for p in PARTITIONS)),
            ),
        ]
        + [
            Claim(
                f"the fast form needs it: {part} takes longer to 90 %",
                "not reported",
                Every(
                    tuple(
                        Less(
                            cell("FLPDSP-OPT fast", p, LATENCY, percent(0.9)),
                            cell(part, p, LATENCY, percent(0.9)),
                        )
                        for p in PARTITIONS
                    )
                ),
            )
            for part in PARTS
            if part.startswith("fast") and part != SETTLED
        ]
        + [
            Claim(
                "charged by operations, and not by weights as in Eq. (12), the fast form needs less than a quarter of "
                "FedPer's time",
                "not reported",
                faster("FLPDSP-OPT fast, by operations", f"{YARDSTICK}, by operations", 0.25),
            ),
        ],
        reduced="one seed",
    ),
)
