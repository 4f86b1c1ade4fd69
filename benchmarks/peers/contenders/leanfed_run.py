"""leanfed: `leanfed.run` with the engine that it chooses itself; batches are drawn anew in every round."""

from __future__ import annotations

import json

from benchmarks.peers.turns import Turns

import leanfed
from leanfed.rounds.loop import RoundRecord


def main(values: str) -> None:
    """Run settings given as JSON. A last round is added that nobody measures: leanfed evaluates it."""
    turns = Turns("leanfed", "torch", "numpy")
    settings = leanfed.Settings.from_values({**json.loads(values), "rounds": turns.rounds + 1})

    def listen(record: RoundRecord) -> None:
        if record.progress.round <= turns.rounds:
            turns.after_round(lambda: record.progress.server.shared.numpy())

    turns.begin()
    leanfed.run(settings, listen=listen)
