import math

import numpy as np
import pytest

from leanfed.wireless import cost

NOISE = 4e-21


def rate(share, *, received_w=1e-12, band_hz=10e6):
    return cost.uplink_rate(share, bandwidth_hz=band_hz, gain=received_w, power_w=1.0, noise_w_per_hz=NOISE)


def test_rate_by_hand_equation_7():
    # l W = 1 MHz and h p = 3 N0 l W: log2(1 + 3) = 2 bit/s per hertz.
    gain, power_w = 3 * NOISE * 1e6 / 0.1, 0.1
    value = cost.uplink_rate(0.1, bandwidth_hz=10e6, gain=gain, power_w=power_w, noise_w_per_hz=NOISE)
    assert value == pytest.approx(2e6)


def test_rate_at_the_cell_edge_of_the_papers_table():
    # 20 dBm, 200 m, 1/100 of 10 MHz, -174 dBm/Hz: 0.1 * 10^-10.181873 / (3.98107e-21 * 1e5) = 16,524
    # 1e5 * log2(16,525) = 1.40124e6
    gain = 10**-10.181873
    value = cost.uplink_rate(0.01, bandwidth_hz=10e6, gain=gain, power_w=0.1, noise_w_per_hz=3.98107e-21)
    assert value == pytest.approx(1.40124e6, rel=1e-5)


def test_zero_share_is_zero_rate():
    np.testing.assert_array_equal(rate([0.0, 1e-300, 0.0]), [0.0, 0.0, 0.0])


@pytest.mark.parametrize(("gain", "power_w"), [(0.0, 0.1), (1e-10, 0.0)])
def test_no_gain_or_no_power_is_zero_rate(gain, power_w):
    assert cost.uplink_rate(0.5, bandwidth_hz=1e7, gain=gain, power_w=power_w, noise_w_per_hz=NOISE) == 0.0


def test_rate_stays_below_the_wideband_limit():
    # As W grows, R rises to h p / (N0 ln 2).
    limit = 1e-12 / (NOISE * math.log(2))
    assert rate(1.0, band_hz=1e15) < limit
    assert rate(1.0, band_hz=1e15) == pytest.approx(limit, rel=1e-6)


def test_broadcast_uses_33_dbm_over_the_whole_band():
    gain = 3 * NOISE * 1e7 / 1.99526231
    assert cost.broadcast_rate(gain, bandwidth_hz=1e7, noise_w_per_hz=NOISE) == pytest.approx(2e7)


def test_communication_latency_by_hand_equation_10():
    assert cost.communication_latency(3e6, 2e6) == 1.5


def test_communication_latency_at_zero_rate():
    np.testing.assert_array_equal(cost.communication_latency([0.0, 5.0, 0.0], [0.0, 0.0, 7.0]), [0.0, np.inf, 0.0])


def test_communication_energy_by_hand_equation_11():
    assert cost.communication_energy(0.2, 1.5) == pytest.approx(0.3)


def test_no_power_spends_no_energy_however_long_it_waits():
    np.testing.assert_array_equal(cost.communication_energy([0.0, 0.1], [np.inf, np.inf]), [0.0, np.inf])


def test_computation_latency_by_hand_equation_12():
    # 32 samples, 8e6 cycles each, d_B = 3, d_P = 1, r = 0.2: share 3.2 / 4; at 1 GHz.
    share = cost.computed_share(3, 1, 0.2)
    cycles = cost.computation_cycles(32, 8e6, share)
    assert share == pytest.approx(0.8)
    assert cycles == pytest.approx(204.8e6)
    assert cost.computation_latency(cycles, 1e9) == pytest.approx(0.2048)


def test_local_steps_multiply_the_work():
    assert cost.computation_cycles(32 * 5, 8e6, 1.0) == 5 * cost.computation_cycles(32, 8e6, 1.0)


def test_computation_energy_by_hand_equation_13():
    # 1e-28 * (2e9)^3 = 0.8 W for half a second.
    assert cost.computation_energy(1e-28, 2e9, 0.5) == pytest.approx(0.4)


def test_a_pruned_head_takes_less_energy_than_a_full_one():
    share = cost.computed_share(50_692, 11_014, np.array([0.0, 0.5, 1.0]))
    latency = cost.computation_latency(cost.computation_cycles(32, 8e6, share), 1e9)
    energy = cost.computation_energy(1e-28, 1e9, latency)
    assert np.all(np.diff(energy) > 0)
    assert share[2] == 1.0


def test_total_latency_by_hand_equation_14():
    assert cost.total_latency(0.25, 1.5) == 1.75


def test_total_energy_sums_the_rounds_equation_15():
    computing = np.array([[1.0, 2.0], [3.0, 4.0]])  # (rounds, clients)
    sending = np.array([[0.5, 0.5], [0.25, 0.25]])
    np.testing.assert_array_equal(cost.total_energy(computing, sending), [4.75, 6.75])


def test_two_operations_a_cycle():
    assert cost.flops(1e9) == 2e9
