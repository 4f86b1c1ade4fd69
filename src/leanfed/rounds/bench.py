"""What the rules of aggregation take: milliseconds of the server for a round of sparse uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Final, TypedDict

import numpy as np
import torch

import leanfed.rounds.robust  # noqa: F401  (registers its rules)
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.uploads import Upload
from leanfed.records import Floats
from leanfed.rounds.aggregation import AGGREGATIONS, Aggregation
from leanfed.streams import stream

BASE, KEEP_RATE = 50_692, 0.05  # LeNet-5's base, and the share of it that a client sends
CLIENTS: Final = (100, 1_000)
HONEST = 0.1  # cosine of two honest uploads on the same entries, roughly


class RuleRow(TypedDict):
    """One rule at one number of uploads."""

    rule: str
    uploads: int
    milliseconds: float
    over_mean: float  # times that of the weighted mean, measured in turns with it


def rule_rows(
    counts: Iterable[int] = CLIENTS,
    *,
    repeats: int = 5,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> list[RuleRow]:
    """Every rule that takes sparse uploads, beside the mean of the same uploads; the least of the repeats counts."""
    rows: list[RuleRow] = []
    for count in counts:
        sent, gamma = uploads_of(count, seed), np.full(count, 1.0 / count)
        for name in AGGREGATIONS:
            rule = AGGREGATIONS[name]()
            if rule.misfit(Flpdsp()) is not None:
                continue
            progress(f"{name}, {count} uploads")
            mean, own = _turns([AGGREGATIONS["mean"](), rule], gamma, sent, repeats)
            rows.append({"rule": name, "uploads": count, "milliseconds": 1e3 * own, "over_mean": own / mean})
    return rows


def uploads_of(count: int, seed: int) -> list[Upload]:
    """Sparse uploads that share a direction: the largest entries of a common vector plus each client's own noise."""
    rng, sent = stream(seed, "bench", "rules", count), []
    common = rng.standard_normal(BASE, dtype=np.float32)
    for _ in range(count):
        own = HONEST * common + rng.standard_normal(BASE, dtype=np.float32)
        places = np.sort(np.argpartition(np.abs(own), -int(KEEP_RATE * BASE))[-int(KEEP_RATE * BASE) :])
        sent.append(Upload(BASE, torch.from_numpy(own[places]), torch.from_numpy(places)))
    return sent


def _turns(rules: Sequence[Aggregation], gamma: Floats, sent: Sequence[Upload], repeats: int) -> list[float]:
    """The least seconds of each rule; they take turns, so that a busy moment does not meet one of them alone."""
    least = [np.inf] * len(rules)
    for _ in range(repeats):
        for place, rule in enumerate(rules):
            began = perf_counter()
            rule.judge(BASE, gamma, sent, range(len(sent)), {})
            least[place] = min(least[place], perf_counter() - began)
    return least
