"""LeNet-5's two convolutions with pooling and ReLU, forward and backward, for many clients in one call.

Activations are kept channel-last, so that a 5x5 patch is five contiguous runs, lanes are channels, and pooling is a
lane-wise maximum. The gradient at a max-pool's input has one non-zero entry per window: backward passes visit only the
winners (the maxima), a quarter of the dense work. Kernels release the GIL, allocate nothing, and add in a fixed order.

Sizes per sample: image 32x32 -> conv1 -> pooled 14x14x6 -> conv2 -> pooled 5x5x16. Weights are one set for all clients
or one per client: `own1` and `own2` are 0 or 1.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from leanfed.simulation.batched.vectors import add, load, multiply_add, splat, spread, store, where_less

IMAGE: Final = 32 * 32 + 8  # floats per image; the rest is padding for reads of eight
WIDE: Final = 14 * 6  # one row of pooled conv1
MIDDLE: Final = 14 * WIDE + 104  # floats per pooled conv1, padded for a sixth row of a patch
DEEP: Final = 16 * 25  # pooled conv2, channel-first as conv3 reads it
TAPS1: Final = 25 * 8  # conv1's weights as (tap, channel), six channels padded to eight
TAPS2: Final = 150 * 16  # conv2's weights as (row, column, input | output channel)
TILE: Final = 8 * 40  # conv2's weights per output channel: rows of 8 zeros, 5x6 weights, 2 zeros; empty rows around
PATCH: Final = 6 * 32  # a 5x5x6 patch as rows of 30 padded to 32, and a spare row
ROW1: Final = 5 * 8  # conv1's weight gradient per channel: rows of 5 padded to 8

jit = numba.njit(cache=True, nogil=True, error_model="numpy")


@jit
def _winner(a, b, c, d, zero, here, right, down):
    """The maximum of a 2x2 window after ReLU, and its position; the first in reading order among equals."""
    top = where_less(a, b, b, a)
    top_at = where_less(a, b, splat(np.float32(here + right)), splat(np.float32(here)))
    low = where_less(c, d, d, c)
    low_at = where_less(c, d, splat(np.float32(here + down + right)), splat(np.float32(here + down)))
    best = where_less(top, low, low, top)
    return where_less(best, zero, zero, best), where_less(top, low, low_at, top_at)


@jit
def _load_row(array, at):
    """32 floats."""
    return load(array, at), load(array, at + 8), load(array, at + 16), load(array, at + 24)


@jit
def _store_row(array, at, a, b, c, d):
    """32 floats."""
    store(array, at, a)
    store(array, at + 8, b)
    store(array, at + 16, c)
    store(array, at + 24, d)


@jit
def conv1(images, image, weights, bias, w, b, pooled, winners, out):
    """One image through conv1, 2x2 max-pooling and ReLU; winners are positions in the image."""
    zero, start = splat(np.float32(0)), load(bias, b)
    for y in range(0, 28, 2):
        for x in range(0, 28, 4):
            here = 32 * y + x
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = start  # rows y and y + 1, columns x .. x + 3
            for i in range(5):
                for j in range(5):
                    tap = load(weights, w + 8 * (5 * i + j))
                    p = image + here + 32 * i + j
                    a0 = multiply_add(spread(images, p), tap, a0)
                    a1 = multiply_add(spread(images, p + 1), tap, a1)
                    a2 = multiply_add(spread(images, p + 2), tap, a2)
                    a3 = multiply_add(spread(images, p + 3), tap, a3)
                    b0 = multiply_add(spread(images, p + 32), tap, b0)
                    b1 = multiply_add(spread(images, p + 33), tap, b1)
                    b2 = multiply_add(spread(images, p + 34), tap, b2)
                    b3 = multiply_add(spread(images, p + 35), tap, b3)
            # Each store writes eight lanes for six channels; the next one overwrites the two extra.
            to = out + (y // 2) * WIDE + (x // 2) * 6
            best, at = _winner(a0, a1, b0, b1, zero, here, 1, 32)
            store(pooled, to, best)
            store(winners, to, at)
            best, at = _winner(a2, a3, b2, b3, zero, here + 2, 1, 32)
            store(pooled, to + 6, best)
            store(winners, to + 6, at)


@jit
def conv2(middle, x0, weights, bias, w, b, pooled, winners, out, scratch):
    """One sample through conv2, pooling and ReLU; winners are positions in the pooled conv1."""
    zero, low, high = splat(np.float32(0)), load(bias, b), load(bias, b + 8)
    for cell in range(25):
        here = 2 * (cell // 5) * WIDE + 2 * (cell % 5) * 6
        a0 = b0 = c0 = d0 = low
        a1 = b1 = c1 = d1 = high
        for i in range(5):
            for t in range(30):
                tap = w + 16 * (30 * i + t)
                p = x0 + here + WIDE * i + t
                left, right = load(weights, tap), load(weights, tap + 8)
                x = spread(middle, p)
                a0, a1 = multiply_add(x, left, a0), multiply_add(x, right, a1)
                x = spread(middle, p + 6)
                b0, b1 = multiply_add(x, left, b0), multiply_add(x, right, b1)
                x = spread(middle, p + WIDE)
                c0, c1 = multiply_add(x, left, c0), multiply_add(x, right, c1)
                x = spread(middle, p + WIDE + 6)
                d0, d1 = multiply_add(x, left, d0), multiply_add(x, right, d1)
        best, at = _winner(a0, b0, c0, d0, zero, here, 6, WIDE)
        store(scratch, 0, best)
        store(scratch, 16, at)
        best, at = _winner(a1, b1, c1, d1, zero, here, 6, WIDE)
        store(scratch, 8, best)
        store(scratch, 24, at)
        for channel in range(16):
            pooled[out + 25 * channel + cell] = scratch[channel]
            winners[out + 25 * channel + cell] = np.int32(scratch[16 + channel])


@jit
def conv2_weights(middle, x0, slope, winners, deep, gradient, bias):
    """Add one sample's gradient of conv2's weights, (channel, PATCH), from the slope at its pooled output."""
    for channel in range(16):
        first, total = deep + 25 * channel, np.float32(0)
        for cell in range(25):
            total += slope[first + cell]
        bias[channel] += total
        for pair in range(3):  # two rows of the patch at a time: eight registers
            to = PATCH * channel + 64 * pair
            a0, a1, a2, a3 = _load_row(gradient, to)
            b0, b1, b2, b3 = _load_row(gradient, to + 32)
            for cell in range(25):
                g = spread(slope, first + cell)
                p = x0 + winners[first + cell] + 2 * WIDE * pair
                a0 = multiply_add(load(middle, p), g, a0)
                a1 = multiply_add(load(middle, p + 8), g, a1)
                a2 = multiply_add(load(middle, p + 16), g, a2)
                a3 = multiply_add(load(middle, p + 24), g, a3)
                p += WIDE
                b0 = multiply_add(load(middle, p), g, b0)
                b1 = multiply_add(load(middle, p + 8), g, b1)
                b2 = multiply_add(load(middle, p + 16), g, b2)
                b3 = multiply_add(load(middle, p + 24), g, b3)
            _store_row(gradient, to, a0, a1, a2, a3)
            _store_row(gradient, to + 32, b0, b1, b2, b3)


@jit
def conv2_inputs(tiles, w, slope, winners, deep, middle, x0, gradient, alive, slopes):
    """The gradient at one sample's conv1 before ReLU, from the slope at the pooled conv2.

    The patches of a pooling window's winners all lie in one 6x6 tile: it is summed in registers, two rows at a time.
    """
    gradient[:] = 0
    for cell in range(25):
        here, found = 2 * (cell // 5) * WIDE + 2 * (cell % 5) * 6, 0
        for channel in range(16):
            g, off = slope[deep + 25 * channel + cell], winners[deep + 25 * channel + cell] - here
            slopes[found] = g
            # A winner one row down or one pixel to the right reads its weights one row or six floats earlier.
            alive[found] = w + TILE * channel + (48 - off if off < WIDE else 8 + WIDE - off)
            found += g != 0
        for pair in range(3):
            to = here + 2 * WIDE * pair
            a0, a1, a2, a3 = _load_row(gradient, to)
            b0, b1, b2, b3 = _load_row(gradient, to + WIDE)
            a4, b4 = load(gradient, to + 32), load(gradient, to + WIDE + 32)
            for i in range(found):
                g, p = spread(slopes, i), alive[i] + 80 * pair
                a0 = multiply_add(load(tiles, p), g, a0)
                a1 = multiply_add(load(tiles, p + 8), g, a1)
                a2 = multiply_add(load(tiles, p + 16), g, a2)
                a3 = multiply_add(load(tiles, p + 24), g, a3)
                a4 = multiply_add(load(tiles, p + 32), g, a4)
                b0 = multiply_add(load(tiles, p + 40), g, b0)
                b1 = multiply_add(load(tiles, p + 48), g, b1)
                b2 = multiply_add(load(tiles, p + 56), g, b2)
                b3 = multiply_add(load(tiles, p + 64), g, b3)
                b4 = multiply_add(load(tiles, p + 72), g, b4)
            _store_row(gradient, to, a0, a1, a2, a3)
            store(gradient, to + 32, a4)
            _store_row(gradient, to + WIDE, b0, b1, b2, b3)
            store(gradient, to + WIDE + 32, b4)
    zero = splat(np.float32(0))
    for place in range(0, 14 * WIDE, 8):
        store(gradient, place, where_less(zero, load(middle, x0 + place), load(gradient, place), zero))


@jit
def conv1_weights(images, image, slope, winners, m, gradient, bias):
    """Add one sample's gradient of conv1's weights, (channel, ROW1), from the slope at its pooled output."""
    for channel in range(6):
        to, total = ROW1 * channel, np.float32(0)
        a0, a1, a2, a3 = _load_row(gradient, to)
        a4 = load(gradient, to + 32)
        b0 = b1 = b2 = b3 = b4 = splat(np.float32(0))
        for cell in range(channel, 14 * WIDE, 12):  # two cells at a time: sums a and b do not wait for each other
            total += slope[cell] + slope[cell + 6]
            g, p = spread(slope, cell), image + np.intp(winners[m + cell])
            a0 = multiply_add(load(images, p), g, a0)
            a1 = multiply_add(load(images, p + 32), g, a1)
            a2 = multiply_add(load(images, p + 64), g, a2)
            a3 = multiply_add(load(images, p + 96), g, a3)
            a4 = multiply_add(load(images, p + 128), g, a4)
            g, p = spread(slope, cell + 6), image + np.intp(winners[m + cell + 6])
            b0 = multiply_add(load(images, p), g, b0)
            b1 = multiply_add(load(images, p + 32), g, b1)
            b2 = multiply_add(load(images, p + 64), g, b2)
            b3 = multiply_add(load(images, p + 96), g, b3)
            b4 = multiply_add(load(images, p + 128), g, b4)
        _store_row(gradient, to, add(a0, b0), add(a1, b1), add(a2, b2), add(a3, b3))
        store(gradient, to + 32, add(a4, b4))
        bias[channel] += total


@jit
def forward(pixels, table, rows, batch, own1, own2, keep, weights, buffers):
    """All samples of a chunk: pixels -> normalised images -> pooled conv1 -> pooled conv2.

    With `keep` = 0 samples follow each other through the buffers of the first, which stay in the cache, and `backward`
    has nothing to start from. A row below zero is no sample, and gives zeros.
    """
    taps1, bias1, taps2, bias2, _ = weights
    images, middle, winners1, deep, winners2, scratch, _, _ = buffers
    for s in range(rows.size):
        if rows[s] < 0:
            deep[DEEP * s : DEEP * (s + 1)] = 0
            continue
        w1, w2, at = own1 * (s // batch), own2 * (s // batch), keep * s
        for p in range(1024):
            images[IMAGE * at + p] = table[pixels[rows[s], p]]
        conv1(images, IMAGE * at, taps1, bias1, TAPS1 * w1, 8 * w1, middle, winners1, MIDDLE * at)
        conv2(middle, MIDDLE * at, taps2, bias2, TAPS2 * w2, 16 * w2, deep, winners2, DEEP * s, scratch)


@jit
def backward(slope, batch, own2, weights, buffers, sums):
    """Every client's gradient of both convolutions from the slope (samples x DEEP) at the pooled conv2."""
    images, middle, winners1, deep, winners2, scratch, inner, alive = buffers
    sums1, sum_bias1, sums2, sum_bias2 = sums
    tiles = weights[4]
    for place in range(slope.size):
        if deep[place] <= 0:  # ReLU gave zero
            slope[place] = 0
    for c in range(sums1.shape[0]):
        sums1[c], sum_bias1[c], sums2[c], sum_bias2[c] = 0, 0, 0, 0
        for s in range(batch * c, batch * (c + 1)):
            x0, y0 = MIDDLE * s, DEEP * s
            conv2_weights(middle, x0, slope, winners2, y0, sums2[c], sum_bias2[c])
            conv2_inputs(tiles, own2 * 16 * TILE * c, slope, winners2, y0, middle, x0, inner, alive, scratch)
            conv1_weights(images, IMAGE * s, inner, winners1, x0, sums1[c], sum_bias1[c])
