import numpy as np
import pytest

from leanfed.streams import stream
from leanfed.wireless.channel import (
    distances_in_disc,
    log_normal_shadowing,
    path_gain,
    path_loss_db,
    rayleigh_fading,
)
from leanfed.wireless.units import ratio_to_db

MANY = 40_000


def test_path_loss_at_the_cell_edge():
    # 128.1 + 37.6 log10(0.2) = 128.1 - 37.6 * 0.69897 = 101.8187
    assert path_loss_db(200.0) == pytest.approx(101.81873, abs=1e-5)


def test_gain_is_the_path_loss_taken_off():
    assert path_gain(200.0) == pytest.approx(10 ** (-10.181873), rel=1e-5)


def test_ten_times_further_costs_the_slope():
    assert path_loss_db(1000.0) - path_loss_db(100.0) == pytest.approx(37.6)


def test_half_the_devices_stand_beyond_seven_tenths_of_the_radius():
    # Uniform in the disc: a share x^2 of the area lies within x of the radius, so the median is at sqrt(1/2).
    distances = distances_in_disc(stream(0, "place"), MANY, radius_m=200.0, nearest_m=1.0)
    assert distances.min() >= 1.0 and distances.max() <= 200.0
    assert np.median(distances) == pytest.approx(200.0 * 0.5**0.5, rel=0.01)  # 2 standard errors are 0.7 %


def test_rayleigh_fading_has_mean_one_and_deviation_one():
    power = rayleigh_fading(stream(0, "fading"), MANY)
    assert power.mean() == pytest.approx(1.0, abs=0.02)  # 4 standard errors
    assert power.std() == pytest.approx(1.0, abs=0.04)
    assert power.min() > 0.0


def test_shadowing_is_normal_in_decibels():
    decibels = ratio_to_db(log_normal_shadowing(stream(0, "shadowing"), MANY, deviation_db=8.0))
    assert decibels.mean() == pytest.approx(0.0, abs=0.16)  # 4 standard errors
    assert decibels.std() == pytest.approx(8.0, rel=0.02)


def test_shadowing_without_deviation_changes_nothing():
    np.testing.assert_array_equal(log_normal_shadowing(stream(0), 3, deviation_db=0.0), np.ones(3))
