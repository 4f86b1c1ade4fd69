"""The bound along a run."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from leanfed.theory.bound import Constants, theorem1
from leanfed.theory.recorded import bound_so_far, with_bounds

ROWS = {
    "gradient_norm_sq": [4.0, None, 2.0],
    "theory_eta": [0.1, 0.1, 0.1],
    "theory_k": [0.5, 0.6, 0.7],
    "theory_root": [0.2, 0.3, 0.4],
    "theory_loss": [3.0, None, 1.0],
    "theory_l1": [1.0, None, 2.0],
    "theory_l2": [5.0, None, 4.0],
    "theory_g_sq": [9.0, None, 4.0],
    "theory_m": [1.0, None, 1.5],
    "theory_sigma_sq": [0.25, None, 0.16],
    "theory_delta_sq": [0.5, None, 0.7],
}


def table(**changes: list[float | None]) -> pl.DataFrame:
    return pl.DataFrame({**ROWS, **changes}, schema=dict.fromkeys(ROWS, pl.Float64))


def test_measured_rounds_have_a_mean_and_a_bound_and_the_others_do_not() -> None:
    done = with_bounds(table())
    assert done["gradient_norm_sq_mean"].to_list() == [4.0, None, 3.0]
    assert done["bound_corrected"].is_null().to_list() == [False, True, False]
    assert done["bound_paper"].is_null().to_list() == [False, True, False]


@pytest.mark.parametrize("form", ["paper", "corrected"])
def test_the_bound_is_theorem_1_with_the_largest_constants_so_far(form: str) -> None:
    constants = Constants(2.0, 5.0, 3.0, 1.5, 0.5, learning_rate=0.1, rounds=3)
    r = 1 - np.array([[0.2], [0.3], [0.4]]) ** 2
    expected = theorem1([3.0], [[0.5], [0.6], [0.7]], r, [1.0], constants, divergence_sq=0.7, form=form)
    assert with_bounds(table())[f"bound_{form}"][2] == pytest.approx(expected)


def test_means_over_clients_stand_for_the_clients() -> None:
    gamma, k, r = np.array([0.3, 0.7]), np.array([[0.1, 0.9]]), np.array([[0.5, 0.8]])
    constants = Constants(1.0, 5.0, 3.0, 1.0, 0.5, learning_rate=0.1, rounds=1)
    apart = theorem1([3.0, 3.0], k, r, gamma, constants, divergence_sq=[0.5, 0.5])
    row = table(theory_k=[float(gamma @ k[0]), 0, 0], theory_root=[float(gamma @ np.sqrt(1 - r[0])), 0, 0])[:1]
    assert bound_so_far(row, "corrected") == pytest.approx(apart)


def test_the_paper_is_silent_beyond_three_over_l2() -> None:
    steep = table(theory_l2=[31.0, None, 1.0])
    done = with_bounds(steep)
    assert done["bound_paper"].to_list() == [None, None, None]
    assert done["bound_corrected"][2] > 0


@pytest.mark.parametrize("rates", [[0.1, 0.09, 0.08], [None, None, None]], ids=["decaying", "not for this method"])
def test_where_the_theorem_does_not_hold_there_is_no_bound(rates: list[float | None]) -> None:
    done = with_bounds(table(theory_eta=rates))
    assert done["bound_corrected"][2] is None
    assert done["gradient_norm_sq_mean"][2] == 3.0
