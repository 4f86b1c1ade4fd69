import hashlib
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from leanfed.compression.bench import codec_rows, entropy_bound
from leanfed.compression.codec import FrameError, decode, decode_mask, encode, encode_mask
from leanfed.compression.frame import OVERHEAD_BYTES, seal
from leanfed.compression.positions import Mode, _encode_gaps
from leanfed.wireless.payload import exact_bits

LENET_BASE, RESNET_BASE = 50_692, 6_448_192
BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
# Offsets of the header's fields.
VERSION, VALUE_TYPE, MODE, RESERVED, SIZE, COUNT, POSITION_BYTES, VALUE_BYTES, SECTIONS = 4, 5, 6, 7, 8, 12, 16, 20, 28
SPARSE = encode(400, [3, 7, 100, 399], [1.0, -2.0, 0.5, 3.0], "float16")
DENSE = encode(3, None, [1.0, -2.0, 0.5])
BITMAP = encode(5, [0, 2, 4], [1.0, 2.0, 3.0])


def scattered(size, count, seed=0):
    rng = np.random.default_rng(seed)
    positions = np.sort(rng.choice(size, count, replace=False, shuffle=False))
    return positions, rng.standard_normal(count, dtype=np.float32)


def resealed(frame, offset, field):
    """The frame with some bytes changed and a checksum that matches: what a hostile sender would make."""
    body = bytearray(frame[:-8])
    body[offset : offset + len(field)] = field
    return bytes(body) + hashlib.blake2b(body, digest_size=8).digest()


def u32(value):
    return struct.pack("<I", value)


# --- the format --------------------------------------------------------------------------------------------------


def test_frames_of_version_1_stay_as_they_are():
    # Written down once: a change here is a new version of the wire format.
    assert SPARSE.hex() == (
        "4c4e46440102020090010000040000000c0000000800000000000000"
        "040000003901b107d437c20a003c00c0003800429b54a83f5624e2f2"
    )
    assert DENSE.hex() == (
        "4c4e4644010100000300000003000000000000000c000000000000000000803f000000c00000003f52d38281a612e72b"
    )
    assert encode_mask([True, False, True, True]).hex() == (
        "4c4e46440100010004000000030000000100000000000000000000000da5482ca70b7a3ce4"
    )


def test_importing_the_codec_and_the_cost_model_does_not_import_torch():
    rooms = "leanfed.compression.codec, leanfed.wireless.round_cost, leanfed.wireless.fleet_file"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 49, 50, 51, 98, 99, 100])
@pytest.mark.parametrize("size", [100, 5_000])
def test_sparse_update_comes_back_exactly(size, count):
    positions, values = scattered(size, count)
    update = decode(encode(size, positions, values), max_size=size)
    if count == size:
        assert update.positions is None
    else:
        np.testing.assert_array_equal(update.positions, positions)
    np.testing.assert_array_equal(update.values, values)
    assert update.size == size


def test_dense_update_comes_back_exactly_and_costs_its_values():
    values = np.arange(1000, dtype=np.float32)
    frame = encode(1000, None, values)
    update = decode(frame, max_size=1000)
    assert update.positions is None
    np.testing.assert_array_equal(update.dense(), values)
    assert len(frame) == 4 * 1000 + OVERHEAD_BYTES


def test_all_positions_given_is_a_dense_frame():
    assert encode(3, [0, 1, 2], [1.0, -2.0, 0.5]) == DENSE


def test_dense_view_fills_in_zeros():
    np.testing.assert_array_equal(decode(BITMAP, max_size=5).dense(), [1.0, 0.0, 2.0, 0.0, 3.0])


def test_an_empty_vector_is_a_frame_too():
    assert decode(encode(0, None, []), max_size=0).size == 0
    assert decode_mask(encode_mask(np.empty(0, dtype=bool)), max_size=0).size == 0


@pytest.mark.parametrize("share", [0.0, 0.02, 0.4, 0.5, 0.95, 1.0])
def test_mask_comes_back_in_at_most_one_bit_an_entry(share):
    mask = np.random.default_rng(0).random(11_014) < share
    frame = encode_mask(mask)
    np.testing.assert_array_equal(decode_mask(frame, max_size=11_014), mask)
    assert 8 * (len(frame) - OVERHEAD_BYTES) <= 11_014 + 7


def test_bfloat16_rounds_to_nearest_and_ties_to_even():
    # Eight significant bits: 1 + 2^-8 is a tie (down to even), 1 + 3 * 2^-8 a tie (up to even).
    given = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.0], dtype=np.float32)
    got = decode(encode(4, None, given, "bfloat16"), max_size=4).values
    np.testing.assert_array_equal(got, [1.0, 1 + 2**-6, 1 + 2**-7, -3.0])


def test_float16_rounds_as_numpy_does():
    given = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    got = decode(encode(100, None, given, "float16"), max_size=100).values
    np.testing.assert_array_equal(got, given.astype(np.float16).astype(np.float32))


