"""Beyond the paper: rules of aggregation under attack (MNIST, k = 0.05 with error feedback).

PROTOCOL.md, next to the catalogue, says what was fixed before the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Job, Measured, Outcome, Scale
from leanfed.reproduction.judging import Every, Labels, Less
from leanfed.reproduction.paper.privacy import ACCURACY, LAST, PARTITIONS, SHORT, SPARSE, TRUST, WORST
from leanfed.reproduction.paper.protocol import Changes, curve_of, with_quantity

FEEDBACK: Final[Changes] = (*SPARSE, "algorithm.sparsify.error_feedback=true", *SHORT)
FROZEN: Final[Changes] = ("algorithm.name=head-only", "algorithm.head_steps=5", *SHORT)
RULES: Final = ("mean", "clip", "clip-dedupe", "geometric-median", "centred-clip", "multi-krum")
RECOMMENDED, BASE = "clip-dedupe", "frozen base"
LOUD: Final = ("sign-flip", "scaling")  # on the plain mean the base overflows, and the run ends in words
ATTACKS: Final = (*LOUD, "gaussian", "alie", "ipm", "min-max", "support", "spread", "label-flip", "backdoor")
SHARES: Final[Mapping[str, tuple[str, ...]]] = {
    "0.1": ("mean", RECOMMENDED),
    "0.2": RULES,
    "0.3": ("mean", RECOMMENDED),
}
NOBODY, SUCCESS = "none", "backdoor success"


def cases() -> Iterator[tuple[str, str, str]]:
    """(rule, attack, share): every rule without an attacker and at a fifth, else the mean and the recommended one."""
    for rule in RULES:
        yield rule, NOBODY, "0"
    for share, rules in SHARES.items():
        for attack in ATTACKS:
            yield from ((rule, attack, share) for rule in rules if rule != "mean" or attack not in LOUD)


def jobs(scale: Scale) -> Iterator[Job]:
    """Every case, and the base that never moves, on both partitions."""
    for seed in scale.seeds:
        for partition in PARTITIONS:
            yield TRUST.job(BASE, FROZEN, partition, seed, scale, attack=NOBODY, share="0")
            for rule, attack, share in cases():
                who = () if attack == NOBODY else (f"adversary.kind={attack}", f"adversary.share={share}")
                changes = (*FEEDBACK, f"aggregation.name={rule}", *who)
                yield TRUST.job(rule, changes, partition, seed, scale, attack=attack, share=share)


def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    """Ends of the honest clients as means of the last evaluations; the success of backdoors."""
    values: list[tuple[Labels, int, float | None]] = []
    for outcome in outcomes:
        labels, seed, curve = outcome.job.labels, outcome.job.settings.seed, curve_of(outcome)
        found = {ACCURACY: curve.accuracy, WORST: curve.worst_decile, SUCCESS: curve.score("attack_success")}
        values += [(with_quantity(labels, name), seed, float(np.mean(v[-LAST:]))) for name, v in found.items() if v]
    return Measured(values)


def cell(rule: str, attack: str, share: str, partition: str, quantity: str = ACCURACY) -> dict[str, str]:
    """Labels of one number."""
    return {"method": rule, "partition": partition, "attack": attack, "share": share, "quantity": quantity}


def _claims() -> Iterator[Claim]:
    said = "not reported"
    free = {p: cell("mean", NOBODY, "0", p) for p in PARTITIONS}
    plain = tuple(Less(free[p], cell(RECOMMENDED, NOBODY, "0", p), 0.005) for p in PARTITIONS)
    yield Claim("without an attacker the recommended rule ends within half a point of the mean", said, Every(plain))
    fifth = tuple(Less(free[p], cell(RECOMMENDED, a, "0.2", p), 0.02) for p in PARTITIONS for a in ATTACKS)
    text = "with a fifth of liars it ends within two points of the mean without any, whatever they do"
    yield Claim(text, said, Every(fifth))
    floor = {p: cell(BASE, NOBODY, "0", p) for p in PARTITIONS}
    third = tuple(Less(floor[p], cell(RECOMMENDED, a, "0.3", p)) for p in PARTITIONS for a in ATTACKS)
    yield Claim("with three tenths of liars it ends above the base that never moves", said, Every(third))
    door = tuple(
        Less(cell(RECOMMENDED, "backdoor", "0.2", p, SUCCESS), cell("mean", "backdoor", "0.2", p, SUCCESS))
        for p in PARTITIONS
    )
    yield Claim("a backdoor works less often on it than on the mean", said, Every(door))


ENTRIES.add(
    "robust",
    Entry(
        title="Rules of aggregation under attack (MNIST)",
        place="not in the paper",
        claims=tuple(_claims()),
        jobs=lambda scale: list(jobs(scale)),
        measure=measure,
        form=Form(rows=("share", "method"), columns=("partition", "attack"), block="quantity"),
        seeds=3,
        first_seed=50,
        settings=(
            "configs/mnist_class2.toml and mnist_alpha01.toml, 100 clients, 60 rounds, k = 0.05 with error feedback, "
            "five head steps; results of the honest clients, means of the last three evaluations, five rounds apart; "
            "the mean is not run under sign flips and scaling, which end its runs"
        ),
    ),
)
