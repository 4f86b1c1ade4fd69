"""What a run tells of its clients' data beside the shared weights: everything, nothing, or noised means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from leanfed.records import Floats, RoundPlan
from leanfed.rounds.broadcast import seen
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import Engine, RoundOutcome
from leanfed.rounds.privacy import released_means
from leanfed.rounds.world import World

# Columns that clients report, or that are made of what they report or hold.
REPORTED: Final = frozenset(
    {"train_loss", "loss", "accuracy", "worst_decile", "f1", "interval", "mae", "rmse", "perplexity"}
) | {"majority_guess", "constant_guess"}
# Columns of what a server sees of single uploads: a weight tells a norm, coded bits tell what values are like.
SEEN: Final = frozenset({"weight", "coded_bits"})


def withheld(world: World) -> frozenset[str]:
    """The columns that stay empty: of what clients report, and in a private run of what their uploads look like."""
    if world.metrics == "shown":
        return frozenset()
    return REPORTED if world.ledger is None else REPORTED | SEEN


def told(
    engine: Engine, clients: ClientStore, plan: RoundPlan, outcome: RoundOutcome, row: Mapping[str, Any], due: bool
) -> dict[str, Any]:
    """A row of the rounds table as it may be seen; `outcome` holds the server after the round."""
    world = engine.world
    hidden = withheld(world)
    seen_row = {name: None if name in hidden else value for name, value in row.items()}
    if world.metrics == "noised":
        seen_row |= _noised(engine, clients, plan, outcome, due)
    return seen_row


def _noised(
    engine: Engine, clients: ClientStore, plan: RoundPlan, outcome: RoundOutcome, due: bool
) -> dict[str, float]:
    """Noised means of the participants: the training loss, and where a test is due, loss and accuracy of their models.

    Only participants are tested: what others hold is not part of the round that is paid for. A round without any
    releases noise all the same, as it does of the shared weights.
    """
    ledger = engine.world.ledger
    assert ledger is not None
    bound = ledger.settings.metrics_bound
    metrics: dict[str, tuple[Floats, float]] = {"train_loss": (outcome.loss, bound)}
    if due:
        scores: Mapping[str, Floats] = {name: np.zeros(0) for name in engine.world.task.loss.scores}
        loss = np.zeros(0)
        if plan.participants:
            tested = engine.test(seen(outcome.server), clients, plan.participants)
            loss, scores = tested.loss, tested.scores
        metrics["loss"] = (loss, bound)
        if "accuracy" in scores:
            metrics["accuracy"] = (scores["accuracy"], 1.0)
    return released_means(ledger, plan.round, metrics)


def client_rows(world: World, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of the clients table as they may be seen: where the budget relies on a secret draw, none at all."""
    if world.metrics == "shown":
        return rows
    if world.ledger is not None and world.ledger.sampling < 1.0:
        return rows.clear()
    return rows.with_columns(
        pl.lit(None, rows[name].dtype).alias(name) for name in rows.columns if name in withheld(world)
    )
