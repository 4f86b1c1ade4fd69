import numpy as np
import pytest

from leanfed.errors import InputError
from leanfed.theory.bound import Constants, psi1, psi2, theorem1, theta1, theta2

# L2 eta = 0.5: a learning rate inside the region where the paper's proof step fails.
SMALL_STEP = Constants(2.0, 5.0, 3.0, 4.0, 0.5, learning_rate=0.1, rounds=10)
LARGE_STEP = Constants(2.0, 20.0, 3.0, 4.0, 0.5, learning_rate=0.1, rounds=10)  # L2 eta = 2


def test_psi1_of_the_paper_by_hand():
    # 2*4*sqrt(0.75) + (5*0.01-0.1)/2*9 + 1.5*0.1*0.25
    assert psi1(0.25, SMALL_STEP, form="paper") == pytest.approx(8 * np.sqrt(0.75) - 0.225 + 0.0375)


def test_psi1_corrected_drops_the_negative_step_and_adds_divergence():
    # c = 0; 8*sqrt(0.75) + 0.1*(0.7+0.25) + 0.1*0.25/2
    expected = 8 * np.sqrt(0.75) + 0.095 + 0.0125
    assert psi1(0.25, SMALL_STEP, divergence_sq=0.7) == pytest.approx(expected)


def test_psi2_of_the_paper_by_hand():
    # (5*0.01-0.3)*9/2*0.75 + 0.1*9
    assert psi2([0.5, 1.0], [0.5, 0.5], SMALL_STEP, form="paper") == pytest.approx(-0.25 * 4.5 * 0.75 + 0.9)


def test_forms_agree_where_the_step_overshoots_and_data_are_alike():
    k, gamma = np.array([0.2, 0.9]), np.array([0.3, 0.7])
    assert psi2(k, gamma, LARGE_STEP) == pytest.approx(psi2(k, gamma, LARGE_STEP, form="paper"))
    assert psi1(0.4, LARGE_STEP) == pytest.approx(psi1(0.4, LARGE_STEP, form="paper"))
    assert theta2(LARGE_STEP) == pytest.approx(theta2(LARGE_STEP, form="paper"))


def test_corrected_bound_is_never_below_the_papers():
    k, r, gamma = np.full((3, 2), 0.5), np.full((3, 2), 0.5), [0.5, 0.5]
    for constants in (SMALL_STEP, LARGE_STEP):
        paper = theorem1([1.0, 2.0], k, r, gamma, constants, form="paper")
        assert theorem1([1.0, 2.0], k, r, gamma, constants, divergence_sq=[0.1, 0.2]) >= paper


def test_eq_26_by_hand_for_one_client_and_one_round():
    constants = Constants(1.0, 1.0, 1.0, 1.0, 0.0, learning_rate=1.0, rounds=1)
    # 2/(1*1) * (3 + Psi1(0.75) + Psi2(0.5)) with Psi1 = 0.5 and Psi2 = 1*(1-0.5)
    assert theorem1([3.0], [0.5], [0.75], [1.0], constants) == pytest.approx(8.0)


def test_thetas_are_the_slopes_of_eq_26():
    gamma = np.array([0.25, 0.75])
    k, r = np.array([[0.3, 0.6]]), np.array([[0.2, 0.9]])
    for form in ("paper", "corrected"):

        def bound(k, r, form=form):
            return theorem1([0.0, 0.0], k, r, gamma, SMALL_STEP, form=form)

        more_k = np.array([[0.4, 0.6]])
        assert bound(more_k, r) - bound(k, r) == pytest.approx(-0.25 * theta2(SMALL_STEP, form=form) * 0.1)
        full_r = np.array([[1.0, 0.9]])
        assert bound(k, full_r) - bound(k, r) == pytest.approx(-0.25 * theta1(SMALL_STEP) * np.sqrt(0.8))


@pytest.mark.parametrize("form", ["paper", "corrected"])
def test_a_learning_rate_beyond_three_over_l2_is_refused_with_the_value(form):
    too_fast = Constants(1.0, 10.0, 1.0, 1.0, 0.1, learning_rate=0.4, rounds=5)
    with pytest.raises(InputError, match=r"theta2 is -0\.2 at learning rate 0\.4.*3/L2 = 0\.3"):
        theta2(too_fast, form=form)


def test_wrong_constants_and_forms_are_named():
    with pytest.raises(InputError, match="learning_rate is 0"):
        Constants(1.0, 1.0, 1.0, 1.0, 0.1, learning_rate=0.0, rounds=5)
    with pytest.raises(InputError, match="noise is nan"):
        Constants(1.0, 1.0, 1.0, 1.0, float("nan"), learning_rate=0.1, rounds=5)
    with pytest.raises(InputError, match="did you mean 'corrected'"):
        psi2([1.0], [1.0], SMALL_STEP, form="correct")
