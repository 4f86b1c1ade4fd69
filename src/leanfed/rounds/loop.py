"""The round loop: plan a round, run it, evaluate it if due, and yield its record."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from leanfed.algorithms.contract import SIGNALS, ServerState
from leanfed.quantities import type_of
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.rounds.backdoor import success
from leanfed.rounds.broadcast import seen, with_view_of
from leanfed.rounds.budget import Budget
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.costs import Accountant
from leanfed.rounds.engine import Engine, RoundOutcome, empty_outcome, released
from leanfed.rounds.evaluation import Evaluation, EvaluationSettings
from leanfed.rounds.metrics import client_rows, told
from leanfed.rounds.planning import Planned, Planner
from leanfed.rounds.probing import Prober, TheorySettings
from leanfed.rounds.world import World
from leanfed.tasks.task import Task


@dataclass
class Progress:
    """Where a run stands between two rounds. Not frozen: `clients` is the live store, which rounds change."""

    round: int  # the next round
    server: ServerState
    clients: ClientStore


@dataclass(frozen=True)
class RoundRecord:
    """One finished round: the state of the run after it, and its rows."""

    progress: Progress
    row: dict[str, Any]
    rounds: pl.DataFrame  # one row
    clients: pl.DataFrame  # one row per participant
    evaluations: pl.DataFrame  # one row per client if the round was evaluated, else none
    planned: Planned
    seconds: dict[str, float]  # wall-clock time by stage (train, test); not part of the result
    ends: bool = False  # whether it is the last one: of all rounds, or of what the run may spend

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The rows by the name of their table in the run folder."""
        return {"rounds": self.rounds, "clients": self.clients, "evaluations": self.evaluations}


def start(world: World) -> Progress:
    """The state before the first round."""
    return Progress(0, world.algorithm.start_server(world.task), world.new_clients())


def play(
    world: World,
    engine: Engine,
    accountant: Accountant,
    planner: Planner,
    progress: Progress,
    *,
    rounds: int,
    evaluation: EvaluationSettings,
    theory: TheorySettings,
    budget: Budget | None = None,
    until: int | None = None,
) -> Iterator[RoundRecord]:
    """Run the remaining rounds, yielding a record after each; the round that reaches the budget is the last.

    With `until` it stops before that round, which another world goes on with.
    """
    prober = Prober(theory, world, engine.host_learner(), engine.states)
    for number in range(progress.round, rounds if until is None else min(until, rounds)):
        plan = (planned := planner.plan(number)).plan
        probed = prober.row(seen(progress.server), progress.clients, plan)
        began = time.perf_counter()
        outcome = _outcome(engine, progress, plan)
        trained = time.perf_counter()
        progress = Progress(number + 1, outcome.server, progress.clients)
        bill = accountant.bill(plan, outcome)
        ends = number + 1 == rounds or (budget is not None and budget.spend(bill.round_row()))
        testing = time.perf_counter()
        due = (number + 1) % evaluation.every == 0 or ends
        tested = engine.evaluate(progress.server, progress.clients) if due and world.metrics == "shown" else None
        row = {**round_row(world, plan, outcome, tested), **bill.round_row(), **probed, **trust(engine, progress, due)}
        row = told(engine, progress.clients, plan, outcome, row, due)
        seconds = {"train": trained - began, "test": time.perf_counter() - testing}
        planner.observe(row)
        seen_alone = by_client(world, tested) if tested and evaluation.per_client else None
        columns = {**client_columns(plan, outcome, seen_alone, world.widths), **bill.client_columns()}
        yield RoundRecord(
            progress=progress,
            row=row,
            rounds=typed_frame({name: [value] for name, value in row.items()}),
            clients=client_rows(world, typed_frame(columns)),
            evaluations=typed_frame(evaluation_columns(number, tested, world.tested)),
            planned=planned,
            seconds=seconds,
            ends=ends,
        )
        if ends:
            return


def _outcome(engine: Engine, progress: Progress, plan: RoundPlan) -> RoundOutcome:
    """What a round comes to, also one without participants."""
    if plan.participants:
        return engine.run_round(progress.server, progress.clients, plan)
    return empty_outcome(_without_participants(engine.world, progress.server, plan.round))


def _without_participants(world: World, server: ServerState, number: int) -> ServerState:
    """The server after a round without participants: as before, but for the noise of a private run."""
    if world.ledger is None:
        return server
    return with_view_of(server, released(world, world.ledger, server, (), number)[0])


def spent(world: World, rounds: int) -> dict[str, float | None]:
    """Column of the privacy that so many rounds have cost; no column without privacy, empty where there is no end."""
    if world.ledger is None:
        return {}
    epsilon = world.ledger.epsilon(rounds)
    return {"epsilon": epsilon if math.isfinite(epsilon) else None}


