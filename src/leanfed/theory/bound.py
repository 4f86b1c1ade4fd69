"""The convergence bound, Theorem 1, and the weights theta1 and theta2 that it gives the allocation problem.

Two forms. `paper` is the text's own. `corrected` (the default) mends two steps of its proof: (L2 eta^2 - eta) G^2
bounds the squared gradients only where L2 eta >= 1, so its negative part is dropped; and with non-IID data another
client's gradient differs from F_n's by more than sampling noise, so the measured divergence delta_n^2 enters.

| quantity | paper needs | corrected needs |
|---|---|---|
| Psi1(r) | L1, M, L2, G, sigma, eta | the same and delta_n^2 |
| Psi2(k) | L2, G, eta, gamma | the same |
| theta1 | L1, M, eta, T | the same |
| theta2 | L2, G, eta, T | the same |
| Theorem 1 | all of these and F(w_1) - F(w_*) per client | the same and delta_n^2 |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leanfed.errors import InputError, nearest

Floats = NDArray[np.float64]

FORMS = ("paper", "corrected")


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 1-3 and the two settings that enter with them."""

    loss_lipschitz: float  # L1: |F(x) - F(y)| <= L1 |x - y|
    gradient_lipschitz: float  # L2: |grad F(x) - grad F(y)| <= L2 |x - y|
    gradient_bound: float  # G: E|g|^2 <= G^2
    weight_bound: float  # M: |w|^2 <= M^2
    noise: float  # sigma: E|grad F - g|^2 <= sigma^2
    learning_rate: float  # eta
    rounds: int  # T

    def __post_init__(self) -> None:
        for name in ("loss_lipschitz", "gradient_lipschitz", "gradient_bound", "weight_bound", "noise"):
            _check(name, getattr(self, name), positive=False)
        _check("learning_rate", self.learning_rate, positive=True)
        _check("rounds", self.rounds, positive=True)

    @property
    def overshoot(self) -> float:
        """L2 eta - 1: positive where a step may go past the minimum of its quadratic model."""
        return self.gradient_lipschitz * self.learning_rate - 1.0


def _check(name: str, value: float, *, positive: bool) -> None:
    if not np.isfinite(value) or value < 0.0 or (positive and value == 0.0):
        raise InputError(f"{name} is {value:g}; it must be finite and {'above' if positive else 'at least'} 0.")


def _is_corrected(form: str) -> bool:
    if form not in FORMS:
        raise InputError(f"Unknown form {form!r} of the bound; {nearest(form, FORMS)}")
    return form == "corrected"


def _step_term(constants: Constants, form: str) -> float:
    """(L2 eta^2 - eta)/2, in the corrected form not below 0."""
    overshoot = max(0.0, constants.overshoot) if _is_corrected(form) else constants.overshoot
    return 0.5 * constants.learning_rate * overshoot


def psi1(r: ArrayLike, constants: Constants, *, divergence_sq: ArrayLike = 0.0, form: str = "corrected") -> Floats:
    """What pruning to r adds, Proposition 2: L1 M sqrt(1-r) + (L2 eta^2 - eta)/2 G^2 + 3/2 eta sigma^2.

    Corrected: L1 M sqrt(1-r) + c G^2 + eta (delta^2 + sigma^2) + eta sigma^2/2, with c = max(0, L2 eta^2 - eta)/2 and
    delta_n^2 = |grad F_n^B - sum_i gamma_i grad F_i^B|^2 given as `divergence_sq`.
    """
    pruning = constants.loss_lipschitz * constants.weight_bound * np.sqrt(1.0 - np.asarray(r, dtype=float))
    step = _step_term(constants, form) * constants.gradient_bound**2
    sampling = 1.5 * constants.learning_rate * constants.noise**2
    extra = constants.learning_rate * np.asarray(divergence_sq, dtype=float) if _is_corrected(form) else 0.0
    return np.asarray(pruning + step + sampling + extra)


def psi2(k: ArrayLike, weights: ArrayLike, constants: Constants, *, form: str = "corrected") -> Floats:
    """What sparsifying to k adds, Proposition 3: (L2 eta^2 - 3 eta) G^2/2 sum gamma k + eta G^2.

    Corrected: G^2 sum gamma (c k + eta (1-k)), with c = max(0, L2 eta^2 - eta)/2; clients on the last axis. With
    c = (L2 eta^2 - eta)/2 and weights that add up to one it is the paper's.
    """
    k = np.asarray(k, dtype=float)
    each = _step_term(constants, form) * k + constants.learning_rate * (1.0 - k)
    return np.asarray(constants.gradient_bound**2 * np.sum(np.asarray(weights) * each, axis=-1))


def theorem1(
    initial_gap: ArrayLike,
    k: ArrayLike,
    r: ArrayLike,
    weights: ArrayLike,
    constants: Constants,
    *,
    divergence_sq: ArrayLike = 0.0,
    form: str = "corrected",
) -> float:
    """Right side of Theorem 1, Eq. (26): 2/(eta T) (sum gamma (F(w_1) - F(w_*)) + sum_t sum_n gamma (Psi1 + Psi2)).

    `initial_gap` holds F_n(w_1) - F_n(w_*) per client, `k` and `r` one row per round.
    """
    weights = np.asarray(weights, dtype=float)
    rows_k, rows_r = np.atleast_2d(np.asarray(k, dtype=float)), np.atleast_2d(np.asarray(r, dtype=float))
    start = np.sum(weights * np.asarray(initial_gap, dtype=float))
    pruning = np.sum(weights * psi1(rows_r, constants, divergence_sq=divergence_sq, form=form))
    sparsity = np.sum(weights) * np.sum(psi2(rows_k, weights, constants, form=form))
    return float(2.0 / (constants.learning_rate * constants.rounds) * (start + pruning + sparsity))


def theta1(constants: Constants) -> float:
    """What a head's sqrt(1-r) costs in Eq. (27): 2 L1 M/(eta T)."""
    return 2.0 * constants.loss_lipschitz * constants.weight_bound / (constants.learning_rate * constants.rounds)


def theta2(constants: Constants, *, form: str = "corrected") -> float:
    """What a unit of k gains in Eq. (27): (3 - L2 eta) G^2/T; corrected: (2 - max(0, L2 eta - 1)) G^2/T.

    Refused where it is not positive: the bound then rewards uploading less.
    """
    gain = (2.0 - max(0.0, constants.overshoot)) if _is_corrected(form) else 2.0 - constants.overshoot
    value = gain * constants.gradient_bound**2 / constants.rounds
    if value <= 0.0:
        highest = 3.0 / constants.gradient_lipschitz if constants.gradient_lipschitz > 0.0 else np.inf
        raise InputError(
            f"theta2 is {value:g} at learning rate {constants.learning_rate:g}; it must be above 0. "
            f"Use a learning rate below 3/L2 = {highest:g}, and a gradient bound above 0."
        )
    return float(value)


def theta_ratio(constants: Constants) -> tuple[float, str]:
    """theta1/theta2 as the paper has them, and why its condition eta < 3/L2 is broken, if it is.

    Then the ratio is that of eta = 1/L2, the longest step that does not overshoot: L1 L2 M/G^2.
    """
    highest = 3.0 / constants.gradient_lipschitz if constants.gradient_lipschitz > 0.0 else np.inf
    if constants.learning_rate < highest:
        return theta1(constants) / theta2(constants, form="paper"), ""
    tame = replace(constants, learning_rate=highest / 3.0)
    why = f"the learning rate {constants.learning_rate:g} is not below 3/L2 = {highest:.3g}; prices are those of 1/L2"
    return theta1(tame) / theta2(tame, form="paper"), why
