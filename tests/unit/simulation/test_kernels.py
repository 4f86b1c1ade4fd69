"""The kernels against plain torch and numpy on one or a few samples."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from leanfed.compression import topk
from leanfed.compression.selection import largest
from leanfed.simulation.batched import kernels
from leanfed.simulation.batched.fast import KernelTrunk, pixel_table, warm_kernels
from leanfed.simulation.batched.lenet import cross_entropy
from leanfed.simulation.batched.trunk import Convolutions, TorchTrunk, pool
from leanfed.tasks.task import Images


def some_images(count=6, seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 1, 32, 32), dtype=np.uint8)
    pixels[:, :, :, :9] = 0  # flat background: windows full of ties
    return Images(pixels, np.zeros(count, dtype=np.int64), torch.tensor([[[0.1307]]]), torch.tensor([[[0.3081]]]))


def some_weights(sets, seed=0):
    torch.manual_seed(seed)
    shapes = ((sets, 6, 1, 5, 5), (sets, 6), (sets, 16, 6, 5, 5), (sets, 16))
    return Convolutions(*(0.1 * torch.randn(shape) for shape in shapes))


def empty_gradients(clients):
    return Convolutions(*(torch.full_like(w, float("nan")) for w in some_weights(clients)))


def relative(ours, reference):
    return float((ours - reference).norm() / reference.norm())


def autograd(images, rows, weights, slope):
    """Stock torch, one client at a time: values (C, B, 400) and gradients."""
    values, gradients = [], []
    for client, mine in enumerate(rows):
        leaves = [w[client % len(w)].clone().requires_grad_() for w in weights]
        x = images.batch(mine).inputs
        for weight, bias in (leaves[:2], leaves[2:]):
            x = functional.max_pool2d(functional.conv2d(x, weight, bias).relu(), 2)
        x.flatten(1).backward(slope[client])
        values.append(x.detach().flatten(1))
        gradients.append([leaf.grad for leaf in leaves])
    return torch.stack(values), [torch.stack(column) for column in zip(*gradients, strict=True)]


@pytest.mark.parametrize("sets", [(1, 1), (3, 3), (1, 3), (3, 1)], ids=["common", "own", "own-conv2", "own-conv1"])
@pytest.mark.parametrize("kind", ["kernels", "torch"])
def test_convolutions_match_autograd(kind, sets):
    images, rows = some_images(), np.array([[0, 1], [2, 3], [5, 5]])
    weights = Convolutions(*some_weights(sets[0])[:2], *some_weights(sets[1])[2:])
    trunk = KernelTrunk(images, 4, 2) if kind == "kernels" else TorchTrunk(images)
    slope, gradient = torch.randn(3, 2, 400), empty_gradients(3)
    values, expected = autograd(images, rows, weights, slope)
    assert relative(trunk.forward(rows, weights), values) < 1e-6
    trunk.backward(slope.clone(), gradient)
    assert all(relative(ours, theirs) < 1e-5 for ours, theirs in zip(gradient, expected, strict=True))


def test_a_trunk_forgets_its_last_chunk():
    images, rows = some_images(), np.array([[0, 1], [2, 3]])
    used, fresh = KernelTrunk(images, 3, 2), KernelTrunk(images, 3, 2)
    used.backward(used.forward(np.array([[5, 5]] * 3), some_weights(3)).clone(), empty_gradients(3))
    ends = []
    for trunk in (used, fresh):
        gradient = empty_gradients(2)
        trunk.backward(trunk.forward(rows, some_weights(1)).clone(), gradient)
        ends.append(gradient)
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_shows_in_its_own_client(broken):
    weights = some_weights(2)
    weights.weight1[1, 0] = broken
    out = KernelTrunk(some_images(), 2, 1).forward(np.array([[0], [1]]), weights)
    assert torch.isfinite(out[0]).all()
    assert torch.isnan(out[1]).all()


def test_a_trunk_for_tests_gives_the_same_bits_and_zeros_where_there_is_no_sample():
    images, rows, weights = some_images(), np.array([[0, 1], [5, -1]]), some_weights(1)
    tester = KernelTrunk(images, 2, 2, trains=False)
    tester.forward(rows, Convolutions(*(w * float("nan") for w in weights)))  # leaves NaN in its buffers
    expected = KernelTrunk(images, 2, 2).forward(np.array([[0, 1], [5, 5]]), weights)
    found = tester.forward(rows, weights)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1, 0], expected[1, 0])
    assert not found[1, 1].any()


def test_pixels_are_normalised_to_the_same_bits():
    images = some_images()
    images.pixels[0, 0].reshape(-1)[:256] = np.arange(256)
    expected = images.batch(np.array([0])).inputs.flatten()[:256]
    assert torch.equal(pixel_table(images), expected)


def test_pooling_prefers_the_first_of_equals():
    window = torch.tensor([[2.0, 2.0], [1.0, 2.0]]).reshape(1, 1, 2, 2)
    slope = torch.ones(1, 1, 1, 1)
    _, winner = functional.max_pool2d(window, 2, return_indices=True)
    assert winner.item() == 0
    assert pool(window).spread(slope).flatten().tolist() == [1, 0, 0, 0]


def test_a_closed_relu_passes_nothing():
    assert not pool(-torch.rand(1, 1, 4, 4)).spread(torch.ones(1, 1, 2, 2)).any()


def test_cross_entropy_matches_autograd():
    logits, labels = torch.randn(3, 5, 10, requires_grad=True), torch.randint(10, (3, 5))
    loss, slope = cross_entropy(logits.detach(), labels)
    expected = torch.stack([functional.cross_entropy(x, y) for x, y in zip(logits, labels, strict=True)])
    expected.sum().backward()
    assert torch.allclose(loss, expected, rtol=1e-6)
    assert torch.allclose(slope, logits.grad, atol=1e-7)


@pytest.mark.parametrize("count", [1, 2, 5, 499, 500, 501, 999])
def test_the_cut_keeps_the_largest(count):
    values = np.random.default_rng(count).normal(size=1000).astype(np.float32)
    values[::2] = np.float32(-0.25)  # 500 ties, between larger and smaller entries
    threshold, last = topk.cut(
        values.view(np.int32), count, np.zeros(topk.BINS, dtype=np.int64), np.zeros(1000, dtype=np.int32)
    )
    size = np.abs(values).view(np.int32)
    kept = np.flatnonzero((size > threshold) | ((size == threshold) & (np.arange(1000) <= last)))
    assert np.array_equal(kept, largest(np.abs(values), count))


def test_buffers_leave_room_for_reads_of_eight():
    last_patch = (27 * 32 + 27) + 4 * 32 + 8  # conv1: a winner's fifth row, eight floats wide
    assert last_patch <= kernels.IMAGE
    spare_row = (9 * 14 + 9) * 6 + 5 * kernels.WIDE + 32  # conv2: a winner's spare sixth row
    assert spare_row <= kernels.MIDDLE
    tile = (8 * 14 + 8) * 6 + 5 * kernels.WIDE + 40
    assert tile <= kernels.MIDDLE


def test_warming_up_compiles_every_kernel():
    warm_kernels()
    assert all(k.signatures for k in (kernels.forward, kernels.backward, topk.mask_rows, topk.add_rows))
