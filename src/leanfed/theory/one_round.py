"""Proposition 1: how much one round can raise a client's loss, from the norms that the round shows.

    F_n(w_{t+1}) - F_n(w_t) <= kappa_1 + kappa_2 - eta/2 |grad F_n(pruned w_t)|^2

Every step of its proof holds for each draw of samples and masks, so `proposition1` can be checked round by round on a
run. The gaps of the theory come afterwards, where kappa_1 and kappa_2 are bounded by Psi1 and Psi2: `bounded_change` is
that inequality, in the paper's form and in the corrected one (see `bound`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from leanfed.records import Floats
from leanfed.theory.bound import Constants, psi1, psi2


@dataclass(frozen=True)
class RoundTerms:
    """The norms of one client in one round; B is the base, P the head, and sums over i weigh clients by gamma_i."""

    pruned_distance: float  # |w - pruned w|
    gradient_sq: float  # |grad F|^2 on all of the client's samples, at its pruned model as all gradients here
    head_gradient_sq: float  # |g^P|^2
    head_noise_sq: float  # |grad F^P - g^P|^2
    base_gap_sq: float  # |grad F^B - sum_i gamma_i g_i^B|^2
    mean_upload_sq: float  # |sum_i gamma_i upload_i|^2
    cut_sq: float  # |sum_i gamma_i (g_i^B - upload_i)|^2

    @classmethod
    def of(
        cls, weights: Tensor, pruned: Tensor, full: Tensor, drawn: Tensor, mean_base: Tensor, mean_upload: Tensor
    ) -> RoundTerms:
        """From the vectors: `weights`, `pruned`, the gradients `full` (all samples) and `drawn` (the batch), all (d,);
        sum_i gamma_i g_i^B and sum_i gamma_i upload_i, both (d_B,).
        """
        cut = len(mean_base)
        return cls(
            pruned_distance=_square(weights - pruned) ** 0.5,
            gradient_sq=_square(full),
            head_gradient_sq=_square(drawn[cut:]),
            head_noise_sq=_square(full[cut:] - drawn[cut:]),
            base_gap_sq=_square(full[:cut] - mean_base),
            mean_upload_sq=_square(mean_upload),
            cut_sq=_square(mean_base - mean_upload),
        )


def kappa1(terms: RoundTerms, constants: Constants) -> float:
    """What pruning and sampling add: L1 |w - pruned w| + (L2 eta^2 - eta)/2 |g^P|^2 + eta gap^2 + eta/2 noise^2."""
    eta = constants.learning_rate
    pruning = constants.loss_lipschitz * terms.pruned_distance
    step = 0.5 * eta * constants.overshoot * terms.head_gradient_sq
    return pruning + step + eta * terms.base_gap_sq + 0.5 * eta * terms.head_noise_sq


def kappa2(terms: RoundTerms, constants: Constants) -> float:
    """What sparsification adds: (L2 eta^2 - eta)/2 |sum gamma upload|^2 + eta |sum gamma (g^B - upload)|^2."""
    eta = constants.learning_rate
    return 0.5 * eta * constants.overshoot * terms.mean_upload_sq + eta * terms.cut_sq


def proposition1(terms: RoundTerms, constants: Constants) -> float:
    """The most that the round can change the client's loss: kappa_1 + kappa_2 - eta/2 |grad F|^2."""
    return kappa1(terms, constants) + kappa2(terms, constants) - 0.5 * constants.learning_rate * terms.gradient_sq


def bounded_change(
    gradient_sq: float,
    r: float,
    k: ArrayLike,
    weights: ArrayLike,
    constants: Constants,
    *,
    divergence_sq: float = 0.0,
    form: str = "corrected",
) -> float:
    """The same with Propositions 2 and 3 in place of kappa_1 and kappa_2: Psi1(r) + Psi2(k) - eta/2 |grad F|^2.

    `r` is the client's own keep rate, `k` and `weights` are those of all participants.
    """
    pruning: Floats = psi1(r, constants, divergence_sq=divergence_sq, form=form)
    sparsity: Floats = psi2(k, weights, constants, form=form)
    return float(pruning + sparsity) - 0.5 * constants.learning_rate * gradient_sq


def _square(vector: Tensor) -> float:
    return float(torch.sum(vector.double().square()))
