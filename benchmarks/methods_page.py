"""Take the results of the study over all methods into results/methods: python benchmarks/methods_page.py runs/methods.

First `leanfed study examples/methods.toml --out runs/methods`, with --no-train for what is finished so far. With a
second folder, that of `leanfed study examples/methods-development.toml`, the scores of learning rates are taken too.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from leanfed.charts.tables import markdown
from leanfed.files import read_json, write_json, write_text
from leanfed.runs.study import read_study
from leanfed.runs.study_tables import block_of

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "results" / "methods"
STUDY = ROOT / "examples" / "methods.toml"
HEAD = """# All methods on MNIST

`leanfed study examples/methods.toml`: MNIST, LeNet-5, 100 clients, 60 rounds of 20 clients with five steps of 32
samples, tested on every client's own test set after the last round. The file says each method's learning rate and how
it was chosen; seconds, joules and bits are simulated (10 MHz, equal shares). Before a test FedBABU, Per-FedAvg and the
row "FedAvg, tuned" take a few steps on a copy of the model, which are not charged; other rows do not have this aid.
{there} of {all} runs are there{missing}.

"""


def page(results: dict[str, Any]) -> str:
    """The page from study.json: what is there, what is missing, the table."""
    study, jobs = read_study(STUDY)
    there = sum(row[results["score"]]["seeds"] for row in results["rows"])
    missing = "" if there == len(jobs) else f"; the column seeds says of which, where {len(study.seeds)} are wanted"
    head = HEAD.format(there=there, all=len(jobs), missing=missing)
    return head + markdown(block_of(results)) + "\n"


def scores(folder: Path) -> dict[str, dict[str, float]]:
    """Row -> learning rate -> its accuracy on held-back samples; rates that diverged have none."""
    found: dict[str, dict[str, float]] = {}
    with (folder / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rate = f"{float(row['training.learning_rate']):g}"
            found.setdefault(row["method"], {})[rate] = round(float(row["accuracy"]), 4)
    return found


if __name__ == "__main__":
    taken = read_json(Path(sys.argv[1]) / "study.json")
    write_json(HOME / "study.json", taken)
    write_text(HOME / "README.md", page(taken))
    for developed in sys.argv[2:]:
        write_json(HOME / "development.json", scores(Path(developed)))
