"""The page's data on a run with real devices: predicted and measured seconds and bytes."""

from __future__ import annotations

import numpy as np

from leanfed.records import Floats, Ints
from leanfed.report.packing import floats, thinned, whole
from leanfed.report.parts import ROUNDS_OF_A_LINE, Part
from leanfed.report.read import RunFiles

LEARNED = 10  # rounds after which the links are known, as far as they ever are
STAGES = ("ready", "train", "test", "upload")  # of a client's time between an order and its answer


def measured_part(run: RunFiles) -> Part:
    """Predicted and measured seconds and bytes of every round; a simulated run has none."""
    if not run.real:
        return {"absent": True}
    numbers = run.column("rounds", "round").astype(np.int64)
    chosen = thinned(len(numbers), ROUNDS_OF_A_LINE)
    shown = numbers[chosen]
    rounds = run.column("clients", "round").astype(np.int64)
    return {
        "round": whole(shown + 1),
        "of": len(numbers),
        "predicted_s": floats(run.column("rounds", "latency_s")[chosen]),
        "measured_s": floats(run.column("rounds", "elapsed_s")[chosen]),
        "error": _median_error(run, numbers),
        "predicted_kb": floats(run.column("rounds", "upload_bits")[chosen] / 8e3),
        "coded_kb": floats(_by_round(rounds, run.column("clients", "frame_bytes"), shown) / 1e3),
        "sent_kb": floats(run.column("rounds", "message_bytes")[chosen] / 1e3),
        "stages": _stages(run, rounds, shown),
        "unheard": {name: float(np.nansum(run.column("rounds", name))) for name in ("refused", "late", "lost")},
    }


def _median_error(run: RunFiles, numbers: Ints) -> dict[str, float | None]:
    """Median of |predicted / measured - 1| of rounds and clients: after ten rounds, or of all where there are fewer."""
    found: dict[str, float | None] = {}
    for table in ("rounds", "clients"):
        if "prediction_error" not in run.tables[table].columns:
            found[table] = None
            continue
        errors = run.column(table, "prediction_error")
        later = run.column(table, "round") >= (LEARNED if len(numbers) > LEARNED else 0)
        known = np.abs(errors[later & ~np.isnan(errors)])
        found[table] = float(np.median(known)) if known.size else None
    return found


def _by_round(rounds: Ints, values: Floats, shown: Ints) -> Floats:
    """The sum over clients of a column, for each of the shown rounds."""
    count = int(max(rounds.max(initial=0), shown.max(initial=0))) + 1
    summed: Floats = np.bincount(rounds, np.nan_to_num(values), count).astype(float)
    return summed[shown]


def _stages(run: RunFiles, rounds: Ints, shown: Ints) -> Part:
    """Mean seconds of a participant in each stage, and the rest of its time: starting, queueing, waiting."""
    count = np.maximum(_by_round(rounds, np.ones(len(rounds)), shown), 1.0)
    means = {stage: _by_round(rounds, run.column("clients", f"{stage}_s"), shown) / count for stage in STAGES}
    whole_s = _by_round(rounds, run.column("clients", "elapsed_s"), shown) / count
    rest = np.maximum(whole_s - np.sum(list(means.values()), axis=0), 0.0)
    return {name: floats(values) for name, values in {**means, "rest": rest}.items()}
