import json

import numpy as np
import pytest

from leanfed.allocation import Problem
from leanfed.errors import InputError

PLAIN = {
    "weights": [0.5, 0.5], "channel_gain": [1e-9, 2e-9], "power_w": 0.2, "cpu_hz": [1e9, 2e9], "batch_size": 32,
    "cycles_per_sample": 8e6, "energy_coefficient": 1e-28, "deadline_s": 0.8, "energy_budget_j": 0.3,
    "bandwidth_hz": 1e7, "noise_w_per_hz": 3.98e-21, "base_size": 50692, "head_size": 11014, "value_bits": 32,
    "theta1": 0.1, "theta2": 1.0,
}  # fmt: skip


def test_scalars_stand_for_every_client():
    problem = Problem.of(**PLAIN)
    assert problem.power_w.tolist() == [0.2, 0.2]
    assert problem.k_min.tolist() == [0.0, 0.0]
    assert problem.k_max.tolist() == [1.0, 1.0]


def test_null_means_no_limit_also_for_one_client():
    problem = Problem.of(**{**PLAIN, "deadline_s": None, "energy_budget_j": [0.3, None]})
    assert np.isinf(problem.deadline_s).all()
    assert problem.energy_budget_j.tolist() == [0.3, np.inf]


def test_json_round_trip(tmp_path):
    problem = Problem.of(**{**PLAIN, "deadline_s": None, "k_min": [0.0, 0.1]})
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem.to_json(), allow_nan=False))
    again = Problem.from_json(path)
    assert again.to_json() == problem.to_json() == Problem.from_json(path.read_text()).to_json()
    assert Problem.from_json(str(path)).to_json() == problem.to_json()


def test_eqs_12_and_13_by_hand():
    problem = Problem.of(**{**PLAIN, "base_size": 3, "head_size": 1})
    assert problem.base_s.tolist() == pytest.approx([32 * 8e6 * 0.75 / 1e9, 32 * 8e6 * 0.75 / 2e9])
    assert problem.head_s[0] == pytest.approx(32 * 8e6 * 0.25 / 1e9)
    assert problem.compute_power_w.tolist() == pytest.approx([0.1, 0.8])


def test_further_steps_of_a_head_cost_their_share() -> None:
    once, often = (Problem.of(**{**PLAIN, "head_work": work}) for work in (1.0, 2.5))
    assert np.allclose(often.head_s, 2.5 * once.head_s)
    assert np.array_equal(often.base_s, once.base_s)
    assert set(Problem.of(**PLAIN).head_work) == {1.0}


@pytest.mark.parametrize("field", ["channel_gain", "power_w", "cpu_hz"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_nan_infinite_and_negative_values_name_client_and_field(field, value):
    with pytest.raises(InputError, match=f"{field} of client 1 is"):
        Problem.of(**{**PLAIN, field: [1e-1, value]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bandwith_hz": 1e7}, "did you mean 'bandwidth_hz'"),
        ({"cpu_hz": [1e9]}, "cpu_hz has 1 values for 2 clients"),
        ({"cpu_hz": 0.0}, "cpu_hz of client 0 is 0; it must be above 0"),
        ({"weights": []}, "has no clients|values for 0 clients"),
        ({"power_w": ["a", 0.2]}, "power_w of client 0 is 'a'; give a number"),
        ({"power_w": None}, "power_w of client 0 is None; give a number"),
        ({"deadline_s": "soon"}, "number, or null for no limit"),
        ({"base_size": 0}, "base_size of client 0 is 0; it must be at least 1"),
        ({"head_size": [3, 1.5]}, "head_size of client 1 is 1.5; it counts things"),
        ({"base_size": 10.5}, "whole number"),
        ({"bandwidth_hz": [1.0, 2.0]}, "one number for all clients"),
        ({"theta2": -1.0}, "theta2 is -1"),
        ({"theta1": 0.0, "theta2": 0.0}, "both 0"),
        ({"weights": [0.0, 0.0]}, "weights sum to 0"),
        ({"k_min": 0.6, "k_max": [0.5, 1.0]}, "k_min of client 0 is 0.6, above its k_max 0.5"),
        ({"k_max": 1.5}, "k_max of client 0 is 1.5; it must be at least 0 and at most 1"),
        ({"deadline_s": float("nan")}, "deadline_s of client 0 is nan"),
    ],
)
def test_wrong_input_is_explained(changes, message):
    with pytest.raises(InputError, match=message):
        Problem.of(**{**PLAIN, **changes})


def test_missing_fields_and_broken_files_are_explained(tmp_path):
    with pytest.raises(InputError, match="lacks weights, channel_gain"):
        Problem.from_json({"power_w": 0.2})
    with pytest.raises(InputError, match="not valid JSON"):
        Problem.from_json("{")
    with pytest.raises(InputError, match="JSON list"):
        Problem.from_json("[]")
    with pytest.raises(InputError, match="Cannot read"):
        Problem.from_json(tmp_path / "none.json")


def test_a_problem_cannot_be_changed_in_place():
    problem = Problem.of(**PLAIN)
    with pytest.raises(ValueError, match="read-only"):
        problem.weights[0] = 1.0
    assert problem.with_(bandwidth_hz=2e7).bandwidth_hz == 2e7
    assert problem.bandwidth_hz == 1e7
    with pytest.raises(InputError, match="did you mean 'deadline_s'"):
        problem.with_(deadline=1.0)
