"""Privacy loss of a Gaussian sum released round after round: epsilon for a delta, by three accountants.

`noise` is the noise multiplier z: the standard deviation of the noise over the largest norm of one client's part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Final, Literal

import numpy as np

from leanfed.errors import InputError

Accountant = Literal["exact", "rdp", "pld"]
MOST_NOISE: Final = 1e9  # a multiplier in which any model drowns
LEAST_PLD_NOISE: Final = 0.2  # below it a loss distribution takes minutes and protects nobody
PLD_STEP: Final = 1e-4  # dp-accounting's: a round's loss is rounded up to a multiple of it
ORDERS: Final = tuple(range(2, 257))  # Renyi orders
_log_gamma = np.vectorize(math.lgamma, otypes=[float])


def gaussian_epsilon(noise: float, rounds: int, delta: float) -> float:
    """The exact epsilon of a Gaussian mechanism composed over rounds without sampling (Balle and Wang 2018).

    delta(e) = Phi(-e/m + m/2) - exp(e) Phi(-e/m - m/2) with m = sqrt(rounds)/noise, solved for e.

    >>> round(gaussian_epsilon(1.0, 1, 1e-5), 4)
    4.3772
    """
    if rounds == 0:
        return 0.0
    if noise == 0.0:
        return math.inf
    m = math.sqrt(rounds) / noise

    def spent(e: float) -> float:
        tail = _log_phi(-e / m - m / 2)
        return math.exp(_log_phi(-e / m + m / 2)) - (math.exp(e + tail) if e + tail > -700 else 0.0)

    if spent(0.0) <= delta:
        return 0.0
    return _root(lambda e: spent(e) <= delta, 1.0)


def _log_phi(x: float) -> float:
    """ln of the standard normal distribution function; its asymptotic series far below zero."""
    if x > -25.0:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
    square = x * x
    return -0.5 * square - 0.5 * math.log(2 * math.pi) - math.log(-x) + math.log1p(-1 / square + 3 / square**2)


def rdp_epsilon(sampling: float, noise: float, rounds: int, delta: float) -> float:
    """By Renyi orders, for cohorts that every client joins by itself with probability `sampling` (Mironov et al. 2019).

    RDP(a) = ln(sum over i of C(a, i) (1-q)^(a-i) q^i exp(i (i-1)/(2 z^2)))/(a-1); to epsilon as Canonne et al. (2020).
    """
    if rounds == 0:
        return 0.0
    if noise == 0.0:
        return math.inf
    found = []
    for order in ORDERS:
        loss = rounds * _renyi(sampling, noise, order)
        found.append(loss + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1))
    return max(0.0, min(found))


@cache
def _renyi(sampling: float, noise: float, order: int) -> float:
    """RDP of one round at an integer order."""
    if sampling == 1.0:
        return order / (2.0 * noise**2)
    i = np.arange(order + 1)
    choose = math.lgamma(order + 1) - _log_gamma(i + 1.0) - _log_gamma(order - i + 1.0)
    terms = choose + (order - i) * math.log1p(-sampling) + i * math.log(sampling) + i * (i - 1) / (2.0 * noise**2)
    highest = float(terms.max())
    return (highest + math.log(float(np.exp(terms - highest).sum()))) / (order - 1)


def pld_epsilon(sampling: float, noise: float, rounds: int, delta: float) -> float:
    """By the privacy loss distribution of Google's dp-accounting, the tightest of the three for sampled cohorts.

    No bound is given (inf) below a noise multiplier of 0.2.
    """
    if rounds == 0:
        return 0.0
    if noise < LEAST_PLD_NOISE:
        return math.inf
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise InputError(
            "The accountant 'pld' needs the package dp-accounting: pip install 'leanfed[privacy]', or set "
            "privacy.accountant = 'rdp'."
        ) from error
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=PLD_STEP, sampling_prob=sampling
    )
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))


def epsilon_of(accountant: Accountant, sampling: float, noise: float, rounds: int, delta: float) -> float:
    """The epsilon of so many rounds by an accountant; the exact one knows no sampling."""
    if accountant == "exact":
        return gaussian_epsilon(noise, rounds, delta)
    return (rdp_epsilon if accountant == "rdp" else pld_epsilon)(sampling, noise, rounds, delta)


def noise_for(accountant: Accountant, sampling: float, epsilon: float, rounds: int, delta: float) -> float:
    """The smallest noise multiplier with which so many rounds stay within epsilon.

    >>> round(noise_for("exact", 1.0, 8.0, 60, 6.3e-3), 2)
    3.28
    """
    if epsilon_of(accountant, sampling, MOST_NOISE, rounds, delta) > epsilon:
        raise InputError(
            f"The accountant {accountant!r} finds no noise that keeps privacy.epsilon = {epsilon:g} at privacy.delta = "
            f"{delta:g}. Raise one of the two, or choose another accountant."
        )
    if accountant == "pld":
        return _pld_noise(sampling, epsilon, rounds, delta)
    return _root(lambda noise: epsilon_of(accountant, sampling, noise, rounds, delta) <= epsilon, 1.0)


def _pld_noise(sampling: float, epsilon: float, rounds: int, delta: float) -> float:
    """`noise_for` by the accountant `pld`, so that 99.9 % of the budget are used: one evaluation takes a second.

    The looser bound of `rdp` asks for more noise, so the answer lies below its own, but not far: an evaluation is the
    dearer the smaller the noise. Between the two the Illinois rule on logarithms, along which epsilon is nearly
    straight, needs a handful of evaluations.
    """
    if rdp_epsilon(sampling, LEAST_PLD_NOISE, rounds, delta) + PLD_STEP * rounds <= epsilon:
        return LEAST_PLD_NOISE

    def excess(noise: float) -> float:
        return math.log(pld_epsilon(sampling, noise, rounds, delta) / epsilon)

    high = max(LEAST_PLD_NOISE, noise_for("rdp", sampling, epsilon, rounds, delta))
    while (under := excess(high)) > 0.0:  # pld rounds up
        high *= 1.1
    low = max(LEAST_PLD_NOISE, high / 1.5)
    while (over := excess(low)) <= 0.0:
        if low == LEAST_PLD_NOISE:
            return low
        low, high, under = max(LEAST_PLD_NOISE, low / 1.5), low, over
    while under < -1e-3 and high > 1.00001 * low:
        part = (over + 5e-4) / (over - under)  # aims a little within the budget
        middle = low * (high / low) ** min(max(part, 0.02), 0.98)
        found = excess(middle)
        if found > 0.0:
            low, over, under = middle, found, under / 2
        else:
            high, under, over = middle, found, over / 2
    return high


def rounds_within(
    accountant: Accountant, sampling: float, noise: float, epsilon: float, most: int, delta: float
) -> int:
    """How many rounds, at most `most`, stay within epsilon."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        fits = epsilon_of(accountant, sampling, noise, middle, delta) <= epsilon
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _root(holds: Callable[[float], bool], start: float) -> float:
    """The smallest positive number from which on a monotone condition holds, to a relative 1e-9, from above."""
    high = start
    while not holds(high):
        high *= 2.0
    low = 0.0
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
