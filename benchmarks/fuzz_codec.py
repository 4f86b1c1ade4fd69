"""Throw damaged, forged and random frames at the decoder and check that each is valid or refused with a reason.

    python benchmarks/fuzz_codec.py --frames 1000000

Every frame is decoded under a memory trace; a watchdog ends the run with a traceback if one hangs. Exit code 1 and
the offending frame in hexadecimal when a promise is broken.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import resource
import struct
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from rich.progress import Progress

from leanfed.compression.codec import FrameError, SparseUpdate, decode, decode_mask, encode, encode_mask
from leanfed.streams import stream

LIMIT = 2_000  # the largest vector the decoder is told to accept
BYTES_PER_ENTRY = 64  # what decoding may take at its peak, for each entry of the limit, ...
FIXED_BYTES = 128 * 1024  # ... and besides: the table of the gap model, and Python's own objects
HANG_S = 60
HEADER_BYTES, CHECKSUM_BYTES = 28, 8
EDGES = (0, 1, 2, LIMIT - 1, LIMIT, LIMIT + 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
# Fragments of the decoder's refusals; a refusal that matches none has no reason and fails the run.
REASONS = (
    "fewer than the",
    "not an update",
    "this build reads",
    "reserved byte",
    "over the limit",
    "entries sent of",
    "more than a bitmap takes",
    "where its header says",
    "checksum does not match",
    "its value type is",
    "bytes of values where",
    "not finite",
    "position mode",
    "claims to be dense",
    "cannot be a bitmap",
    "bitmap does not mark",
    "cannot be the gaps",
    "coded gaps cannot name",
    "gaps cannot be decoded",
    "left over",
    "gaps but no entries",
    "gaps do not name",
    "a mask was expected",
)

Mutation = Callable[[np.random.Generator, bytes], bytes]


def checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()


def sample_frames(rng: np.random.Generator, count: int) -> list[bytes]:
    """Valid frames of every kind: the stock that is damaged."""
    frames = []
    for number in range(count):
        size = int(rng.integers(0, LIMIT))
        flags = rng.random(size) < rng.choice([0.0, 0.002, 0.05, 0.3, 0.5, 0.8, 0.97, 1.0])
        values = rng.standard_normal(np.count_nonzero(flags), dtype=np.float32)
        dtype = ("float32", "float16", "bfloat16")[number % 3]
        frames.append(encode_mask(flags) if number % 7 == 0 else encode(size, np.flatnonzero(flags), values, dtype))
    return frames


def flip_bits(rng: np.random.Generator, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for at in rng.integers(0, len(changed), rng.integers(1, 6)):
        changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def overwrite_header(rng: np.random.Generator, frame: bytes) -> bytes:
    changed = bytearray(frame)
    if rng.random() < 0.5:
        struct.pack_into("<I", changed, int(rng.choice([8, 12, 16, 20, 24])), int(rng.choice(EDGES)))
    else:
        changed[int(rng.integers(4, 8))] = int(rng.integers(256))
    return bytes(changed)


def overwrite_sections(rng: np.random.Generator, frame: bytes) -> bytes:
    changed = bytearray(frame)
    first = min(HEADER_BYTES, len(changed) - 1)
    at = int(rng.integers(first, min(first + 64, len(changed))))
    noise = rng.bytes(int(rng.integers(1, 9)))
    changed[at : at + len(noise)] = noise
    return bytes(changed)


def cut_or_extend(rng: np.random.Generator, frame: bytes) -> bytes:
    if rng.random() < 0.5:
        return frame[: int(rng.integers(0, len(frame)))]
    return frame + rng.bytes(int(rng.integers(1, 40)))


def replace_all(rng: np.random.Generator, frame: bytes) -> bytes:
    noise = rng.bytes(int(rng.integers(0, 200)))
    return noise if rng.random() < 0.5 else frame[: int(rng.integers(4, HEADER_BYTES))] + noise


MUTATIONS: tuple[Mutation, ...] = (flip_bits, overwrite_header, overwrite_sections, cut_or_extend, replace_all)


def hostile_frames(rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Mutated frames, three in four sealed again so that the checks behind the checksum are reached."""
    stock = sample_frames(rng, 500)
    for number in range(count):
        frame = stock[int(rng.integers(len(stock)))]
        for _ in range(int(rng.integers(1, 3))):
            frame = MUTATIONS[number % len(MUTATIONS)](rng, frame) if frame else frame
        yield frame[:-CHECKSUM_BYTES] + checksum(frame[:-CHECKSUM_BYTES]) if number % 4 else frame


