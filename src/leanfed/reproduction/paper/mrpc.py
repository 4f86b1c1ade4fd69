"""MRPC with an encoder and LoRA: loss, accuracy and F1 against latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, above
from leanfed.reproduction.paper.figures import (
    END_F1,
    FINAL,
    GAIN,
    Value,
    cell,
    figure,
    grouped,
    guess_of,
    in_order,
    learned,
    soonest_in_every_panel,
)
from leanfed.reproduction.paper.protocol import BASELINES, EQUAL, OPT, Changes, Study, curve_of

ABOUT = {
    "settings": "joint_mrpc.toml; baselines with algorithm.name and allocation.rule = own",
    "reduced": "a 6-layer encoder 384 wide instead of BERT-Base, which encodes the two texts apart; all adapters are "
    "shared and the classifier is private, but for two rows with the paper's head, the last third of the adapters; 10 "
    "clients on 1 MHz instead of 100 on 10; 12 rounds of 8 steps on batches of 8 (24 of them for the fast form, which "
    "asks about half of the clients) instead of 100 rounds of one step on 32, computed in bfloat16; the fast form and "
    "six baselines; one seed; settings were chosen on the validation split with another seed",
}
FAST, OWN_HEAD = "FLPDSP-OPT fast", "the paper's head"
PRIVATE: Changes = ("task.text.private_layers=2",)  # of six: the last four of twelve
STUDY = Study(
    dataset="MRPC",
    partitions={f"alpha {a}": ("joint_mrpc", (f"task.partition.alpha={a}",)) for a in ("1", "2")},
    targets={"alpha 1": (0.78, 0.8), "alpha 2": (0.82, 0.84)},  # above the majority guesses, 0.713 and 0.818
    quick=(
        *("rounds=1", "training.local_steps=1", "evaluation.every=1", "evaluation.clients=2"),
        "task.test_on=validation",
    ),
    only={
        FAST: ("rounds=24", "evaluation.every=6"),  # half of the clients in most rounds: equal samples
        **dict.fromkeys(BASELINES, ()),
    },
    drawn={
        **OPT,
        **EQUAL,
        f"{FAST}, {OWN_HEAD}": (*OPT[FAST], *PRIVATE),
        f"FedPer, {OWN_HEAD}": (*EQUAL["FedPer, equal"], *PRIVATE),
    },
)
BEST = "best of all"


def _above_the_guess(quantity: str, entry: Entry) -> Entry:
    """The entry with every method's percentage points above the majority guess added."""

    def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
        values: list[Value] = []
        for (partition, seed), group in grouped(outcomes).items():
            gains = {outcome.job.labels["method"]: _gain(outcome, quantity) for outcome in group}
            gains[BEST] = max(gains.values())
            values += [(cell(method, partition, GAIN), seed, gain) for method, gain in gains.items()]
        plain = entry.measure(outcomes, scale)
        return replace(plain, values=[*plain.values, *values])

    return replace(entry, measure=measure)


def _gain(outcome: Outcome, quantity: str) -> float:
    reached: Sequence[float] = getattr(curve_of(outcome), quantity)
    return 100 * (reached[-1] - guess_of(outcome, quantity))


def _best_beats_the_guess(what: str, points: float) -> list[Claim]:
    return [
        Claim(
            f"{partition}: the best method is at least {points:g} points of {what} above each client's majority guess",
            "not claimed",
            Bound(cell(BEST, partition, GAIN), above=points),
        )
        for partition in STUDY.partitions
    ]


def _with_the_papers_head() -> Claim:
    """What adapters of each client's own are worth."""
    heads = ((f"{FAST}, {OWN_HEAD}", FAST), (f"FedPer, {OWN_HEAD}", "FedPer, equal"))
    ends = (above(cell(own, p, FINAL), cell(small, p, FINAL)) for own, small in heads for p in STUDY.partitions)
    return Claim(
        "with the last third of the adapters private, too, FLPDSP-OPT (fast) and FedPer end higher",
        "not compared: its heads have them",
        Every(tuple(ends)),
    )


def _below_fedavg(where: str, published: str, quantity: str) -> list[Claim]:
    """What the paper says of the two personalised methods that do not keep up with a FedAvg that has learned."""
    return [
        Claim(
            f"{name} falls below FedAvg {where}",
            published,
            Every(
                (
                    *in_order("FedAvg, equal", f"{name}, equal", quantity, STUDY).rules,
                    *learned("FedAvg, equal", STUDY, 0.0, quantity),
                )
            ),
        )
        for name in ("LG-FedAvg", "FedMask")
    ]


ENTRIES.add(
    "mrpc-accuracy",
    _above_the_guess(
        "accuracy",
        figure(
            STUDY,
            "accuracy",
            [
                *_best_beats_the_guess("accuracy", 3.0),
                *_below_fedavg("on this harder task", "final test accuracy even falls below FedAvg", FINAL),
                Claim(
                    "FLPDSP-OPT (fast) converges fastest",
                    "a significant advantage in time efficiency",
                    soonest_in_every_panel("fast", STUDY),
                ),
                _with_the_papers_head(),
            ],
            place="Figure: test accuracy vs. latency on MRPC for BERT-Base with LoRA",
            **ABOUT,
        ),
    ),
)
ENTRIES.add("mrpc-loss", figure(STUDY, "loss", (), place="Figure: loss vs. latency on MRPC", **ABOUT))
ENTRIES.add(
    "mrpc-f1",
    _above_the_guess(
        "f1",
        figure(
            STUDY,
            "f1",
            [
                *_best_beats_the_guess("pooled F1", 2.0),
                *_below_fedavg("in F1 too", "some personalised methods fail to maintain their advantages", END_F1),
            ],
            place="Figure: F1 score vs. latency on MRPC for BERT-Base with LoRA",
            **ABOUT,
        ),
    ),
)
