"""Plans for clients with links of their own: measured curves in place of band, gain and clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanfed.allocation.curves import bits_of, keep_rate_of
from leanfed.allocation.fast_form import plan_fast
from leanfed.allocation.frontier import least_bandwidth
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.plan import ALLOCATORS, plan
from leanfed.allocation.problem import Problem
from leanfed.allocation.rules import fastest_split
from leanfed.allocation.starvation import needs_of
from leanfed.errors import InputError

OWN = ("certified", "dca", "equal", "fastest", "fixed", "random")


def linked(**changes: Any) -> Problem:
    """A base of 1,000 values of 32 bits and a head of 1,000; ten samples of 10 ms, 0.2 s that pass anyway."""
    values: dict[str, Any] = {
        "weights": [0.5, 0.3, 0.2],
        "link_bit_per_s": [20_000.0, 40_000.0, 1e6],
        "fixed_s": [0.2, 0.2, 0.4],
        "sample_s": 0.01,
        "compute_w": 2.0,
        "power_w": 0.5,
        "batch_size": 10,
        "deadline_s": 1.0,
        "energy_budget_j": None,
        "base_size": 1000,
        "head_size": 1000,
        "value_bits": 32,
        "theta1": 0.1,
        "theta2": 1.0,
    }
    return Problem.of(**{**values, **changes})


def test_seconds_and_joules_are_those_of_the_measured_curves() -> None:
    problem = linked()
    k, r, shares = np.array([0.1, 0.2, 1.0]), np.array([0.0, 0.5, 1.0]), np.ones(3)
    seconds, joules = plan_cost(problem, k, r, shares)
    upload_s = bits_of(k, 1000, 32) / [20_000.0, 40_000.0, 1e6]
    compute_s = np.array([0.05, 0.075, 0.1])  # half of the weights are the base's
    np.testing.assert_allclose(seconds, np.array([0.2, 0.2, 0.4]) + compute_s + upload_s, rtol=1e-12)
    np.testing.assert_allclose(joules, 2.0 * compute_s + 0.5 * upload_s, rtol=1e-12)


def test_the_best_plan_is_each_clients_own_best() -> None:
    problem = linked()
    solution = plan(problem)
    assert solution.l.tolist() == [1.0, 1.0, 1.0]
    assert solution.relative_gap == 0.0
    assert solution.price == 0.0  # there is no band to be had more of
    for n in range(3):
        alone = plan(problem.only([n]))
        assert (solution.k[n], solution.r[n]) == (alone.k[0], alone.r[0])
        r = np.linspace(0.0, 1.0, 2001)  # every keep rate of the head, and what it leaves for the upload
        room_s = 1.0 - problem.wait_s[n] - 0.05 - 0.05 * r
        assert problem.link_bit_per_s is not None
        k = keep_rate_of(np.maximum(room_s, 0.0) * problem.link_bit_per_s[n], 1000, 32)
        tried = problem.weights[n] * (0.1 * np.sqrt(1.0 - r) - np.minimum(k, 1.0))
        assert alone.objective == pytest.approx(tried.min(), rel=1e-6)
        assert alone.objective is not None and alone.objective <= tried.min() + 1e-12


@pytest.mark.parametrize("solver", OWN)
def test_every_allocator_keeps_the_deadline_on_own_links(solver: str) -> None:
    assert solver in ALLOCATORS
    problem = linked()
    solution = plan(problem, solver=solver)
    seconds, _ = plan_cost(problem, solution.k, solution.r, solution.l)
    assert (seconds <= 1.0 + 1e-9).all()
    assert solution.l.tolist() == [1.0, 1.0, 1.0]


def test_a_client_does_not_slow_another_down_and_its_fixed_seconds_count() -> None:
    wide = plan(linked())
    assert plan(linked(link_bit_per_s=[20_000.0, 40_000.0, 500.0])).k[:2].tolist() == wide.k[:2].tolist()
    late = plan(linked(fixed_s=[0.2, 0.96, 0.4]))
    assert [entry.client for entry in late.excluded] == [1]
    assert late.excluded[0].why.startswith("a deadline of 1 s is below the 1.01 s")


def test_the_fast_form_waits_for_the_slowest_of_those_that_it_asks() -> None:
    problem = linked(deadline_s=None)
    fast = plan_fast(problem)
    taking = fast.solution.k > 0
    seconds, _ = plan_cost(problem, fast.solution.k, fast.solution.r, fast.solution.l)
    assert fast.deadline_s == pytest.approx(seconds[taking].max(), rel=1e-6)
    due = plan_fast(problem, due=np.array([True, True, True]))
    assert due.due == (0, 1, 2)
    assert plan_fast(linked(link_bit_per_s=[1.0, 40_000.0, 1e6])).solution.excluded[0].client == 0


def test_the_fastest_split_uses_every_link_whole() -> None:
    shares, slowest_s = fastest_split(linked(), np.array([10_000.0, 10_000.0, 0.0]), np.ones(3))
    assert shares.tolist() == [1.0, 1.0, 1.0]
    assert slowest_s == pytest.approx(0.2 + 0.1 + 0.5)


def test_a_file_needs_no_band_where_links_are_measured() -> None:
    problem = linked()
    again = Problem.from_json(problem.to_json())
    assert plan(again).k.tolist() == plan(problem).k.tolist()
    assert (
        "link_bit_per_s"
        not in Problem.of(
            **{**problem.to_json(), "link_bit_per_s": None, "channel_gain": 1e-9, "bandwidth_hz": 1e6}
        ).to_json()
    )
    with pytest.raises(InputError, match="lacks channel_gain, bandwidth_hz, noise_w_per_hz"):
        Problem.of(
            **{
                key: value
                for key, value in problem.to_json().items()
                if key not in ("link_bit_per_s", "channel_gain", "bandwidth_hz", "noise_w_per_hz")
            }
        )
    with pytest.raises(InputError, match="link_bit_per_s of client 1 is 0; it must be above 0"):
        linked(link_bit_per_s=[1.0, 0.0, 1.0])
    with pytest.raises(InputError, match="share no band"):
        least_bandwidth(problem, [1.0], 1.0, 0.1)


def test_a_starved_client_on_its_own_link_is_told_what_it_needs() -> None:
    slow = linked(link_bit_per_s=[100.0, 40_000.0, 1e6])
    needed_s = 0.25 + float(bits_of(0.01, 1000, 32)) / 100.0
    assert needs_of(slow, [0, 1]) == [
        f"even its whole link is not enough for k = 0.01; needs a deadline of {needed_s:.4g} s",
        "its link has room for k = 0.01, its head at r = 0",
    ]
