from dataclasses import replace

import numpy as np
import pytest

from leanfed.wireless import cost
from leanfed.wireless.fleet import Curves, FleetSettings, FleetState, SampledFleet, stack
from leanfed.wireless.round_cost import Workload, equal_shares, round_cost

NOISE = 4e-21
BAND_HZ = 2e6
# Alone on half the band both clients reach SNR 3, so 1 MHz carries 2 Mbit/s.
RECEIVED_W = 3 * NOISE * 1e6


def two_clients(power_w=(0.1, 0.2)):
    power = np.array(power_w)
    return FleetState(
        gain=RECEIVED_W / power,
        power_w=power,
        cpu_hz=np.array([1e9, 2e9]),
        energy_coefficient=np.array([1e-28, 1e-28]),
        bandwidth_hz=np.asarray(BAND_HZ),
        noise_w_per_hz=NOISE,
    )


def work(bits=(4e6, 1e6), samples=(100, 100), share=(1.0, 0.5), download_bits=0.0):
    return Workload(np.array(bits), np.array(share), np.array(samples), 1e6, download_bits)


def test_bill_of_two_clients_by_hand():
    bill = round_cost(two_clients(), work())
    np.testing.assert_allclose(bill.communication_s, [2.0, 0.5])
    np.testing.assert_allclose(bill.computation_s, [0.1, 0.025])
    np.testing.assert_allclose(bill.latency_s, [2.1, 0.525])
    np.testing.assert_allclose(bill.communication_j, [0.2, 0.1])
    np.testing.assert_allclose(bill.computation_j, [0.1 * 0.1, 0.8 * 0.025])
    np.testing.assert_allclose(bill.flops, [2e8, 1e8])


def test_totals_of_the_round():
    bill = round_cost(two_clients(), work())
    assert bill.round_latency_s == pytest.approx(2.1)  # the slowest
    assert bill.round_energy_j == pytest.approx(0.2 + 0.01 + 0.1 + 0.02)
    assert bill.round_upload_bits == 5e6
    assert bill.round_flops == 3e8


def test_a_client_that_sits_out_costs_nothing_and_leaves_its_band():
    bill = round_cost(two_clients(), work(bits=(4e6, 0.0), samples=(100, 0)))
    assert bill.latency_s[1] == bill.energy_j[1] == bill.flops[1] == 0.0
    # The whole band at SNR 1.5.
    assert bill.communication_s[0] == pytest.approx(4e6 / (2e6 * np.log2(2.5)))


def test_nobody_taking_part_costs_nothing():
    bill = round_cost(two_clients(), work(bits=(0, 0), samples=(0, 0), download_bits=1e6), downlink="broadcast")
    assert bill.round_latency_s == bill.round_energy_j == 0.0


def test_given_shares_are_used():
    bill = round_cost(two_clients(), work(), np.array([0.0, 1.0]))
    assert bill.communication_s[0] == np.inf
    assert bill.round_latency_s == np.inf


def test_equal_shares_leave_out_those_who_sit_out():
    np.testing.assert_allclose(equal_shares(np.array([True, False, True])), [0.5, 0.0, 0.5])
    np.testing.assert_array_equal(equal_shares(np.array([False, False])), [0.0, 0.0])


def test_downlink_is_neglected_but_its_bits_are_counted():
    bill = round_cost(two_clients(), work(download_bits=1e6))
    assert bill.downlink_s == 0.0
    assert bill.download_bits == 1e6


def test_broadcast_goes_at_the_rate_of_the_worst_participant():
    state = two_clients()
    rates = cost.broadcast_rate(state.gain, bandwidth_hz=BAND_HZ, noise_w_per_hz=NOISE)
    everyone = round_cost(state, work(download_bits=1e6), downlink="broadcast")
    assert rates[1] < rates[0]
    assert everyone.downlink_s == pytest.approx(1e6 / rates[1])
    assert everyone.round_latency_s == pytest.approx(2.1 + 1e6 / rates[1])
    first_only = round_cost(state, work((4e6, 0), (100, 0), download_bits=1e6), downlink="broadcast")
    assert first_only.downlink_s == pytest.approx(1e6 / rates[0])


def test_many_rounds_at_once_equal_a_loop_over_rounds():
    fleet = SampledFleet(FleetSettings(devices=5, bandwidth_hz=(1e7, 5e7)), seed=3)
    states = [fleet.state(number) for number in range(4)]
    job = Workload(np.full(5, 1e6), np.full(5, 0.9), np.full(5, 32), 8e6, 2e6)
    together = round_cost(stack(states), job, downlink="broadcast")
    for number, state in enumerate(states):
        alone = round_cost(state, job, downlink="broadcast")
        np.testing.assert_allclose(together.latency_s[number], alone.latency_s)
        np.testing.assert_allclose(together.energy_j[number], alone.energy_j)
        assert together.round_latency_s[number] == pytest.approx(alone.round_latency_s)
    assert together.flops.shape == (4, 5)
    np.testing.assert_allclose(
        cost.total_energy(together.computation_j, together.communication_j), together.energy_j.sum(axis=0)
    )


def test_masks_take_measured_devices_as_many_seconds_as_samples_of_the_same_cycles():
    ones = np.ones(2)
    curves = Curves(link_bit_per_s=2e6 * ones, fixed_s=0.0 * ones, sample_s=2e-3 * ones, compute_w=3.0 * ones)
    fleet = replace(two_clients(), curves=curves)
    plain, masked = round_cost(fleet, work()), round_cost(fleet, replace(work(), more_cycles=5e7))  # of 50 samples
    np.testing.assert_allclose(masked.computation_s - plain.computation_s, [0.1, 0.1])
    np.testing.assert_allclose(masked.computation_j - plain.computation_j, [0.3, 0.3])
