import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leanfed.compression.codec import FrameError, decode, decode_mask, encode, encode_mask
from leanfed.compression.frame import OVERHEAD_BYTES, bitmap_bytes

LIMIT = 3_000
finite32 = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def sparse_vectors(draw):
    """A size, increasing positions and one finite value for each, as bits rather than as numbers."""
    flags = draw(hnp.arrays(np.bool_, st.integers(0, 300)))
    before, after = draw(st.integers(0, 1_000)), draw(st.integers(0, 1_000))  # long gaps need skips
    positions = np.flatnonzero(flags) + before
    values = draw(hnp.arrays(np.float32, len(positions), elements=finite32))
    return len(flags) + before + after, positions, values


@given(sparse_vectors())
def test_any_sparse_vector_survives_the_round_trip_exactly(vector):
    size, positions, values = vector
    update = decode(encode(size, positions, values), max_size=LIMIT)
    got = np.arange(size) if update.positions is None else update.positions
    np.testing.assert_array_equal(got, positions)
    np.testing.assert_array_equal(update.values.view(np.uint32), values.view(np.uint32))  # -0.0 stays -0.0


@given(sparse_vectors(), st.sampled_from(["float16", "bfloat16"]))
def test_narrow_values_settle_after_one_trip(vector, dtype):
    size, positions, values = vector
    once = decode(encode(size, positions, np.clip(values, -6e4, 6e4), dtype), max_size=LIMIT)
    twice = decode(encode(size, positions, once.values, dtype), max_size=LIMIT)
    np.testing.assert_array_equal(once.values, twice.values)


@given(hnp.arrays(np.bool_, st.integers(0, 2_000)))
def test_any_mask_survives_in_at_most_one_bit_an_entry(mask):
    frame = encode_mask(mask)
    np.testing.assert_array_equal(decode_mask(frame, max_size=LIMIT), mask)
    assert len(frame) <= OVERHEAD_BYTES + bitmap_bytes(len(mask))


@st.composite
def mutated_frames(draw):
    """A valid frame with bytes changed, cut or added; half of the time its checksum is made to match again."""
    size, positions, values = draw(sparse_vectors())
    body = bytearray(encode(size, positions, values)[:-8])
    for _ in range(draw(st.integers(1, 4))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    body = body[: draw(st.integers(len(body) - 8, len(body)))] + draw(st.binary(max_size=8))
    tail = hashlib.blake2b(body, digest_size=8).digest() if draw(st.booleans()) else draw(st.binary(max_size=8))
    return bytes(body) + tail


@settings(max_examples=300)
@given(mutated_frames())
def test_a_mutated_frame_is_valid_or_refused_with_a_reason(frame):
    check_outcome(frame)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_reason(frame):
    check_outcome(frame)


def test_thousands_of_forged_frames_are_valid_or_refused_with_a_reason():
    # Bodies are changed and sealed again, so every check behind the checksum is reached.
    rng = np.random.default_rng(0)
    for _ in range(5_000):
        size = int(rng.integers(1, LIMIT))
        positions = np.flatnonzero(rng.random(size) < rng.choice([0.01, 0.1, 0.5, 0.9, 0.99]))
        body = bytearray(encode(size, positions, np.ones(len(positions), dtype=np.float32))[:-8])
        places = rng.integers(4, min(len(body), 60), rng.integers(1, 4))
        for place in places:
            body[place] = rng.integers(256)
        check_outcome(bytes(body) + hashlib.blake2b(body, digest_size=8).digest())


def check_outcome(frame):
    try:
        update = decode(frame, max_size=LIMIT)
    except FrameError as refusal:
        assert "refused: " in str(refusal)
        return
    positions = np.arange(update.size) if update.positions is None else update.positions
    assert update.size <= LIMIT
    assert len(positions) == len(update.values)
    assert np.isfinite(update.values).all()
    assert (np.diff(positions) > 0).all()
    assert not len(positions) or (positions[0] >= 0 and positions[-1] < update.size)
