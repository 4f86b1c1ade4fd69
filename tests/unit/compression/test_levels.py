"""Values coded in a few bits: on their levels, unbiased, and the same on both ends."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from leanfed.compression.codec import FrameError, decode, encode
from leanfed.compression.levels import Range, coded, magnitudes, pack_levels, unpack_levels
from leanfed.compression.values import VALUE_TYPES, rounded
from leanfed.wireless.payload import exact_bits

CODED = {"log8": 8, "log4": 4, "sign": 1}
VECTORS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("dtype", CODED)
@given(values=VECTORS)
def test_what_is_read_is_what_was_rounded(dtype: str, values: np.ndarray) -> None:
    sent, scale = rounded(values, dtype, rng())
    frame = encode(len(values), None, sent, dtype, scale)
    read = decode(frame, max_size=40).values
    assert read.tobytes() == sent.tobytes()


@pytest.mark.parametrize("dtype", ["log8", "log4"])
@given(values=VECTORS)
def test_rounding_goes_to_a_neighbour_and_keeps_the_sign(dtype: str, values: np.ndarray) -> None:
    sent, scale = coded(values, CODED[dtype], rng())
    levels = magnitudes(CODED[dtype], scale)
    for value, got in zip(np.abs(values), np.abs(sent), strict=True):
        below, above = levels[levels <= value], levels[levels >= value]
        assert got in (below[-1], above[0])
    assert (np.sign(sent) * np.sign(values) >= 0).all()
    assert not sent[values == 0].any()


@pytest.mark.parametrize("bits", [8, 4])
def test_the_mean_over_many_draws_is_the_value(bits: int) -> None:
    values = np.array([1.0, -0.7, 0.013, 0.25, -1e-3], np.float32)
    drawn = np.stack([coded(values, bits, rng(seed))[0] for seed in range(4000)]).astype(np.float64)
    error = np.abs(drawn.mean(0) - values)
    assert (error <= 5 * drawn.std(0) / np.sqrt(4000) + 1e-7).all()
    assert drawn[:, 1].std() > 0


def test_eight_bits_change_no_chosen_value_by_more_than_a_step() -> None:
    values = rng().uniform(0.05, 2.0, 500).astype(np.float32)
    sent, (least, most) = coded(values, 8, rng(1))
    assert np.abs(sent / values - 1).max() <= (most / least) ** (1 / 126) - 1 + 1e-6


def test_four_bits_by_hand() -> None:
    """Levels 1, 2, 4 ... 64 of the scale (1, 64): 3 lies halfway between 2 and 4."""
    assert magnitudes(4, Range(1.0, 64.0)).tolist() == [0, 1, 2, 4, 8, 16, 32, 64]
    section = pack_levels(np.array([64, -1, 0, 4], np.float32), 4, Range(1.0, 64.0))
    assert section == struct.pack("<ff", 1.0, 64.0) + bytes([0x97, 0x30])
    values = np.full(10_000, 3.0, np.float32)
    values[:2] = 1.0, 64.0
    sent, _ = coded(values, 4, rng())
    assert set(sent[2:].tolist()) == {2.0, 4.0}
    assert sent[2:].mean() == pytest.approx(3.0, abs=0.05)


def test_a_sign_is_the_mean_magnitude() -> None:
    sent, scale = coded(np.array([3.0, -1.0, 0.0, 2.0], np.float32), 1, rng())
    assert sent.tolist() == [1.5, -1.5, 1.5, 1.5]
    assert scale == (1.5, 1.5)


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("count", [1, 2_535, 25_346])
def test_a_frame_is_its_bits_and_its_scale(dtype: str, count: int) -> None:
    size = 50_692
    places = np.sort(rng().choice(size, count, replace=False))
    sent, scale = rounded(rng().standard_normal(count, dtype=np.float32), dtype, rng(1))
    bits = exact_bits(size, count, value_bits=VALUE_TYPES[dtype].bits) + VALUE_TYPES[dtype].beside_bits
    assert len(encode(size, places, sent, dtype, scale)) <= 1.01 * bits / 8 + 64


def test_only_rounded_values_are_written() -> None:
    with pytest.raises(FrameError, match="must lie on the levels"):
        encode(2, None, [1.0, 1.3], "log4", Range(1.0, 64.0))
    with pytest.raises(FrameError, match="have a scale"):
        encode(2, None, [1.0, 2.0], "log8")


@pytest.mark.parametrize(
    ("scale", "body", "bits", "reason"),
    [
        ((2.0, 1.0), b"\x00", 8, "are no scale"),
        ((0.0, 1.0), b"\x00", 8, "are no scale"),
        ((-1.0, 1.0), b"\x00", 8, "are no scale"),
        ((float("nan"), 1.0), b"\x00", 8, "are no scale"),
        ((1.0, float("inf")), b"\x00", 8, "are no scale"),
        ((1.0, 2.0), b"\x01", 1, "are no scale"),
        ((1.0, 2.0), b"\x80", 8, "a zero has a sign"),
        ((1.0, 2.0), b"\x10", 4, "behind its last value"),
        ((1.0, 1.0), b"\x02", 1, "behind its last value"),
    ],
)
def test_a_hostile_section_is_refused(scale: tuple[float, float], body: bytes, bits: int, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        unpack_levels(memoryview(struct.pack("<ff", *scale) + body), bits, 1)
