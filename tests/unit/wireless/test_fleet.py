import numpy as np
import pytest
from pydantic import ValidationError

from leanfed.wireless.fleet import FleetSettings, SampledFleet, stack

FIELDS = {"place": "gain", "fading": "gain", "shadowing": "gain", "cpu": "cpu_hz", "power": "power_w"}
# With everything but one quantity held (or switched off) only that one can change between rounds.
QUANTITIES = ("place", "cpu", "power", "fading", "shadowing")


def same(fleet, field, first=0, second=1):
    return np.array_equal(getattr(fleet.state(first), field), getattr(fleet.state(second), field))


def test_defaults_are_the_papers_table():
    state = SampledFleet(FleetSettings(), seed=0).state(0)
    assert state.gain.shape == (100,)
    assert state.bandwidth_hz == 10e6
    assert state.noise_w_per_hz == pytest.approx(3.98107e-21, rel=1e-5)
    assert state.cpu_hz.min() >= 0.5e9 and state.cpu_hz.max() <= 3.0e9
    assert state.power_w.min() >= 0.1 and state.power_w.max() <= 0.63096
    assert state.gain.min() >= 10**-10.1819  # nobody beyond 200 m


def test_everything_is_redrawn_each_round_by_default():
    fleet = SampledFleet(FleetSettings(devices=3), seed=0)
    assert not any(same(fleet, field) for field in ("gain", "cpu_hz", "power_w"))


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_held_quantities_stay_and_the_rest_moves(quantity):
    held = tuple(q for q in QUANTITIES if q != quantity)
    fleet = SampledFleet(FleetSettings(devices=3, rayleigh=True, shadowing_db=8.0, hold=held), seed=0)
    moved = {field for field in ("gain", "cpu_hz", "power_w") if not same(fleet, field)}
    assert moved == {FIELDS[quantity]}


def test_all_held_is_the_same_fleet_every_round():
    fleet = SampledFleet(FleetSettings(devices=3, rayleigh=True, shadowing_db=8.0, hold=QUANTITIES), seed=0)
    assert all(same(fleet, field, 0, 99) for field in ("gain", "cpu_hz", "power_w"))


def test_a_round_does_not_depend_on_the_rounds_before_it():
    settings = FleetSettings(devices=4, rayleigh=True)
    walked = SampledFleet(settings, seed=5)
    for number in range(7):
        walked.state(number)
    np.testing.assert_array_equal(walked.state(7).gain, SampledFleet(settings, seed=5).state(7).gain)


def test_the_first_devices_do_not_depend_on_how_many_follow():
    few, many = (SampledFleet(FleetSettings(devices=n), seed=1).state(2) for n in (3, 10))
    np.testing.assert_array_equal(few.gain, many.gain[:3])
    np.testing.assert_array_equal(few.cpu_hz, many.cpu_hz[:3])


def test_seeds_give_different_fleets():
    first, second = (SampledFleet(FleetSettings(devices=3), seed=seed).state(0) for seed in (0, 1))
    assert not np.array_equal(first.gain, second.gain)


def test_fading_multiplies_the_path_gain():
    plain = SampledFleet(FleetSettings(devices=2000), seed=0).state(0)
    faded = SampledFleet(FleetSettings(devices=2000, rayleigh=True), seed=0).state(0)
    assert (faded.gain / plain.gain).mean() == pytest.approx(1.0, abs=0.1)  # 4 standard errors
    np.testing.assert_array_equal(faded.power_w, plain.power_w)


@pytest.mark.parametrize(("low", "high"), [(10e6, 50e6), (20e6, 40e6)])
def test_bandwidth_range_is_drawn_each_round(low, high):
    fleet = SampledFleet(FleetSettings(devices=1, bandwidth_hz=(low, high)), seed=0)
    drawn = np.array([fleet.state(number).bandwidth_hz for number in range(50)])
    assert low <= drawn.min() < drawn.max() <= high
    assert len(set(drawn)) == 50


def test_bandwidth_trace_is_followed_and_its_last_value_holds():
    fleet = SampledFleet(FleetSettings(devices=1, bandwidth_trace_hz=(1e6, 2e6, 3e6)), seed=0)
    assert [float(fleet.state(number).bandwidth_hz) for number in (0, 1, 2, 9)] == [1e6, 2e6, 3e6, 3e6]


def test_stacking_adds_rounds_in_front():
    fleet = SampledFleet(FleetSettings(devices=3), seed=0)
    stacked = stack([fleet.state(0), fleet.state(1)])
    assert stacked.gain.shape == (2, 3)
    assert stacked.bandwidth_hz.shape == (2, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("devices", 0),
        ("radius_m", -1.0),
        ("cpu_hz", (3e9, 0.5e9)),
        ("power_dbm", (28.0, 20.0)),
        ("power_dbm", (float("nan"), 20.0)),
        ("bandwidth_hz", 0.0),
        ("bandwidth_hz", (5e7, 1e7)),
        ("nearest_m", 300.0),
        ("hold", ("speed",)),
        ("bandwith_hz", 1e6),
    ],
)
def test_settings_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValidationError, match=field):
        FleetSettings(**{field: value})


def test_slow_devices_are_the_same_in_every_round_and_ten_times_slower() -> None:
    plain, slow = (SampledFleet(FleetSettings(devices=20, slow_share=share), seed=3) for share in (0.0, 0.25))
    ratios = np.stack([plain.state(number).cpu_hz / slow.state(number).cpu_hz for number in range(3)])
    assert sorted(ratios[0].round(9).tolist()) == [1.0] * 15 + [10.0] * 5
    np.testing.assert_allclose(ratios, np.broadcast_to(ratios[0], ratios.shape))
