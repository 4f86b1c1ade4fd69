"""Accountants of privacy: against each other, against dp-accounting, and in their limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanfed.theory.accounting import (
    ORDERS,
    epsilon_of,
    gaussian_epsilon,
    noise_for,
    pld_epsilon,
    rdp_epsilon,
    rounds_within,
)

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (15.6857, 60, 6.3e-3), (3.2811, 60, 6.3e-3)])
def test_the_exact_accountant_equals_the_privacy_loss_distribution(noise: float, rounds: int, delta: float) -> None:
    assert gaussian_epsilon(noise, rounds, delta) == pytest.approx(pld_epsilon(1.0, noise, rounds, delta), abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "noise", "rounds"), [(1.0, 3.0, 60), (0.1, 2.37, 60), (0.1, 0.71, 60), (0.01, 1, 5)]
)
def test_renyi_orders_equal_dp_accountings(sampling: float, noise: float, rounds: int) -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(ORDERS)
    event = dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(noise))
    theirs.compose(event, rounds)
    assert rdp_epsilon(sampling, noise, rounds, 5e-4) == pytest.approx(theirs.get_epsilon(5e-4), rel=1e-12)


def test_values_of_the_literature() -> None:
    """Measured with dp-accounting 0.6: delta 5e-4, a tenth of 1,000 clients a round, 60 rounds."""
    assert rdp_epsilon(0.1, 2.3739, 60, 5.0e-4) == pytest.approx(1.1619, abs=1e-3)
    assert pld_epsilon(0.1, 2.3739, 60, 5.0e-4) == pytest.approx(1.0, abs=1e-3)


def test_a_budget_beyond_all_use_does_not_ask_for_a_distribution_without_end() -> None:
    assert noise_for("pld", 0.5, 440_371.0, 3, 1e-2) == pytest.approx(0.2)
    assert pld_epsilon(0.5, 0.1, 3, 1e-2) == math.inf


@given(
    accountant=st.sampled_from(["exact", "rdp"]),
    noise=st.floats(0.5, 20.0),
    rounds=st.integers(1, 200),
    sampling=st.floats(0.01, 1.0),
)
@settings(max_examples=60, deadline=None)
def test_more_rounds_cost_more_and_more_noise_costs_less(
    accountant: str, noise: float, rounds: int, sampling: float
) -> None:
    def spent(z: float, t: int, q: float) -> float:
        return epsilon_of(accountant, q, z, t, 1e-4)  # type: ignore[arg-type]

    here = spent(noise, rounds, sampling)
    assert spent(noise, rounds + 1, sampling) >= here - 1e-9
    assert spent(1.1 * noise, rounds, sampling) <= here + 1e-9
    assert spent(noise, rounds, min(1.0, 1.1 * sampling)) >= here - 1e-9


@pytest.mark.parametrize("accountant", ["exact", "rdp"])
def test_noise_and_rounds_fit_the_budget_and_no_more(accountant: str) -> None:
    noise = noise_for(accountant, 1.0, 8.0, 60, 1e-3)  # type: ignore[arg-type]
    assert epsilon_of(accountant, 1.0, noise, 60, 1e-3) <= 8.0  # type: ignore[arg-type]
    assert epsilon_of(accountant, 1.0, 0.999 * noise, 60, 1e-3) > 8.0  # type: ignore[arg-type]
    assert rounds_within(accountant, 1.0, noise, 8.0, 500, 1e-3) == 60  # type: ignore[arg-type]


def test_limits() -> None:
    assert gaussian_epsilon(0.0, 1, 1e-5) == rdp_epsilon(0.1, 0.0, 1, 1e-5) == math.inf
    assert gaussian_epsilon(1.0, 0, 1e-5) == rdp_epsilon(0.1, 1.0, 0, 1e-5) == 0.0
    assert gaussian_epsilon(1e9, 1, 1e-5) == 0.0
    assert math.isfinite(gaussian_epsilon(0.01, 1000, 1e-9))  # far in the tails


def test_a_budget_of_losses_is_met_from_below_with_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []

    def counted(*given: float) -> float:
        spent.append(pld_epsilon(*given))
        return spent[-1]

    monkeypatch.setattr("leanfed.theory.accounting.pld_epsilon", counted)
    noise = noise_for("pld", 1.0, 4.0, 20, 1e-3)
    assert 0.998 * 4.0 <= pld_epsilon(1.0, noise, 20, 1e-3) <= 4.0
    assert len(spent) <= 8