def test_decoded_arrays_do_not_lean_on_the_frame():
    frame = bytearray(DENSE)
    update = decode(frame, max_size=3)
    frame[SECTIONS:] = bytes(len(frame) - SECTIONS)
    update.values[0] += 1.0
    np.testing.assert_array_equal(update.values, [2.0, -2.0, 0.5])


@pytest.mark.parametrize(
    ("size", "count", "mode"),
    [(1000, 10, Mode.KEPT_GAPS), (1000, 990, Mode.DROPPED_GAPS), (1000, 500, Mode.BITMAP), (1000, 1000, Mode.ALL)],
)
def test_the_smallest_form_is_chosen(size, count, mode):
    positions, values = scattered(size, count)
    assert encode(size, positions, values)[MODE] == mode


# --- size --------------------------------------------------------------------------------------------------------


def assert_close_to_the_exact_count(size, positions, values, dtype):
    exact_bytes = exact_bits(size, len(positions), value_bits=BITS[dtype]) / 8
    assert len(encode(size, positions, values, dtype)) <= 1.01 * exact_bytes + 64


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("keep_rate", [0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.8, 0.9, 0.99])
def test_lenet_frames_are_within_one_percent_of_the_exact_count(keep_rate, dtype):
    positions, values = scattered(LENET_BASE, int(keep_rate * LENET_BASE))
    assert_close_to_the_exact_count(LENET_BASE, positions, values, dtype)


@pytest.mark.parametrize("keep_rate", [0.001, 0.05, 0.5, 0.99])
def test_resnet_frames_are_within_one_percent_of_the_exact_count(keep_rate):
    positions, values = scattered(RESNET_BASE, int(keep_rate * RESNET_BASE))
    assert_close_to_the_exact_count(RESNET_BASE, positions, values, "float32")