def trust(engine: Engine, progress: Progress, due: bool) -> dict[str, float | None]:
    """Columns of the privacy spent, and of a backdoor's success, empty where the round was not evaluated.

    Runs without privacy, or without a backdoor, do not have them.
    """
    columns = spent(engine.world, progress.round)
    if engine.world.adversary.kind == "backdoor":
        columns["attack_success"] = success(engine, progress.server, progress.clients) if due else None
    return columns


def round_row(world: World, plan: RoundPlan, outcome: RoundOutcome, tested: Evaluation | None) -> dict[str, Any]:
    """One row of the rounds table; test columns are empty if the round was not evaluated."""
    task, gamma = world.task, world.task.gamma[list(plan.participants)]
    guess = world.guess
    return {
        "round": plan.round,
        "participants": len(plan.participants),
        "train_loss": float(gamma @ outcome.loss / gamma.sum()) if plan.participants else None,
        "samples": int(outcome.samples.sum()),
        "entries": int(outcome.entries.sum()),
        "k_mean": float(plan.k.mean()) if plan.participants else None,
        "r_mean": float(plan.r.mean()) if plan.participants else None,
        "accuracy": tested.accuracy if tested else None,
        "loss": tested.loss if tested else None,
        "worst_decile": tested.worst_decile if tested else None,
        "f1": tested.f1 if tested else None,
        "majority_guess": guess if task.loss.judged_by == "accuracy" else None,
        **(measured_signals(outcome.signals, gamma) if world.reports else {}),
        **({} if plan.head_steps is None else {"head_steps": plan.head_steps}),
        **dict.fromkeys(further_scores(task)),
        **({} if task.loss.judged_by == "accuracy" else {"constant_guess": guess}),
        **(tested.further if tested else {}),
        **({"interval": tested.interval if tested else None} if world.sampled else {}),
    }


def measured_signals(signals: Floats | None, gamma: Floats) -> dict[str, float | None]:
    """Columns of what participants reported: means by weight, None where nobody could say, or took part."""
    if signals is None:
        return dict.fromkeys(SIGNALS)
    means: dict[str, float | None] = {}
    for name, values in zip(SIGNALS, signals.T, strict=True):
        known = np.isfinite(values)
        total = math.fsum(gamma[known])
        means[name] = math.fsum(gamma[known] * values[known]) / total if total > 0.0 else None  # in no order
    return means


def further_scores(task: Task) -> tuple[str, ...]:
    """Columns of scores that only some tasks have."""
    errors = ("mae", "rmse") if "mae" in task.loss.scores else ()
    return (*errors, *(("perplexity",) if task.loss.perplexity else ()))


def by_client(world: World, tested: Evaluation) -> tuple[str, dict[int, float]]:
    """The score that clients are judged by, and its value for every client that was tested."""
    return tested.main, dict(zip(world.tested.tolist(), tested.main_per_client.tolist(), strict=True))


def client_columns(
    plan: RoundPlan,
    outcome: RoundOutcome,
    tested: tuple[str, Mapping[int, float]] | None,
    widths: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Columns of the clients table, one entry per participant; `tested` as `by_client` has it, `widths` of all."""
    clients = np.array(plan.participants, dtype=np.int64)
    main, scores = tested or ("", {})
    own = [scores.get(client) for client in plan.participants]
    return {
        "round": np.full(len(clients), plan.round),
        "client": clients,
        "k": plan.k,
        "r": plan.r,
        "share": shares_of(plan),
        **({} if widths is None else {"width": [widths[client] for client in plan.participants]}),
        "loss": outcome.loss,
        "samples": outcome.samples,
        "entries": outcome.entries,
        "weight": [None] * len(clients) if outcome.weights is None else outcome.weights,
        "accuracy": own if main == "accuracy" else [None] * len(clients),
        **({"mae": own} if main == "mae" else {}),
    }


def shares_of(plan: RoundPlan) -> Floats:
    """Every participant's share of the band; even shares if the plan has none."""
    count = len(plan.participants)
    return np.full(count, 1 / max(1, count)) if plan.share is None else plan.share


def evaluation_columns(number: int, tested: Evaluation | None, clients: Sequence[int] | Ints) -> dict[str, Any]:
    """Columns of the evaluations table: every tested client's own result, whether it took part in the round or not."""
    count = len(tested.loss_per_client) if tested else 0
    return {
        "round": np.full(count, number),
        "client": np.array(clients if count else [], dtype=np.int64),
        "accuracy": []
        if tested is None
        else tested.accuracy_per_client
        if tested.main == "accuracy"
        else [None] * count,
        "loss": tested.loss_per_client if tested else [],
        **({"mae": tested.main_per_client} if tested and tested.main == "mae" else {}),
    }


def typed_frame(columns: dict[str, Any]) -> pl.DataFrame:
    """Columns in the types of the schema, so that rows of any two rounds fit together."""
    return pl.DataFrame(columns, schema={name: pl.Int64 if type_of(name) is int else pl.Float64 for name in columns})
