import math

import numpy as np
import pytest

from leanfed.errors import SettingsError
from leanfed.records import kept_counts
from leanfed.wireless.payload import (
    dense_bits,
    exact_bits,
    mask_bits,
    paper_bits,
    position_bits,
    sparse_bits,
)

LENET_BASE, RESNET_BASE = 50_692, 6_448_192
WIDTHS = pytest.mark.parametrize("value_bits", [64, 32, 16])


def test_positions_of_two_among_four_are_one_of_six():
    assert position_bits(4, 2) == pytest.approx(math.log2(6))


def test_position_bits_agree_with_big_integers():
    assert position_bits(500, 120) == pytest.approx(math.log2(math.comb(500, 120)), rel=1e-12)


def test_exact_count_by_hand():
    # 3 of 10 values: 3 * 32 + log2(120)
    assert exact_bits(10, 3) == pytest.approx(96 + math.log2(120))


def test_papers_estimate_by_hand_equation_9():
    # k = 1/4, d = 1000: 250 * (2 + 32 + 1)
    assert paper_bits(1000, 0.25) == pytest.approx(8750.0)


def test_printed_equation_8_is_the_exact_count_with_one_bit_more_a_value():
    assert exact_bits(10, 3, value_bits=33) == pytest.approx(3 * (32 + 1) + math.log2(120))


@WIDTHS
def test_everything_kept_needs_no_positions(value_bits):
    full = exact_bits(LENET_BASE, LENET_BASE, value_bits=value_bits)
    assert full == pytest.approx(value_bits * LENET_BASE, rel=1e-12)
    assert dense_bits(LENET_BASE, value_bits=value_bits) == value_bits * LENET_BASE


@WIDTHS
def test_nothing_kept_costs_nothing(value_bits):
    assert exact_bits(LENET_BASE, 0, value_bits=value_bits) == 0.0
    assert paper_bits(LENET_BASE, 0.0, value_bits=value_bits) == 0.0


@WIDTHS
def test_papers_estimate_at_k_one_counts_the_sign_twice(value_bits):
    assert paper_bits(1000, 1.0, value_bits=value_bits) == 1000 * (value_bits + 1)


@pytest.mark.parametrize("size", [LENET_BASE, RESNET_BASE])
def test_papers_estimate_lies_between_one_percent_below_and_three_above_the_exact_count(size):
    rates = np.linspace(0.001, 1.0, 200)
    ratio = paper_bits(size, kept_counts(rates, size) / size) / exact_bits(size, kept_counts(rates, size))
    assert -0.0115 < ratio.min() - 1 < -0.010
    assert 0.030 < ratio.max() - 1 < 0.032


def test_papers_estimate_is_below_its_own_equation_8():
    rates = np.linspace(0.05, 0.95, 50)
    count = kept_counts(rates, LENET_BASE)
    printed = exact_bits(LENET_BASE, count, value_bits=33)
    assert np.all(paper_bits(LENET_BASE, count / LENET_BASE) < printed)


def test_exact_count_is_close_to_the_entropy_form():
    k = 0.1
    entropy = -k * math.log2(k) - (1 - k) * math.log2(1 - k)
    assert exact_bits(RESNET_BASE, k * RESNET_BASE) == pytest.approx(RESNET_BASE * (32 * k + entropy), rel=1e-5)


def test_whole_entries_are_kept():
    assert kept_counts(0.29, 100) == 29  # the product is 28.999999999999996
    assert kept_counts(0.1, 50_692) == 5_069
    assert kept_counts(0.09, 10) == 0


def test_mask_is_one_bit_a_weight():
    assert mask_bits(11_014) == 11_014


def test_counter_is_chosen_by_name():
    assert sparse_bits("paper", 1000, 0.25) == paper_bits(1000, 0.25)
    assert sparse_bits("exact", 1000, 0.2505) == exact_bits(1000, 250)


def test_unknown_counter_is_refused_with_the_nearest():
    with pytest.raises(SettingsError, match=r"'exakt'.*'exact'"):
        sparse_bits("exakt", 1000, 0.5)
