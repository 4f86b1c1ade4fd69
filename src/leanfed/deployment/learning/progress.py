"""One line for each round of a fleet's run, for whoever watches the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TROUBLE = ("refused", "late", "lost", "behind", "set_aside")  # counts that are told where they are not zero


def round_line(
    row: Mapping[str, Any],
    *,
    rounds: int,
    asked: int,
    counts: Mapping[str, int],
    tested: tuple[int, float] | None,
    durations_s: Sequence[float],
) -> str:
    """The round in a line; `tested` is the newest round whose model was tested and its accuracy.

    >>> row = {"round": 4, "participants": 3, "train_loss": None, "elapsed_s": 6.21, "latency_s": 5.9}
    >>> round_line(row, rounds=30, asked=4, counts={"late": 1}, tested=(4, 0.71), durations_s=[6.0, 6.2])
    'round 5 of 30: 3 of 4 updates in 6.2 s (5.9 predicted), accuracy 0.7100, 1 late; 2.5 min left'
    """
    done = int(row["round"]) + 1
    parts = [f"{row['participants']} of {asked} updates in {row['elapsed_s']:.1f} s ({row['latency_s']:.1f} predicted)"]
    if row.get("train_loss") is not None:
        parts.append(f"training loss {row['train_loss']:.4f}")
    if tested is not None:
        after = "" if tested[0] + 1 >= done - 1 else f" after round {tested[0] + 1}"
        parts.append(f"accuracy {tested[1]:.4f}{after}")
    parts += [f"{counts[name]} {name.replace('_', ' ')}" for name in TROUBLE if counts.get(name)]
    left_s = (rounds - done) * sum(durations_s) / len(durations_s) if durations_s else 0.0
    return f"round {done} of {rounds}: {', '.join(parts)}{_left(left_s)}"


def _left(seconds: float) -> str:
    """What is left, in the unit that people would use; nothing at the end."""
    if seconds <= 0.0:
        return ""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"; {seconds / size:.1f} {unit} left"
    return f"; {seconds:.0f} s left"
