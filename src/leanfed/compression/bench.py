"""The codec's figures: coded size against the entropy bound, and the time of a round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import lgamma, log
from time import perf_counter
from typing import TypedDict

import numpy as np

from leanfed.compression.codec import decode, encode
from leanfed.streams import stream

LENET_BASE, RESNET_BASE = 50_692, 6_448_192
KEEP_RATES = (0.001, 0.01, 0.05, 0.1, 0.5, 0.9, 0.99)
CASES = tuple((size, keep_rate) for size in (LENET_BASE, RESNET_BASE) for keep_rate in KEEP_RATES)
VALUE_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}


class CodecRow(TypedDict):
    """One measured case; `overhead` is coded over exact bits, minus one."""

    d: int
    k: float
    exact_bits: float
    coded_bits: int
    overhead: float
    encode_ms: float
    decode_ms: float


def codec_rows(
    cases: Iterable[tuple[int, float]] = CASES, *, dtype: str = "float32", repeats: int = 7, seed: int = 0
) -> list[CodecRow]:
    """Measure each (size, keep rate): times are the best of `repeats` after one warm-up."""
    return [_measure(size, keep_rate, dtype, repeats, seed) for size, keep_rate in cases]


def entropy_bound(size: int, count: int, value_bits: int) -> float:
    """The fewest bits that any code needs on average: F n + log2 C(d, n)."""
    nats = lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)
    return value_bits * count + nats / log(2)


def _measure(size: int, keep_rate: float, dtype: str, repeats: int, seed: int) -> CodecRow:
    rng = stream(seed, "bench", "codec", size, repr(keep_rate))
    count = int(keep_rate * size)
    positions = np.sort(rng.choice(size, count, replace=False, shuffle=False)).astype(np.int32)
    values = rng.standard_normal(count, dtype=np.float32)
    frame = encode(size, positions, values, dtype)
    exact = entropy_bound(size, count, VALUE_BITS[dtype])
    return {
        "d": size,
        "k": keep_rate,
        "exact_bits": exact,
        "coded_bits": 8 * len(frame),
        "overhead": 8 * len(frame) / exact - 1.0,
        "encode_ms": _best_ms(lambda: encode(size, positions, values, dtype), repeats),
        "decode_ms": _best_ms(lambda: decode(frame, max_size=size), repeats),
    }


def _best_ms(call: Callable[[], object], repeats: int) -> float:
    """The fastest of several calls, in milliseconds: the one least disturbed by other work."""
    call()
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return 1e3 * min(times)
