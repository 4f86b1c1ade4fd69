import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from leanfed.records import kept_counts
from leanfed.wireless import cost
from leanfed.wireless.payload import exact_bits, paper_bits
from leanfed.wireless.round_cost import equal_shares

shares = st.floats(0.0, 1.0)
received_w = st.floats(1e-18, 1e-6)
positive = st.floats(1e-3, 1e12)
sizes = st.integers(1, 10_000_000)


def rate(share, received):
    return cost.uplink_rate(share, bandwidth_hz=1e7, gain=received, power_w=1.0, noise_w_per_hz=4e-21)


@given(shares, shares, received_w)
def test_rate_never_falls_with_the_share(first, second, received):
    low, high = sorted((first, second))
    assert rate(low, received) <= rate(high, received) * (1 + 1e-12)


@given(shares, shares, received_w)
def test_rate_is_concave_in_the_share(first, second, received):
    middle = rate((first + second) / 2, received)
    assert middle >= (rate(first, received) + rate(second, received)) / 2 * (1 - 1e-12)


@given(shares, received_w, received_w)
def test_rate_never_falls_with_the_received_power(share, first, second):
    low, high = sorted((first, second))
    assert 0.0 <= rate(share, low) <= rate(share, high)


@given(st.floats(0.0, 1e12), st.floats(0.0, 1e12), st.floats(0.0, 1e3))
def test_sending_is_never_negative_or_undefined(bits, rate_bit_per_s, power_w):
    latency = cost.communication_latency(bits, rate_bit_per_s)
    energy = cost.communication_energy(power_w, latency)
    assert latency >= 0.0
    assert energy >= 0.0


@given(positive, st.floats(1e8, 1e10), shares, shares)
def test_computing_on_less_takes_less_time_and_energy(cycles, cpu_hz, first, second):
    low, high = sorted((first, second))
    fast, slow = (cost.computation_latency(cycles * share, cpu_hz) for share in (low, high))
    assert fast <= slow
    assert cost.computation_energy(1e-28, cpu_hz, fast) <= cost.computation_energy(1e-28, cpu_hz, slow)


@given(sizes, st.floats(0.0, 1.0))
def test_kept_entries_are_whole_and_no_more_than_asked(size, keep_rate):
    count = kept_counts(keep_rate, size)
    assert count == np.floor(count)
    assert 0 <= count <= min(size, size * keep_rate + 1e-6)


@given(sizes, st.floats(0.0, 1.0), st.sampled_from([16, 32, 64]))
def test_exact_count_lies_between_its_values_and_one_more_bit_an_entry(size, keep_rate, value_bits):
    count = kept_counts(keep_rate, size)
    bits = exact_bits(size, count, value_bits=value_bits)
    assert value_bits * count <= bits <= value_bits * count + size + 1e-6


@given(sizes, st.floats(1e-9, 1.0), st.floats(1e-9, 1.0))
def test_papers_estimate_grows_with_the_keep_rate(size, first, second):
    low, high = sorted((first, second))
    assert paper_bits(size, low) <= paper_bits(size, high) * (1 + 1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_equal_shares_fill_the_band_or_leave_it_empty(taking):
    total = equal_shares(np.array(taking)).sum()
    assert np.isclose(total, 1.0 if any(taking) else 0.0)