def check_update(update: SparseUpdate) -> None:
    """What a decoded update promises, and that it can be sent again."""
    positions = np.arange(update.size) if update.positions is None else update.positions
    assert update.size <= LIMIT and len(positions) == len(update.values)
    assert np.isfinite(update.values).all()
    assert not len(positions) or (positions[0] >= 0 and positions[-1] < update.size)
    assert (positions[1:] > positions[:-1]).all()
    again = decode(encode(update.size, update.positions, update.values), max_size=LIMIT)
    assert np.array_equal(again.dense(), update.dense())


def attempt(frame: bytes) -> SparseUpdate | np.ndarray | FrameError:
    """Decode as an update, then as a mask; the refusal if both refuse."""
    try:
        return decode(frame, max_size=LIMIT)
    except FrameError as refusal:
        if "value type is 0;" not in str(refusal):
            return refusal
    try:
        return decode_mask(frame, max_size=LIMIT)
    except FrameError as refusal:
        return refusal


def measured(frame: bytes) -> tuple[SparseUpdate | np.ndarray | FrameError, float, int]:
    """The outcome, its seconds, and the bytes allocated at the peak beyond what was held before."""
    tracemalloc.reset_peak()
    held_bytes = tracemalloc.get_traced_memory()[0]
    start = time.perf_counter()
    outcome = attempt(frame)
    seconds = time.perf_counter() - start
    return outcome, seconds, tracemalloc.get_traced_memory()[1] - held_bytes


def verdict(outcome: SparseUpdate | np.ndarray | FrameError, peak_bytes: int) -> str:
    """What became of a frame, in a few words, once its promises are checked."""
    assert peak_bytes <= BYTES_PER_ENTRY * LIMIT + FIXED_BYTES, f"{peak_bytes} bytes allocated"
    if isinstance(outcome, FrameError):
        return next(reason for reason in REASONS if reason in str(outcome))
    if isinstance(outcome, SparseUpdate):
        check_update(outcome)
        return "decoded an update"
    assert outcome.dtype == np.bool_ and len(outcome) <= LIMIT
    return "decoded a mask"


@dataclass
class Tally:
    """What was seen so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    peak_bytes: int = 0

    def add(self, frame: bytes) -> None:
        try:
            outcome, seconds, peak_bytes = measured(frame)
            self.outcomes[verdict(outcome, peak_bytes)] += 1
        except BaseException:
            print(f"A promise is broken by the frame {frame.hex()}", file=sys.stderr)
            raise
        self.slowest_s = max(self.slowest_s, seconds)
        self.peak_bytes = max(self.peak_bytes, peak_bytes)

    def summary(self) -> dict[str, object]:
        return {
            "frames": self.outcomes.total(),
            "decoded": sum(n for what, n in self.outcomes.items() if what.startswith("decoded")),
            "slowest_ms": 1e3 * self.slowest_s,
            "peak_bytes": self.peak_bytes,
            "resident_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "outcomes": dict(self.outcomes.most_common()),
        }


def fuzz(count: int, seed: int) -> Tally:
    tally = Tally()
    tracemalloc.start()
    with Progress() as progress:
        for frame in progress.track(hostile_frames(stream(seed, "fuzz", "codec"), count), total=count):
            if tally.outcomes.total() % 1000 == 0:
                faulthandler.dump_traceback_later(HANG_S, exit=True)  # each thousand winds the watchdog up again
            tally.add(frame)
    faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(fuzz(options.frames, options.seed).summary(), indent=2))


if __name__ == "__main__":
    main()
