"""All seven methods on full MNIST, 100 clients, 100 rounds: writes results/foundation/methods.json.

LEANFED_DATA=... python benchmarks/methods.py
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.progress import track

import leanfed
from leanfed.algorithms import ALGORITHMS
from leanfed.files import make_folder, write_text

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ("mnist_alpha01", "mnist_class2")
KEPT = (
    "algorithm",
    "partition",
    "clients",
    "rounds",
    "seed",
    "accuracy",
    "best_accuracy",
    "worst_decile",
    "majority_guess",
)


def main() -> None:
    cases = [(config, name) for config in CONFIGS for name in ALGORITHMS]
    rows = []
    for config, name in track(cases, description="methods"):
        file = ROOT / "src/leanfed/reproduction/configs" / f"{config}.toml"
        summary = leanfed.run(leanfed.Settings.from_toml(file, [f"algorithm.name={name}"])).summary
        rows.append({key: summary[key] for key in KEPT})
    out = make_folder(ROOT / "results/foundation") / "methods.json"
    write_text(out, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
