"""Theorem 1 along a run: the bound after every measured round, from what the rounds table holds and nothing else.

Columns read (see `rounds/probing.py`), in measured rounds: `theory_loss` F, `theory_l1`, `theory_l2`,
`theory_g_sq` G^2, `theory_m`, `theory_sigma_sq`, `theory_delta_sq`; in every round: `theory_k` and `theory_root`, the
gamma-weighted means of k and sqrt(1-r), and `theory_eta`, empty where the theorem does not speak of the method.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from leanfed.errors import InputError
from leanfed.theory.bound import Constants, theorem1, theta2


def with_bounds(rounds: pl.DataFrame) -> pl.DataFrame:
    """The rounds table with the running mean of `gradient_norm_sq` and the bounds on it, in measured rounds.

    The constants are the largest met so far. F(w_*) is at least 0, so the first measured loss stands for the first gap.
    `bound_paper` is empty where the paper's condition eta <= 3/L2 does not hold.
    """
    measured = np.flatnonzero(rounds["gradient_norm_sq"].is_not_null().to_numpy())
    columns: dict[str, list[float | None]] = {
        name: [None] * rounds.height for name in ("gradient_norm_sq_mean", "bound_corrected", "bound_paper")
    }
    for row in measured.tolist():
        so_far = rounds[: row + 1]
        columns["gradient_norm_sq_mean"][row] = float(so_far["gradient_norm_sq"].drop_nulls().to_numpy().mean())
        columns["bound_corrected"][row] = bound_so_far(so_far, "corrected")
        columns["bound_paper"][row] = bound_so_far(so_far, "paper")
    return rounds.with_columns(pl.Series(name, values, dtype=pl.Float64) for name, values in columns.items())


def bound_so_far(rounds: pl.DataFrame, form: str) -> float | None:
    """Right side of Eq. (26) with T the number of rows; None where the theorem does not hold for them."""
    rounds = rounds.filter(pl.col("theory_k").is_not_null())  # a round without participants takes no step
    rates = rounds["theory_eta"]
    if rates.null_count() or rates.n_unique() != 1:
        return None
    constants = constants_so_far(rounds)
    if form == "paper" and not _condition_holds(constants):
        return None
    k, root = rounds["theory_k"].to_numpy(), rounds["theory_root"].to_numpy()
    # Psi1 is linear in sqrt(1-r) and Psi2 in k: their means over the clients stand for one client of weight one.
    return theorem1(
        [rounds["theory_loss"].drop_nulls()[0]],
        k[:, np.newaxis],
        1.0 - root[:, np.newaxis] ** 2,
        [1.0],
        constants,
        divergence_sq=_largest(rounds, "theory_delta_sq"),
        form=form,
    )


def constants_so_far(rounds: pl.DataFrame) -> Constants:
    """The largest of every measured quantity."""
    return Constants(
        loss_lipschitz=_largest(rounds, "theory_l1"),
        gradient_lipschitz=_largest(rounds, "theory_l2"),
        gradient_bound=_largest(rounds, "theory_g_sq") ** 0.5,
        weight_bound=_largest(rounds, "theory_m"),
        noise=_largest(rounds, "theory_sigma_sq") ** 0.5,
        learning_rate=float(rounds["theory_eta"][0]),
        rounds=rounds.height,
    )


def _largest(rounds: pl.DataFrame, name: str) -> float:
    return float(rounds[name].drop_nulls().to_numpy().max())


def _condition_holds(constants: Constants) -> bool:
    try:
        return theta2(constants, form="paper") > 0.0
    except InputError:
        return False
