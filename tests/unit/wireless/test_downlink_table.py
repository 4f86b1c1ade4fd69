"""What differences on the way down do to learning is told as measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.downlink import DOWN, PARTITIONS, table

from leanfed.files import read_json

ROOT = Path(__file__).resolve().parents[3]
ROWS = read_json(ROOT / "results/downlink/learning.json")["runs"]


def test_the_table_of_the_documents_is_that_of_the_file() -> None:
    assert table(ROWS) in (ROOT / "docs/measurements.md").read_text()


def test_every_way_down_was_run_on_every_seed() -> None:
    seeds = {row["seed"] for row in ROWS}
    assert len(ROWS) == len(seeds) * len(DOWN) * len(PARTITIONS)
    words = " ".join((ROOT / "docs/measurements.md").read_text().split())
    assert f"seeds {min(seeds)} to {max(seeds)}, means of {len(seeds)} runs" in words


def test_how_far_ends_lie_from_the_dense_broadcast_is_told() -> None:
    def far(name: str) -> float:
        means = {
            (p, d): float(np.mean([r[name] for r in ROWS if (r["partition"], r["down"]) == (p, d)]))
            for p in PARTITIONS
            for d in DOWN
        }
        return max(100 * (means[p, "dense"] - value) for (p, _), value in means.items())

    words = " ".join((ROOT / "docs/measurements.md").read_text().split())
    assert f"ends at most {far('accuracy'):.2f} points lower" in words
    assert f"worst tenth of the clients at most {far('worst_decile'):.1f}" in words


def test_differences_are_a_twentieth_of_the_dense_broadcast() -> None:
    dense = {(row["partition"], row["seed"]): row["broadcast_mbit"] for row in ROWS if row["down"] == "dense"}
    light = [row for row in ROWS if row["down"] != "dense"]
    assert all(row["broadcast_mbit"] < 0.05 * dense[row["partition"], row["seed"]] for row in light)


def test_how_far_seeds_lie_apart_is_told() -> None:
    found = {(row["partition"], row["down"], row["seed"]): row for row in ROWS}
    lost: dict[bool, list[float]] = {True: [], False: []}  # the seed that is named, and the others
    shares = []
    for (partition, down, seed), row in found.items():
        dense = found[partition, "dense", seed]
        if down != "dense":
            shares += [row[name] / dense[name] for name in ("seconds_to_80", "seconds_to_90")]
            if partition == "alpha 0.1":
                lost[seed == 32].append(100 * (dense["worst_decile"] - row["worst_decile"]))
    words = " ".join((ROOT / "docs/measurements.md").read_text().split())
    assert f"one of the five seeds (32) has {min(lost[True]):.1f} to {max(lost[True]):.1f} points" in words
    assert f"the others at most {max(lost[False]):.1f}" in words
    assert f"{min(shares):.1f} to {max(shares):.2f} of the dense ones by seed" in words
