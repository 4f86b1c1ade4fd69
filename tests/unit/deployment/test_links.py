"""Links as they are measured: fixed seconds and bytes / rate each way, robust, and sure of what they know."""

from __future__ import annotations

import json

import numpy as np
import pytest

from leanfed.deployment.learning.links import GUESS_S_PER_BYTE, Measured, Passage, fit


def test_a_line_is_found_through_what_polling_adds() -> None:
    """1 Mbit/s and 0.1 s, seen through half a second of polling: within a fifth after 40 messages, as it says."""
    draw = np.random.default_rng(1)
    sizes = draw.choice([0.0, 20e3, 60e3, 128e3], 40)
    seconds = 0.1 + 8e-6 * sizes + draw.uniform(0.0, 0.5, 40)
    line = fit(sizes.tolist(), seconds.tolist())
    assert line.s_per_byte == pytest.approx(8e-6, rel=0.2)
    assert abs(line.s_per_byte - 8e-6) < 3 * line.slope_deviation < 0.5 * 8e-6
    assert line.seconds(20e3) == pytest.approx(0.1 + 0.16 + 0.25, rel=0.2)


def test_equal_sizes_tell_the_level_and_nothing_of_the_rate() -> None:
    line = fit([50e3] * 6, [0.9, 1.1, 1.0, 1.0, 0.9, 1.1])
    assert line.seconds(50e3) == pytest.approx(1.0, abs=0.01)  # newer ones count for more
    assert line.s_per_byte == pytest.approx(GUESS_S_PER_BYTE)
    assert line.deviation_s(50e3) < 0.15
    assert line.deviation_s(250e3) > 1.9  # 1e-5 s a byte is not known


def test_one_slow_message_is_not_the_link() -> None:
    calm, sizes = [0.3, 0.4, 0.35, 0.3, 0.36], [0.0] * 5
    assert fit([*sizes, 0.0], [*calm, 60.0]).seconds(0.0) == pytest.approx(0.35, abs=0.05)
    assert fit([0.0] * 3, [0.3, 0.4, 60.0]).seconds(0.0) < 1.0


def test_a_link_that_became_slow_is_followed() -> None:
    seconds = [0.3] * 20 + [2.0] * 25
    assert fit([0.0] * 45, seconds).seconds(0.0) == pytest.approx(2.0, rel=0.1)


def test_clocks_that_differ_or_are_set_cancel() -> None:
    truth = Measured()
    off = Measured()
    for number in range(12):
        up = 1000.0 * (number % 4)
        whole = 0.6 + 8e-6 * up
        truth.note_passage(Passage(200e3, up, whole, 0.2 + 8e-6 * up), number)
        ahead = -86_400.0 if number >= 6 else 3600.0  # an hour off, and then set to the day before
        off.note_passage(Passage(200e3, up, whole, 0.2 + 8e-6 * up + ahead), number)
    assert off.fixed_s(200e3, tests=False) == pytest.approx(truth.fixed_s(200e3, tests=False), abs=1e-3)
    assert off.up.line.bit_per_s == pytest.approx(truth.up.line.bit_per_s, rel=0.05)


def test_what_is_known_survives_a_checkpoint() -> None:
    known = Measured()
    known.note_passage(Passage(10.0, 20.0, 1.0, 0.25), 4)
    known.note_work(ready_s=0.1, test_s=None)
    known.note_training(0.5, 32.0, 0.8, None)
    again = Measured.from_json(json.loads(json.dumps(known.to_json())))
    assert again == known
    assert again.heard == 4
    assert again.trainings == [(0.5, 32.0, 0.8, 0)]
