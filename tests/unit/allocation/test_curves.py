import math

import numpy as np
import pytest
from scipy.special import gammaln

from leanfed.allocation import curves
from leanfed.allocation.curves import bits_of, keep_rate_of, omega, rate_of, share_of
from leanfed.wireless.cost import uplink_rate
from leanfed.wireless.rate import capacities


@pytest.mark.parametrize("w", [1.0, 1.0 + 1e-9, 1.001, 1.5, 2.0, 10.0, 700.0])
def test_omega_solves_its_equation(w):
    # Near w = 1 the equation is flat, so only half the digits of w can come back.
    assert omega(w - math.log(w)) == pytest.approx(w, rel=1e-7 if w < 1.01 else 1e-13)


def test_eq_7_by_hand():
    # A tenth of 1 MHz at a ratio of 3 over the whole band: 1e5 log2(1 + 30).
    assert rate_of(0.1, 1e6, 3.0) == pytest.approx(1e5 * math.log2(31.0))
    assert rate_of([0.0, 0.5], 1e6, [3.0, 0.0]).tolist() == [0.0, 0.0]


def test_the_compiled_capacity_is_the_plain_one_to_the_last_bit():
    ratios = np.geomspace(1e-12, 1e12, 500)
    assert [curves.capacity(1.7e5, ratio) for ratio in ratios] == capacities(1.7e5, ratios).tolist()


def test_the_allocator_and_the_cost_model_have_one_rate():
    share, gain, power, noise, band = np.geomspace(1e-6, 1.0, 200), 3e-12, 0.3, 4e-21, 1e7
    charged = uplink_rate(share, bandwidth_hz=band, gain=gain, power_w=power, noise_w_per_hz=noise)
    # x0/l and h p/(N0 l W) are rounded apart, by an ulp or two.
    np.testing.assert_allclose(rate_of(share, band, gain * power / (noise * band)), charged, rtol=1e-15)


def test_eq_9_by_hand():
    assert bits_of(0.25, 1000, 32, "paper") == pytest.approx(250 * 35)
    assert bits_of(1.0, 1000, 32, "paper") == pytest.approx(33_000)


def test_exact_bits_are_never_below_eq_8_at_whole_counts():
    for size in (1, 7, 1000, 50_692):
        counts = np.unique(np.linspace(0, size, 97).astype(int))
        positions = (gammaln(size + 1) - gammaln(counts + 1) - gammaln(size - counts + 1)) / math.log(2)
        entropy_form = bits_of(counts / size, size, 32)
        assert np.all(entropy_form >= 32 * counts + positions - 1e-6)
        assert np.all(entropy_form <= 32 * counts + positions + 0.5 * math.log2(8 * size) + 1)


@pytest.mark.parametrize("payload", ["paper", "exact"])
@pytest.mark.parametrize("value_bits", [1, 2, 8, 16, 32, 64])
def test_keep_rate_inverts_bits(payload, value_bits):
    k = np.r_[np.geomspace(1e-12, 0.1, 40), np.linspace(0.1, 0.999, 40)]
    sent = bits_of(k, 1000, value_bits, payload)
    ours = keep_rate_of(sent, 1000, value_bits, payload)
    whole = sent >= bits_of(1.0, 1000, value_bits, payload)  # with few bits a value, the whole vector is cheaper
    assert np.allclose(ours[~whole], k[~whole], rtol=1e-9)
    assert np.all(ours[whole] == 1.0)


@pytest.mark.parametrize("snr", [1e-6, 1e-2, 1.0, 1e3, 1e9])
def test_share_inverts_rate(snr):
    share = np.geomspace(1e-9, 1.0, 60)
    # A rate near its limit W x0/ln 2 hardly depends on the share: digits are lost where x = x0/l is small.
    assert np.allclose(share_of(rate_of(share, 1e6, snr), 1e6, snr), share, rtol=1e-9)


def test_unreachable_rates_need_an_infinite_share():
    limit = 1e6 * 3.0 / math.log(2)
    assert share_of([0.0, limit, 2 * limit], 1e6, 3.0).tolist() == [0.0, math.inf, math.inf]
    assert share_of(1.0, 1e6, 0.0) == math.inf
