"""What differences on the way down do to learning: MNIST under the headline's protocol, uploads in 8 bits.

    python -m benchmarks.downlink OUT.json [SEED ...]

Rows are added to OUT.json as runs end; those that are there already are not run again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import leanfed
from leanfed.charts.tables import Block, markdown
from leanfed.files import read_json, write_json
from leanfed.reproduction.catalogue import Scale
from leanfed.reproduction.paper.fair import DAMPED_FAST, LAST, PROTOCOL, ROWS
from leanfed.reproduction.paper.protocol import MNIST
from leanfed.runs.compare import compared
from leanfed.runs.settings import Settings

PARTITIONS = ("Class-2", "alpha 0.1")
COMMON = (*ROWS[DAMPED_FAST], *PROTOCOL, "radio.values=log8", "radio.downlink=broadcast")
DOWN = {
    "dense": (),
    **{
        f"k = {k:g}, {kind}": ("radio.broadcast=difference", f"radio.k_down={k:g}", f"radio.values_down={kind}")
        for k, kind in ((0.1, "log8"), (0.1, "log4"), (0.1, "sign"), (0.03, "log8"))
    },
}
COLUMNS = {
    "seconds_to_80": ".2f",
    "seconds_to_90": ".2f",
    "accuracy": ".4f",
    "worst_decile": ".4f",
    "broadcast_mbit": ".1f",
}
HEAD = ("partition", "sent down", "seconds to 80 %", "90 %", "end", "worst decile", "broadcast, Mbit")
METHODS = {f"{DAMPED_FAST}, {name}": (*COMMON, *own) for name, own in DOWN.items()}  # the name finds the rate


def measured(settings: Settings) -> dict[str, Any]:
    """Simulated seconds to 80 % and 90 % (sustained), the mean of the last evaluations, megabits both ways."""
    run = leanfed.run(settings)
    curve = compared(settings.name, "flpdsp", run.rounds)
    to = {f"seconds_to_{round(100 * target)}": curve.sustained_cost_of(target) for target in (0.8, 0.9)}
    return {
        **{name: None if cost is None else round(cost["latency_s"], 3) for name, cost in to.items()},
        "accuracy": round(float(np.mean(curve.accuracy[-LAST:])), 4),
        "worst_decile": round(float(np.mean(curve.worst_decile[-LAST:])), 4),
        "rounds": run.rounds.height,
        "seconds": round(float(run.rounds["latency_s"].sum()), 3),
        "up_mbit": round(run.rounds["upload_bits"].sum() / 1e6, 3),
        "broadcast_mbit": round(run.rounds["download_bits"].sum() / 1e6, 3),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds in Markdown; a target that some run does not keep is never reached."""
    cells = [
        [partition, down, *(_mean(rows, partition, down, name, form) for name, form in COLUMNS.items())]
        for partition in PARTITIONS
        for down in DOWN
    ]
    return markdown(Block("", HEAD, cells))


def _mean(rows: Sequence[Mapping[str, Any]], partition: str, down: str, name: str, form: str) -> str:
    values = [row[name] for row in rows if (row["partition"], row["down"]) == (partition, down)]
    return "never" if None in values else format(float(np.mean(values)), form)


def main() -> None:
    out, seeds = Path(sys.argv[1]), tuple(map(int, sys.argv[2:])) or (30,)
    rows: list[dict[str, Any]] = read_json(out)["runs"] if out.is_file() else []
    for job in MNIST.jobs(METHODS, Scale(seeds), partitions=PARTITIONS):
        down = job.labels["method"].removeprefix(f"{DAMPED_FAST}, ")
        labels = {"partition": job.labels["partition"], "down": down, "seed": job.settings.seed}
        if not any(labels.items() <= row.items() for row in rows):
            rows.append({**labels, **measured(job.settings)})
            write_json(out, {"runs": rows})
            print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
