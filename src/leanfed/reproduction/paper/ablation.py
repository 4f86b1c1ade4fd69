"""The effect of each module, alone and together: four panels over simulated seconds (MNIST, alpha 0.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from leanfed.reproduction.catalogue import ENTRIES, GUESS, Claim, Entry, Form, Job, Line, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, Labels, Less, Trend, above
from leanfed.reproduction.paper.protocol import EQUAL, MNIST, OPT, OWN, Changes, at_time, curve_of
from leanfed.runs.compare import ComparedRun

STUDY = replace(MNIST, rates={})  # modules are taken away at one learning rate, that of the settings file
ALONE = "FLPDSP k=1 r=1"
K_RATES, R_RATES = (0.01, 0.1, 0.5), (0.1, 0.3, 0.6)
FIXED = ((0.1, 0.5), (0.5, 0.5), (0.74, 0.82))
FINAL, EARLY, LATE = "final accuracy", "early lead", "late lead"
SHARED = "accuracy when the quickest of the panel ends"


def rates(k: float, r: float) -> str:
    """The name of FLPDSP at fixed rates."""
    return f"FLPDSP k={k:g} r={r:g}"


def _changes(k: float, r: float) -> Changes:
    return (*OWN, "algorithm.name=flpdsp", f"algorithm.k={k:g}", f"algorithm.r={r:g}")


# FLPDSP at k = r = 1 is FedPer bit for bit (there is a test), so FedPer's run is used for it.
PANELS: Mapping[str, Mapping[str, Changes]] = {
    "(a) one module": {
        ALONE: EQUAL["FedPer, equal"],
        "FedAvg-S": EQUAL["FedAvg-S, equal"],
        "FedAvg-P": EQUAL["FedAvg-P, equal"],
        "FedAvg": EQUAL["FedAvg, equal"],
    },
    "(b) decoupling and sparsification": {
        **{rates(k, 1): _changes(k, 1.0) for k in K_RATES},
        ALONE: EQUAL["FedPer, equal"],
    },
    "(c) decoupling and pruning": {
        **{rates(1, r): _changes(1.0, r) for r in R_RATES},
        ALONE: EQUAL["FedPer, equal"],
    },
    "(d) all three": {
        **{rates(k, r): _changes(k, r) for k, r in FIXED},
        "FLPDSP-OPT fast": OPT["FLPDSP-OPT fast"],
        "FLPDSP-OPT safe": OPT["FLPDSP-OPT safe"],
    },
}


def _jobs(scale: Scale) -> list[Job]:
    return [
        STUDY.job(method, changes, "alpha 0.1", seed, scale, panel=panel)
        for seed in scale.seeds
        for panel, methods in PANELS.items()
        for method, changes in methods.items()
    ]


def _measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    values: list[tuple[Labels, int, float | None]] = []
    lines: list[Line] = []
    for seed in scale.seeds:
        for panel in PANELS:
            curves = {
                outcome.job.labels["method"]: curve_of(outcome)
                for outcome in outcomes
                if outcome.job.settings.seed == seed and outcome.job.labels["panel"] == panel
            }
            values += [(labels, seed, value) for labels, value in _panel_numbers(panel, curves)]
            if seed == scale.seeds[0]:
                lines += [Line(panel, name, c.spent["latency_s"], c.accuracy) for name, c in curves.items()]
    return Measured(values, lines)


def _panel_numbers(panel: str, curves: Mapping[str, ComparedRun]) -> list[tuple[Labels, float | None]]:
    if not curves:
        return []
    moment = min(curve.spent["latency_s"][-1] for curve in curves.values())
    guess = next(iter(curves.values())).majority_guess
    numbers: list[tuple[Labels, float | None]] = [(cell(panel, GUESS, FINAL), guess)]
    for name, curve in curves.items():
        found = {
            FINAL: curve.accuracy[-1],
            SHARED: at_time(curve.spent["latency_s"], curve.accuracy, moment),
            **{f"seconds to {x:.0%}".replace("%", " %"): (curve.cost_of(x) or {}).get("latency_s") for x in (0.8, 0.9)},
        }
        numbers += [(cell(panel, name, quantity), value) for quantity, value in found.items()]
        for other, curve_of_other in curves.items():
            if other.startswith("FLPDSP-OPT") or other == ALONE:
                early, late = lead(curve, curve_of_other)
                numbers.append((cell(panel, name, f"{EARLY} over {other}"), early))
                numbers.append((cell(panel, name, f"{LATE} over {other}"), late))
    return numbers


def lead(one: ComparedRun, other: ComparedRun) -> tuple[float, float]:
    """How far one curve lies above another, on average over the (first, last) third of the time they share."""
    end = min(one.spent["latency_s"][-1], other.spent["latency_s"][-1])
    moments = np.linspace(0.0, end, 301)[1:]
    ahead = np.interp(moments, [0.0, *one.spent["latency_s"]], [0.0, *one.accuracy]) - np.interp(
        moments, [0.0, *other.spent["latency_s"]], [0.0, *other.accuracy]
    )
    return float(ahead[:100].mean()), float(ahead[200:].mean())


def cell(panel: str, method: str, quantity: str) -> dict[str, str]:
    """Labels of one number of a panel."""
    return {"panel": panel, "method": method, "quantity": quantity}


A, B, C, D = PANELS
K_SERIES = (*(rates(k, 1) for k in K_RATES), ALONE)
R_SERIES = (*(rates(1, r) for r in R_RATES), ALONE)
TO_90 = "seconds to 90 %"

ENTRIES.add(
    "ablation",
    Entry(
        title="Ablation: decoupling, sparsification and pruning, alone and together (MNIST, alpha 0.1)",
        place="Figure: ablation studies",
        claims=(
            Claim(
                "(a) decoupling helps most",
                "contributes the most",
                Every(
                    tuple(above(cell(A, ALONE, SHARED), cell(A, other, SHARED)) for other in ("FedAvg-S", "FedAvg-P"))
                ),
            ),
            Claim(
                "(a) sparsification alone helps on the latency axis",
                "moderate improvement",
                Every((above(cell(A, "FedAvg-S", SHARED), cell(A, "FedAvg", SHARED)),)),
            ),
            Claim(
                "(a) pruning alone hurts",
                "reduces test accuracy",
                Every((Less(cell(A, "FedAvg-P", SHARED), cell(A, "FedAvg", SHARED)),)),
                "a pruned model pays less computation a round, so it has had more rounds by the same second",
            ),
            Claim(
                "(b) a smaller k converges sooner: seconds to 90 % rise with k",
                "accelerates convergence",
                Trend(tuple(cell(B, name, TO_90) for name in K_SERIES)),
            ),
            Claim(
                "(b) a smaller k ends lower: final accuracy rises with k",
                "the final test accuracy declines",
                Trend(tuple(cell(B, name, FINAL) for name in K_SERIES), slack=0.002),
            ),
            Claim(
                "(c) a smaller r leads early: every r below 1 is ahead of r = 1 in the first third",
                "before about 900 s",
                Every(tuple(Bound(cell(C, name, f"{EARLY} over {ALONE}"), above=0.0) for name in R_SERIES[:-1])),
            ),
            Claim(
                "(c) a smaller r ends lower: final accuracy rises with r",
                "the more pronounced the decline",
                Trend(tuple(cell(C, name, FINAL) for name in R_SERIES), slack=0.002),
            ),
            *(
                Claim(
                    f"(d) fixed rates lead FLPDSP-OPT ({form}) early (first third)",
                    "surpass joint optimization before about 400 s",
                    Every(
                        tuple(
                            Bound(cell(D, rates(k, r), f"{EARLY} over FLPDSP-OPT {form}"), above=0.0) for k, r in FIXED
                        )
                    ),
                )
                for form in ("safe", "fast")
            ),
            *(
                Claim(
                    f"(d) fixed rates fall behind FLPDSP-OPT ({form}) later (last third)",
                    "below joint optimization after about 400 s",
                    Every(
                        tuple(
                            Bound(cell(D, rates(k, r), f"{LATE} over FLPDSP-OPT {form}"), below=0.0) for k, r in FIXED
                        )
                    ),
                )
                for form in ("safe", "fast")
            ),
        ),
        jobs=_jobs,
        measure=_measure,
        first_seed=MNIST.first_seed,
        form=Form(
            rows=("method",),
            columns=("quantity",),
            block="panel",
            panels=tuple(PANELS),
        ),
        settings="configs/joint_alpha01.toml, learning rate 0.1 for all; fixed rates on equal shares, no feedback",
        reduced="one seed; the paper does not list its rates",
    ),
)
