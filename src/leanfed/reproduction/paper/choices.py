"""What the paper leaves to choose or neglects, one choice at a time (MNIST): other indicators, solver, radio, energy.

PROTOCOL.md, next to the catalogue, says what was fixed before the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Less, Near, Ratio, above
from leanfed.reproduction.paper.fair import ACCURACY, LAST, WORST, end_of
from leanfed.reproduction.paper.figures import cell
from leanfed.reproduction.paper.protocol import MNIST, OPT, OWN, Changes, curve_of, seconds_to, with_quantity

PARTITIONS: Final = ("Class-2", "alpha 0.1")
FIXED: Final[Changes] = (*OWN, "algorithm.name=flpdsp", "algorithm.k=0.1", "algorithm.r=0.5")
PLAIN: Final[Changes] = OPT["FLPDSP-OPT plain"]
FIXED_RATES, PLANNED = "FLPDSP, k = 0.1, r = 0.5", "FLPDSP-OPT plain"
IMPORTANCE, SHUFFLED = f"{FIXED_RATES}, importance pruning", f"{FIXED_RATES}, random pruning"
DRAWN = f"{FIXED_RATES}, random sparsification"
DCA, FIRST, LEAN = f"{PLANNED}, Algorithm 2", f"{PLANNED}, k_0 = 0.3, r_0 = 0.6", f"{PLANNED}, half of the joules"
BROADCAST, WIDE = f"{PLANNED}, broadcast at 33 dBm", f"{PLANNED}, 20 to 40 MHz"
HORIZON_J: Final = 22.5  # of a client: half of 0.3 J in each of 150 rounds, Eq. (27c)
ROWS: Final[Mapping[str, Changes]] = {
    PLANNED: PLAIN,
    DCA: (*PLAIN, "allocation.solver=dca"),
    FIRST: (*PLAIN, "allocation.first_k=0.3", "allocation.first_r=0.6"),
    BROADCAST: (*PLAIN, "radio.downlink=broadcast"),
    WIDE: (*PLAIN, "radio.fleet.bandwidth_hz=[20e6, 40e6]"),
    LEAN: (*PLAIN, f"allocation.energy_total_j={HORIZON_J}"),
    FIXED_RATES: FIXED,
    IMPORTANCE: (*FIXED, "algorithm.prune.score=importance"),
    SHUFFLED: (*FIXED, "algorithm.prune.score=random"),
    DRAWN: (*FIXED, "algorithm.sparsify.select=random", "algorithm.sparsify.rescale=true"),
}
TO_90, END, JOULES = "seconds to 90 %, sustained", f"{ACCURACY}, mean of the last {LAST}", "joules a client and round"
WORST_END: Final = f"{WORST} at the end"


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Seconds to the targets, ends, and what was spent and kept on average."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        rounds = outcome.run.rounds
        clients = outcome.run.settings.task.partition.clients
        found: dict[str, float | None] = {
            **seconds_to(curve, MNIST.targets[labels["partition"]]),
            END: end_of(curve),
            WORST_END: curve.worst_decile[-1],
            JOULES: curve.spent["energy_j"][-1] / (rounds.height * clients),
        }
        found |= {f"mean {rate}": rounds[f"{rate}_mean"].mean() for rate in ("k", "r")}  # type: ignore[misc]
        values += [(with_quantity(labels, name), seed, value) for name, value in found.items()]
    return Measured(values)


def _ended_near(row: str, other: str, within: float) -> list[Near | Bound]:
    """Within some points of another row's end, and above 90 %: a guess is near a guess."""
    near = [Near(cell(row, p, END), cell(other, p, END), within) for p in PARTITIONS]
    return [*near, *(Bound(cell(row, p, END), above=0.9) for p in PARTITIONS)]


def _slower(row: str, most: float) -> list[Ratio]:
    """At most so many times the seconds of the plain form to 90 %."""
    return [Ratio(cell(row, p, TO_90), cell(PLANNED, p, TO_90), most) for p in PARTITIONS]


def _planned_claims() -> list[Claim]:
    """Other solvers, beginnings, radios and budgets of the plain form."""
    return [
        Claim(
            "with Algorithm 2 in every round it takes at most a tenth longer to 90 % than with the certified solver",
            "not reported: Algorithm 2 is all it has",
            Every((*_slower(DCA, 1.1), *_ended_near(DCA, PLANNED, 0.005))),
        ),
        Claim(
            "how k and r begin does not matter: it ends within half a point",
            "not reported: they begin at random",
            Every(tuple(_ended_near(FIRST, PLANNED, 0.005))),
        ),
        Claim(
            "the broadcast may be neglected: at 33 dBm it adds at most 5 % to the seconds to 90 %",
            "neglected",
            Every(tuple(_slower(BROADCAST, 1.05))),
        ),
        Claim(
            "a band of 20 to 40 MHz reaches 90 % sooner than 10 MHz",
            "not reported in seconds; more band, larger k and r",
            Every(tuple(Less(cell(WIDE, p, TO_90), cell(PLANNED, p, TO_90)) for p in PARTITIONS)),
        ),
        Claim(
            "with half of the joules over the horizon it ends within two points and spends no more than that",
            "not reported",
            Every(
                (
                    *_ended_near(LEAN, PLANNED, 0.02),
                    *(Bound(cell(LEAN, p, JOULES), below=HORIZON_J / 150 * 1.001) for p in PARTITIONS),
                )
            ),
        ),
    ]


def _indicator_claims() -> list[Claim]:
    """Other ways to prune and to sparsify, at fixed rates."""
    said = "not reported: one of several strategies"

    def ends_above(row: str) -> Every:
        return Every(tuple(above(cell(row, p, END), cell(SHUFFLED, p, END)) for p in PARTITIONS))

    drawn = Every(tuple(Less(cell(FIXED_RATES, p, TO_90), cell(DRAWN, p, TO_90)) for p in PARTITIONS))
    return [
        Claim("pruning by importance ends above pruning at random", said, ends_above(IMPORTANCE)),
        Claim("pruning by magnitude ends above pruning at random", said, ends_above(FIXED_RATES)),
        Claim("the largest entries reach 90 % sooner than random ones", said, drawn),
    ]


ENTRIES.add(
    "choices",
    Entry(
        title="What the paper leaves to choose, one choice at a time (MNIST)",
        place="not in the paper",
        claims=(*_planned_claims(), *_indicator_claims()),
        jobs=lambda scale: MNIST.jobs(ROWS, scale, partitions=PARTITIONS),
        measure=measure,
        form=Form(rows=("method",), columns=("partition",), block="quantity"),
        first_seed=MNIST.first_seed,
        settings="configs/joint_class2.toml and joint_alpha01.toml, 150 rounds, tested every second round",
        reduced="one seed",
    ),
)
