"""Exact top-k: the rule of compression.selection.largest as numba kernels, for a large vector or rows of a matrix.

The bits of a non-negative float32 sort like the number, so the k-th largest magnitude is found by counting: 11 bits,
then 10, then 10. An entry is kept if it is above the threshold, or equal to it and not after the last tie that fits.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

BINS: Final = 2048
MAGNITUDE: Final = np.int32(0x7FFFFFFF)

jit = numba.njit(cache=True, nogil=True, error_model="numpy")


@jit
def _bin_of(counts, bins, wanted):
    """The bin that holds the `wanted`-th largest entry, and how many entries lie in the bins above it."""
    above, place = 0, bins - 1
    while above + counts[place] < wanted:
        above += counts[place]
        place -= 1
    return place, above


@jit
def _last_tie(bits, threshold, ties):
    """Position of the `ties`-th entry that equals the threshold."""
    place = -1
    while ties > 0:
        place += 1
        if bits[place] & MAGNITUDE == threshold:
            ties -= 1
    return place


@jit
def cut(bits, count, counts, near):
    """(threshold, last): entries above the threshold are kept, and equal ones up to position `last`.

    `bits` (size,) are float32 seen as int32, `counts` (BINS,) and `near` (size,) are scratch; 0 < count < size.
    """
    counts[:] = 0
    for i in range(bits.size):
        counts[(bits[i] & MAGNITUDE) >> 20] += 1
    top, above = _bin_of(counts, BINS, count)
    found = 0
    for i in range(bits.size):  # without a branch: `near[found]` is overwritten until an entry belongs there
        near[found] = bits[i] & MAGNITUDE
        found += near[found] >> 20 == top
    threshold = top << 20
    for shift in (10, 0):
        counts[:1024] = 0
        for i in range(found):
            counts[(near[i] >> shift) & 1023] += 1
        place, more = _bin_of(counts, 1024, count - above)
        above += more
        threshold |= place << shift
        kept = 0
        for i in range(found):
            value = near[i]
            near[kept] = value
            kept += (value >> shift) & 1023 == place
        found = kept
    ties = count - above
    return np.int32(threshold), bits.size if ties == found else _last_tie(bits, threshold, ties)


@jit
def _cut_any(bits, count, counts, near):
    """`cut` for any count: keeps nothing for 0, everything from `size` on."""
    if count <= 0:
        return MAGNITUDE, -1
    if count >= bits.size:
        return np.int32(-1), -1
    return cut(bits, count, counts, near)


@jit
def _kept(bits, threshold, last, i):
    """Whether entry i survives the cut."""
    size = bits[i] & MAGNITUDE
    return (size > threshold) | ((size == threshold) & (i <= last))


@jit
def places_of(bits, threshold, last, size, count):
    """Positions (count,) of the first `size` entries that survive a cut, increasing."""
    places, found = np.empty(count + 1, np.int64), 0
    for i in range(size):  # without a branch, as in `cut`
        places[found] = i
        found += _kept(bits, threshold, last, i)
    return places[:count]


@jit
def positions(bits, count):
    """Positions of the `count` largest magnitudes, increasing; 0 < count < size."""
    threshold, last = cut(bits, count, np.zeros(BINS, np.int64), np.empty(bits.size + 1, np.int32))
    return places_of(bits, threshold, last, bits.size, count)


@jit
def cut_rows(bits, count, size, threshold, last, counts, near):
    """threshold, last (rows,): the cut of the `count[row]` largest among each row's first `size` entries."""
    for row in range(bits.shape[0]):
        threshold[row], last[row] = _cut_any(bits[row, :size], count[row], counts, near)


@jit
def mask_rows(bits, threshold, last, mask):
    """mask (rows, size) = 1 where an entry survives its row's cut, else 0."""
    for row in range(mask.shape[0]):
        mine, out = bits[row], mask[row]
        for i in range(out.size):
            out[i] = np.float32(_kept(mine, threshold[row], last[row], i))


@jit
def rest_rows(values, bits, threshold, last, rest):
    """rest (rows, size) = the rows with zeros where an entry survives the cut."""
    for row in range(rest.shape[0]):
        mine, mine_bits, out = values[row], bits[row], rest[row]
        for i in range(out.size):
            out[i] = np.float32(0) if _kept(mine_bits, threshold[row], last[row], i) else mine[i]


@jit
def add_rows(values, bits, threshold, last, weight, total, grid):
    """total (size,) float64 += weight[row] x what survives the row's cut, on a grid as in compression.exact."""
    for row in range(values.shape[0]):
        mine, mine_bits, factor = values[row], bits[row], weight[row]
        for i in range(total.size):
            kept = _kept(mine_bits, threshold[row], last[row], i)
            total[i] += (factor * np.float64(mine[i] if kept else np.float32(0)) + grid) - grid


@jit
def add_whole_rows(values, weight, total, grid):
    """total (size,) float64 += weight[row] x the row's first `size` entries, on a grid as in compression.exact."""
    for row in range(values.shape[0]):
        mine, factor = values[row], weight[row]
        for i in range(total.size):
            total[i] += (factor * np.float64(mine[i]) + grid) - grid
