"""Beyond the paper: rules of aggregation under attack (MNIST, k = 0.05 with error feedback).

PROTOCOL.md, next to the catalogue, says what was fixed before the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Job, Measured, Outcome, Scale
from leanfed.reproduction.judging import Every, Labels, Less, above
from leanfed.reproduction.paper.privacy import ACCURACY, LAST, PARTITIONS, SHORT, SPARSE, TRUST, WORST
from leanfed.reproduction.paper.protocol import Changes, curve_of, with_quantity

FEEDBACK: Final[Changes] = (*SPARSE, "algorithm.sparsify.error_feedback=true", *SHORT)
FROZEN: Final[Changes] = ("algorithm.name=head-only", "algorithm.head_steps=5", *SHORT)
MEAN, DEDUPED, MAJORITY, BASE = "mean", "clip-dedupe", "majority", "frozen base"
JUDGED: Final = (MAJORITY, DEDUPED)  # the recommended rule, and the one that was recommended before it
RULES: Final = (MEAN, "clip", DEDUPED, MAJORITY, "geometric-median", "centred-clip", "multi-krum")
LOUD: Final = ("sign-flip", "scaling")  # on the plain mean the base overflows, and the run ends in words
TOLD: Final = ("gaussian", "alie", "ipm", "min-max", "support", "spread", "turncoat", "hedged", "veteran", "adaptive")
ATTACKS: Final = (*LOUD, *TOLD, "label-flip", "backdoor")  # in their data the last two
SHARES: Final[Mapping[str, tuple[str, ...]]] = {"0.1": (MEAN, *JUDGED), "0.2": RULES, "0.3": (MEAN, *JUDGED)}
NOBODY, SUCCESS = "none", "backdoor success"
Case = tuple[str, str, str]  # rule, attack, share


def cases() -> Iterator[Case]:
    """Every rule without an attacker and at a fifth, else those of `SHARES`."""
    for rule in RULES:
        yield rule, NOBODY, "0"
    for share, rules in SHARES.items():
        for attack in ATTACKS:
            yield from ((rule, attack, share) for rule in rules if rule != MEAN or attack not in LOUD)


def turn(case: Case) -> int:
    """What claims read is run first: of the recommended rule, then of the other, then the rest."""
    rule, attack, share = case
    if rule in JUDGED and share != "0.1":
        return JUDGED.index(rule)
    return 0 if rule == MEAN and (attack == NOBODY or (attack, share) == ("backdoor", "0.2")) else len(JUDGED)


def jobs(scale: Scale) -> Iterator[Job]:
    """Every case, and the base that never moves, on both partitions."""
    for seed in scale.seeds:
        for partition in PARTITIONS:
            yield TRUST.job(BASE, FROZEN, partition, seed, scale, attack=NOBODY, share="0")
            for rule, attack, share in cases():
                who = () if attack == NOBODY else (f"adversary.kind={attack}", f"adversary.share={share}")
                changes = (*FEEDBACK, f"aggregation.name={rule}", *who)
                job = TRUST.job(rule, changes, partition, seed, scale, attack=attack, share=share)
                yield replace(job, turn=turn((rule, attack, share)))


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


def _claims(rule: str) -> Iterator[Claim]:
    said = "not reported"
    free = {p: cell(MEAN, NOBODY, "0", p) for p in PARTITIONS}
    floor = {p: cell(BASE, NOBODY, "0", p) for p in PARTITIONS}
    plain = tuple(above(cell(rule, NOBODY, "0", p), free[p], 0.005) for p in PARTITIONS)
    learned = tuple(above(free[p], floor[p]) for p in PARTITIONS)
    text = f"without an attacker {rule} ends within half a point of the mean"
    yield Claim(text, said, Every((*plain, *learned)))
    fifth = tuple(above(cell(rule, a, "0.2", p), free[p], 0.02) for p in PARTITIONS for a in ATTACKS)
    text = f"with a fifth of liars {rule} ends within two points of the mean without any, whatever they do"
    yield Claim(text, said, Every((*fifth, *learned)))
    third = tuple(above(cell(rule, a, "0.3", p), floor[p]) for p in PARTITIONS for a in ATTACKS)
    yield Claim(f"with three tenths of liars {rule} ends above the base that never moves", said, Every(third))
    door = tuple(
        Less(cell(rule, "backdoor", "0.2", p, SUCCESS), cell(MEAN, "backdoor", "0.2", p, SUCCESS)) for p in PARTITIONS
    )
    yield Claim(f"a backdoor works less often on {rule} than on the mean", said, Every((*door, *learned)))


ENTRIES.add(
    "robust",
    Entry(
        title="Rules of aggregation under attack (MNIST)",
        place="not in the paper",
        claims=tuple(claim for rule in JUDGED for claim in _claims(rule)),
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