@pytest.mark.parametrize("arrange", ["first", "last", "even", "two ends"])
def test_size_does_not_depend_on_where_the_entries_lie(arrange):
    size, count = LENET_BASE, 5_069
    positions = {
        "first": np.arange(count),
        "last": np.arange(size - count, size),
        "even": np.arange(count) * 10,
        "two ends": np.concatenate([np.arange(count // 2), np.arange(size - count // 2, size)]),
    }[arrange]
    values = np.ones(len(positions), dtype=np.float32)
    assert_close_to_the_exact_count(size, positions, values, "float16")
    np.testing.assert_array_equal(decode(encode(size, positions, values), max_size=size).positions, positions)


def test_one_entry_in_millions_is_cheap_wherever_it_is():
    for position in (0, RESNET_BASE // 2, RESNET_BASE - 1):
        frame = encode(RESNET_BASE, [position], [1.0])
        assert len(frame) <= 64
        np.testing.assert_array_equal(decode(frame, max_size=RESNET_BASE).positions, [position])


def test_bench_rows_hold_what_they_name():
    (row,) = codec_rows([(LENET_BASE, 0.1)], repeats=2)
    assert list(row) == ["d", "k", "exact_bits", "coded_bits", "overhead", "encode_ms", "decode_ms"]
    assert row["exact_bits"] == pytest.approx(float(exact_bits(LENET_BASE, 5_069)), rel=1e-12)
    assert row["overhead"] == pytest.approx(row["coded_bits"] / row["exact_bits"] - 1)
    assert 0.0 < row["overhead"] < 0.01
    assert row["encode_ms"] > 0.0 and row["decode_ms"] > 0.0
    assert entropy_bound(10, 10, 32) == 320.0


# --- what the encoder refuses ------------------------------------------------------------------------------------

BAD_INPUT = {
    "unsorted": ((9, [3, 1], [1.0, 2.0]), "increase strictly"),
    "repeated": ((9, [3, 3], [1.0, 2.0]), "increase strictly"),
    "past the end": ((9, [9], [1.0]), "within 0 to 8"),
    "negative": ((9, [-1, 2], [1.0, 2.0]), "within 0 to 8"),
    "fractional": ((9, [0.5], [1.0]), "vector of integers"),
    "a table of positions": ((9, [[1]], [1.0]), "not 2-dimensional"),
    "a table of values": ((9, [1], [[1.0]]), "not 2-dimensional"),
    "too few values": ((9, [1, 2], [1.0]), "1 values for 2 positions"),
    "dense of another length": ((9, None, [1.0]), "1 values for 9 positions"),
    "nan": ((9, [1, 4], [1.0, np.nan]), "Value 1 is nan"),
    "too large for any type": ((9, [1], [1e300]), "Value 0 is inf"),
    "too large for float16": ((9, [1], [1e6], "float16"), "too large for float16"),
    "too large for bfloat16": ((9, [1], [3.4e38], "bfloat16"), "too large for bfloat16"),
    "unknown type": ((9, [1], [1.0], "float23"), "'float23'; did you mean 'float32'"),
    "vector too long": ((2**31, [1], [1.0]), "cannot be sent"),
    "vector of negative length": ((-1, [], []), "cannot be sent"),
}


@pytest.mark.parametrize(("arguments", "reason"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_encoder_refuses(arguments, reason):
    with pytest.raises(FrameError, match=reason):
        encode(*arguments)


def test_mask_must_be_boolean():
    with pytest.raises(FrameError, match="booleans"):
        encode_mask([0, 1, 1])


# --- what the decoder refuses ------------------------------------------------------------------------------------

SPARSE_GAPS = _encode_gaps(400, np.array([3, 7, 100, 399], dtype=np.int32))
PAST_THE_END = _encode_gaps(400, np.array([3, 7, 100, 400], dtype=np.int32))
INFINITE = struct.pack("<f", np.inf)
HOSTILE = {
    "nothing": (b"", "0 bytes are fewer"),
    "cut header": (SPARSE[:20], "20 bytes are fewer"),
    "another kind of file": (b"PK\x03\x04" + SPARSE[4:], "not an update"),
    "a later version": (resealed(SPARSE, VERSION, b"\x02"), "version 2"),
    "reserved byte set": (resealed(SPARSE, RESERVED, b"\x01"), "reserved byte"),
    "over the limit": (resealed(SPARSE, SIZE, u32(1001)), "over the limit of 1000"),
    "far over the limit": (resealed(SPARSE, SIZE, u32(2**32 - 1)), "over the limit"),
    "more entries than the vector has": (resealed(SPARSE, COUNT, u32(401)), "401 entries sent of a vector of 400"),
    "positions longer than a bitmap": (resealed(SPARSE, POSITION_BYTES, u32(51)), "more than a bitmap"),
    "cut": (SPARSE[:-1], "bytes long where its header says"),
    "extended": (SPARSE + b"\x00", "bytes long where its header says"),
    "enormous values": (resealed(SPARSE, VALUE_BYTES, b"\xff" * 8), "bytes long where its header says"),
    "one bit flipped": (SPARSE[:-9] + bytes([SPARSE[-9] ^ 1]) + SPARSE[-8:], "checksum"),
    "unknown value type": (resealed(SPARSE, VALUE_TYPE, b"\x09"), "value type is 9"),
    "a mask": (encode_mask([True, False]), "value type is 0"),
    "unknown mode": (resealed(SPARSE, MODE, b"\x07"), "position mode is 7"),
    "values of another type": (resealed(SPARSE, VALUE_TYPE, b"\x01"), "8 bytes of values where 4 float32 take 16"),
    "infinite value": (resealed(DENSE, SECTIONS, INFINITE), "not finite"),
    "dense with a hole": (resealed(DENSE, SIZE, u32(4)), "claims to be dense"),
    "bitmap with an extra mark": (resealed(BITMAP, SECTIONS, b"\x1f"), "does not mark 3 of 5"),
    "bitmap with a mark past the end": (resealed(BITMAP, SECTIONS, b"\x85"), "does not mark 3 of 5"),
    "bitmap of another length": (resealed(BITMAP, SIZE, u32(9)), "cannot be a bitmap of 9"),
    "gaps where half is not rare": (resealed(BITMAP, MODE, b"\x02"), "cannot be the gaps of 3 among 5"),
    "too few gaps": (resealed(SPARSE, SECTIONS, u32(3)), "3 coded gaps cannot name 4"),
    "too many gaps": (resealed(SPARSE, SECTIONS, u32(5)), "5 coded gaps cannot name 4"),
    "gaps past the end": (seal(2, Mode.KEPT_GAPS, 400, 4, PAST_THE_END, bytes(8)), "do not name 4 of 400"),
    "words left over": (seal(2, Mode.KEPT_GAPS, 400, 4, SPARSE_GAPS + b"\x55" * 8, bytes(8)), "left over"),
    "gaps of nothing": (seal(2, Mode.KEPT_GAPS, 400, 0, SPARSE_GAPS, b""), "gaps but no entries|cannot name 0"),
    "gaps of noise": (resealed(SPARSE, SECTIONS + 4, b"\xff" * 8), "Frame refused"),
}


@pytest.mark.parametrize(("frame", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
def test_decoder_refuses_with_the_reason(frame, reason):
    with pytest.raises(FrameError, match=reason):
        decode(frame, max_size=1000)


def test_an_update_is_not_taken_for_a_mask():
    with pytest.raises(FrameError, match="a mask was expected"):
        decode_mask(SPARSE, max_size=1000)


def test_a_huge_claim_is_refused_before_memory_is_taken():
    claim = resealed(encode(RESNET_BASE, [0], [1.0]), SIZE, u32(2**31 - 1))
    tracemalloc.start()
    with pytest.raises(FrameError, match="over the limit"):
        decode(claim, max_size=RESNET_BASE)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000
