"""How a round's cost grows with the number of clients, at a fixed number of participants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from leanfed.rounds.loop import start
from leanfed.runs.prepare import engine_of, prepare
from leanfed.runs.settings import Settings
from leanfed.simulation.bench import peak_bytes, reset_peak_bytes
from leanfed.simulation.choose import warm

SIZES = (1_000, 10_000, 100_000, 1_000_000)
PARTICIPANTS = 1_000
SAMPLES = 50  # of a client, of two classes


def scale_rows(
    sizes: Iterable[int] = SIZES,
    participants: int = PARTICIPANTS,
    threads: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, float | int]]:
    """Processor seconds of each stage for every number of clients: LeNet-5, FLPDSP with k = 0.05, embedded digits.

    `born_s` is a round whose participants all come for the first time, `round_s` the same round once their heads are
    born: plan, training, server and bill. `growth` is `round_s` over that of the first row.
    """
    warm()
    first = None
    for clients in sizes:
        progress(f"{clients:,} clients")
        settings = _settings(clients, min(participants, clients), threads)
        before = reset_peak_bytes()
        moments = [time.process_time()]
        experiment = prepare(settings)
        engine, progressed = engine_of(settings, experiment.world), start(experiment.world)
        moments.append(time.process_time())
        for _ in range(2):  # the same round: the second finds the heads born
            plan = experiment.planner.plan(0).plan
            outcome = engine.run_round(progressed.server, progressed.clients, plan)
            experiment.planner.accountant.bill(plan, outcome)
            moments.append(time.process_time())
        build_s, born_s, round_s = np.diff(moments).tolist()
        first = first or round_s
        yield {
            "clients": clients,
            "participants": min(participants, clients),
            "build_s": build_s,
            "born_s": born_s,
            "round_s": round_s,
            "growth": round_s / first,
            "peak_mib": peak_bytes() / 2**20,
            "extra_mib": (peak_bytes() - before) / 2**20,
        }


def _settings(clients: int, participants: int, threads: int) -> Settings:
    drawn = {"kind": "drawn", "clients": clients, "samples_per_client": SAMPLES, "classes_per_client": 2}
    return Settings.from_values(
        {
            "name": "scale",
            "task": {"partition": drawn},
            "algorithm": {"name": "flpdsp", "k": 0.05},
            "participation": {"fraction": participants / clients},
            "evaluation": {"clients": 1_000},
            "run": {"threads": threads},
        }
    )
