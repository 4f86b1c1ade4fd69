"""The rows of a fleet's round: predicted and measured values, in the columns of every run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl

from leanfed.algorithms.contract import ServerState
from leanfed.deployment.learning.mail import Accepted
from leanfed.deployment.learning.reported_fleet import ReportedFleet
from leanfed.records import Floats, RoundPlan
from leanfed.rounds.costs import Accountant
from leanfed.rounds.engine import RoundOutcome
from leanfed.rounds.evaluation import Evaluation
from leanfed.rounds.loop import client_columns, evaluation_columns, round_row, typed_frame
from leanfed.rounds.metrics import withheld


@dataclass
class PendingRound:
    """The last round's rows, kept until the next round brings the tests of its model."""

    row: dict[str, Any]
    columns: dict[str, list[Any]]
    due: bool  # whether its model is to be tested
    evaluations: dict[str, list[Any]] = field(default_factory=lambda: _lists(evaluation_columns(0, None, ())))

    def complete(self, tested: Mapping[int, tuple[float, float]], gamma: Mapping[int, float], per_client: bool) -> None:
        """Fill in the test results of the clients that sent one, with gamma renormalised over them."""
        if not self.due or not tested:
            return
        clients = sorted(tested)
        weights = np.array([gamma[client] for client in clients])
        accuracy, loss = np.array([tested[client] for client in clients]).T
        result = Evaluation(accuracy, loss, weights / weights.sum())
        self.row |= {"accuracy": result.accuracy, "loss": result.loss, "worst_decile": result.worst_decile}
        self.row["tested"] = len(clients)
        self.evaluations = _lists(evaluation_columns(self.row["round"], result, clients))
        if per_client:
            self.columns["accuracy"] = [tested.get(client, (None,))[0] for client in self.columns["client"]]

    def frames(self) -> dict[str, pl.DataFrame]:
        """The rows as tables by name."""
        return {
            "rounds": typed_frame({name: [value] for name, value in self.row.items()}),
            "clients": typed_frame(self.columns),
            "evaluations": typed_frame(self.evaluations),
        }

    def chosen_weights(self) -> dict[str, float]:
        """client -> the weight of its update, where the rule of aggregation chooses weights; else nothing."""
        pairs = zip(self.columns["client"], self.columns["weight"], strict=True)
        return {str(client): round(weight, 6) for client, weight in pairs if weight is not None}

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


def outcome_of(server: ServerState, accepted: Mapping[int, Accepted], weights: Floats | None) -> RoundOutcome:
    """The round's columns in client order; `weights` are those of the uploads, where the rule chooses them."""
    answers = [accepted[client] for client in sorted(accepted)]
    return RoundOutcome(
        server,
        loss=np.array([one.answer.loss for one in answers], dtype=float),
        samples=np.array([one.answer.samples for one in answers], dtype=np.int64),
        entries=np.array([one.upload.entries for one in answers], dtype=np.int64),
        coded_bits=np.array([8.0 * len(one.answer.frame) for one in answers]),
        weights=weights,
        signals=_signals(answers),
    )


def _signals(answers: Sequence[Accepted]) -> Floats | None:
    """(participants, SIGNALS), NaN where a client does not know; None where the run does not ask for them."""
    if not answers or answers[0].answer.signals is None:
        return None
    told = np.array([one.answer.signals for one in answers], dtype=float)
    return np.where(told < 0.0, np.nan, told)


def rows_of(
    plan: RoundPlan,
    outcome: RoundOutcome,
    accountant: Accountant,
    accepted: Mapping[int, Accepted],
    *,
    counts: Mapping[str, int],
    elapsed_s: float,
    sent_down: Mapping[int, int],
    due: bool,
) -> PendingRound:
    """Predicted and measured values of one round; `plan` contains the clients whose updates were applied.

    `sent_down` has the bytes of base and differences that each client was sent, those that only tested included.
    """
    bill = accountant.bill(plan, outcome)
    answers = [accepted[client] for client in plan.participants]
    row = {**round_row(accountant.world, plan, outcome, None), **bill.round_row(), "elapsed_s": elapsed_s}
    row |= {"message_bytes": float(sum(one.message_bytes for one in answers)), "tested": 0}
    row["base_bytes"] = float(sum(sent_down.values()))
    row |= {name: counts.get(name, 0) for name in ("refused", "late", "lost")}
    row |= dict.fromkeys(withheld(accountant.world) & row.keys())
    row["prediction_error"] = prediction_error(row["latency_s"], elapsed_s) if answers else None
    columns = {**client_columns(plan, outcome, None), **bill.client_columns()}
    columns |= {
        "elapsed_s": [one.elapsed_s for one in answers],
        "ready_s": [one.answer.ready_s for one in answers],
        "train_s": [one.answer.train_s for one in answers],
        "test_s": [one.answer.test_s for one in answers],
        "upload_s": [one.upload_s for one in answers],
        "frame_bytes": [float(len(one.answer.frame)) for one in answers],
        "base_bytes": [float(sent_down.get(client, 0)) for client in plan.participants],
        "message_bytes": [float(one.message_bytes) for one in answers],
        "measured_j": [one.device.step_j for one in answers],
        "prediction_error": [
            prediction_error(predicted_s, one.elapsed_s)
            for predicted_s, one in zip(bill.cost.latency_s.tolist(), answers, strict=True)
        ],
        "uncertainty_s": _uncertainty(accountant, plan, answers),
    }
    columns |= {name: [None] * len(answers) for name in withheld(accountant.world) & columns.keys()}
    return PendingRound(row, _lists(columns), due)


def prediction_error(predicted_s: float, measured_s: float) -> float | None:
    """Predicted over measured seconds, less one; None where nothing was measured.

    >>> prediction_error(1.5, 2.0)
    -0.25
    """
    return predicted_s / measured_s - 1.0 if measured_s > 0.0 else None


def _uncertainty(accountant: Accountant, plan: RoundPlan, answers: Sequence[Accepted]) -> list[float | None]:
    """By how much each client's expected seconds of the link may be wrong; None where links are not measured."""
    fleet = accountant.fleet
    if not isinstance(fleet, ReportedFleet):
        return [None] * len(answers)
    pairs = zip(plan.participants, answers, strict=True)
    return [fleet.deviation_s(client, len(one.answer.frame)) for client, one in pairs]


def _lists(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {
        name: values.tolist() if isinstance(values, np.ndarray) else list(values) for name, values in columns.items()
    }
