"""The headline, read from the results of `fair`: seconds after which a target is kept, every baseline with its aids."""

from __future__ import annotations

from typing import Any

from leanfed.charts.tables import Block, markdown
from leanfed.reproduction.paper import fair

ROWS = {  # rows of `fair` that are shown, and what they are called
    fair.OPT_TUNED: "FLPDSP-OPT tuned, damped server",
    fair.DAMPED_FAST: "FLPDSP-OPT fast, damped server",
    "FLPDSP, k = 0.05, fastest 60 %, damped": "the same without a planner: k = 0.05 by the fastest 60 %, damped",
    "FedPer + head steps + pace, damped": "FedPer with all aids, damped",
    "LG-FedAvg + pace, damped": "LG-FedAvg with all aids, damped",
    fair.FAST: "FLPDSP-OPT fast, plain server",
    "FLPDSP, k = 0.05, fastest 60 %": "k = 0.05 by the fastest 60 %, plain server",
    "FedPer + head steps + pace": "FedPer with all aids, plain server",
    "FLPDSP-OPT plain": "FLPDSP-OPT plain, as published",
    "FedPer, equal": "FedPer, as published",
    "Local, 5 steps": "every client alone, 5 steps",
    "Head-only": "heads on a frozen random base",
}
SHORT = (*list(ROWS)[:4], "FLPDSP-OPT plain", "FedPer, equal", "Local, 5 steps")  # the README's


def headline_table(results: dict[str, Any], *, short: bool = False) -> str:
    """Sustained seconds to the halfway target and to 90 %, means over seeds; `short`: a few rows, the first target.

    A row of which only some seeds were run says which.
    """
    found = {
        (n["labels"]["method"], n["labels"]["partition"], n["labels"]["target"]): n
        for n in results["numbers"]
        if n["labels"]["quantity"] == fair.SUSTAINED and n["ours"]
    }
    goals = {n["labels"]["partition"]: n["mean"] for n in results["numbers"] if n["labels"]["method"] == "target"}
    columns = [(p, t) for t in ((fair.HALFWAY,) if short else (fair.HALFWAY, "90 %")) for p in goals]

    def text(row: str, partition: str, target: str) -> str:
        number = found.get((row, partition, target))
        reached = [value for value in number["ours"] if value is not None] if number else []
        if number is None or not reached:
            return "-" if number is None else "never"
        mean, count = sum(reached) / len(reached), len(number["ours"])
        return f"{mean:.1f}" if len(reached) == count else f"{mean:.1f} ({len(reached)} of {count})"

    heads = [f"{p}: {100 * goals[p]:.1f} %" if t == fair.HALFWAY else f"{p}: {t}" for p, t in columns]

    def name(row: str) -> str:
        seeds = next((number["seeds"] for place, number in found.items() if place[0] == row), results["seeds"])
        return ROWS[row] + (f" (seed {', '.join(map(str, seeds))})" if seeds != results["seeds"] else "")

    rows = [[name(row), *(text(row, p, t) for p, t in columns)] for row in (SHORT if short else ROWS)]
    return markdown(Block("", ["simulated seconds until an accuracy is kept", *heads], rows))


def headline_ratios(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By row of STEADY and partition: damped fast's share of its sustained seconds to the halfway target."""
    found: dict[str, dict[str, float]] = {}
    for number in results["numbers"]:
        labels = number["labels"]
        shown = (
            labels["quantity"] == fair.SHARE and labels["target"] == fair.HALFWAY and labels["method"] in fair.STEADY
        )
        if shown and number["mean"] is not None:
            found.setdefault(labels["method"], {})[labels["partition"]] = number["mean"]
    return found


def tuned_shares(results: dict[str, Any]) -> dict[str, float]:
    """By partition, and for all four together: the tuned form's share of the soonest opponent's seconds to halfway."""
    wanted = {"method": fair.OPT_TUNED, "quantity": fair.OF_BEST, "target": fair.HALFWAY}
    return {
        number["labels"]["partition"]: number["mean"]
        for number in results["numbers"]
        if number["mean"] is not None and wanted.items() <= number["labels"].items()
    }


def energy_shares(results: dict[str, Any]) -> dict[str, float]:
    """By partition: the tuned form's joules to the halfway target over those of the plain rule with its server.

    The mean over the seeds in which both keep the target.
    """
    joules: dict[str, dict[str, dict[int, float]]] = {}
    for number in results["numbers"]:
        labels = number["labels"]
        if labels["quantity"] == fair.JOULES and labels["target"] == fair.HALFWAY:
            by_seed = {seed: value for seed, value in zip(number["seeds"], number["ours"], strict=True) if value}
            joules.setdefault(labels["partition"], {})[labels["method"]] = by_seed
    found = {}
    for partition, rows in joules.items():
        ours, rule = rows.get(fair.OPT_TUNED, {}), rows.get(fair.RULE, {})
        if both := ours.keys() & rule.keys():
            found[partition] = sum(ours[seed] / rule[seed] for seed in both) / len(both)
    return found
