"""LeNet-5's sizes, the paper's splits, and the flat model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from leanfed.errors import SettingsError
from leanfed.tasks.models import build_model
from leanfed.tasks.split import FlatModel, flatten, split_after
from leanfed.tasks.task import Task, TaskSettings, build_task


def lenet(seed: int = 0) -> nn.Module:
    return build_model("lenet5", 10, seed)


def test_lenet_has_the_papers_sizes() -> None:
    sizes = {name: sum(p.numel() for p in layer.parameters()) for name, layer in lenet().named_children()}
    assert sizes == {"conv1": 156, "conv2": 2_416, "conv3": 48_120, "fc1": 10_164, "fc2": 850}
    assert sum(sizes.values()) == 61_706


@pytest.mark.parametrize(
    ("layer", "base", "head", "percent"),
    [
        ("conv1", 156, 61_550, 0.25),
        ("conv2", 2_572, 59_134, 4.17),
        ("conv3", 50_692, 11_014, 82.15),
        ("fc1", 60_856, 850, 98.62),
    ],
)
def test_the_splits_of_the_partition_table(layer: str, base: int, head: int, percent: float) -> None:
    split = split_after(lenet(), layer)
    assert (split.shared_size, split.private_size) == (base, head)
    assert 100 * base / 61_706 == pytest.approx(percent, abs=0.006)


def test_the_reversed_split_shares_the_deep_layers() -> None:
    split = split_after(lenet(), "conv3").reversed()
    assert (split.shared_size, split.private_size) == (11_014, 50_692)
    assert list(split.shared) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


@pytest.mark.parametrize(("layer", "message"), [("conv4", "did you mean 'conv"), ("fc2", "leaves no head")])
def test_an_impossible_split_is_refused(layer: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        split_after(lenet(), layer)


def test_the_split_is_generic_over_modules_and_leaves_frozen_parameters_out() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    model[0].bias.requires_grad_(False)
    split = split_after(model, "1.0")
    assert list(split.shared) == ["0.weight", "1.0.weight", "1.0.bias"]
    assert list(split.private) == ["1.1.weight", "1.1.bias"]


def test_a_flat_gradient_is_the_gradient_of_the_plain_model() -> None:
    plain = lenet()
    split = split_after(plain, "conv3").reversed()
    flat = FlatModel(lenet(), split)
    inputs, labels = torch.randn(8, 1, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(8)
    loss, gradient = flat.loss_and_gradient(flatten(plain, split.shapes), inputs, labels)
    expected = functional.cross_entropy(plain(inputs), labels)
    expected.backward()
    assert loss == expected.item()
    parameters = dict(plain.named_parameters())
    assert torch.equal(gradient, torch.cat([parameters[name].grad.reshape(-1) for name in split.shapes]))


def test_a_second_gradient_does_not_remember_the_first() -> None:
    flat = FlatModel(lenet(), split_after(lenet(), "conv3"))
    inputs, labels = torch.ones(2, 1, 32, 32), torch.tensor([1, 2])
    first = flat.loss_and_gradient(flat.initial, inputs, labels)[1].clone()
    assert torch.equal(flat.loss_and_gradient(flat.initial, inputs, labels)[1], first)


def norm_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_running_statistics_are_one_vector_in_the_models_order() -> None:
    statistics = FlatModel(norm_model(), split_after(norm_model(), "1")).statistics
    assert statistics.initial.tolist() == [0, 0, 1, 1, 0] * 2  # means, variances, count of each layer
    statistics.write(torch.arange(10.0))
    assert statistics.read().tolist() == list(range(10))
    assert len(statistics.places) == 0


def test_shared_statistics_are_those_of_layers_with_shared_parameters() -> None:
    split = split_after(norm_model(), "1")
    assert FlatModel(norm_model(), split, share_statistics=True).statistics.places.tolist() == [0, 1, 2, 3, 4]
    backwards = FlatModel(norm_model(), split.reversed(), share_statistics=True)
    assert backwards.statistics.places.tolist() == [5, 6, 7, 8, 9]


def test_training_uses_the_batch_and_answers_use_the_running_statistics() -> None:
    flat = FlatModel(norm_model(), split_after(norm_model(), "1"))
    inputs, labels = torch.randn(6, 2, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 2
    before = flat.logits(flat.initial, inputs)
    assert torch.equal(flat.logits(flat.initial, inputs[:1]), before[:1])  # an answer does not depend on its neighbours
    assert torch.equal(flat.statistics.read(), flat.statistics.initial)
    flat.loss_and_gradient(flat.initial, inputs, labels)
    assert not torch.equal(flat.statistics.read(), flat.statistics.initial)
    assert not torch.allclose(flat.logits(flat.initial, inputs), before)


def test_renewed_statistics_are_the_mean_over_the_batches() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2), nn.Linear(2, 2))
    flat = FlatModel(model, split_after(model, "1"))
    flat.measure_statistics(flat.initial, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [8.0]])])
    assert flat.statistics.read().tolist() == [3.5, 5.0, 2]  # means 1 and 6, unbiased variances 2 and 8
    assert model[0].momentum == 0.1


def test_buffers_that_are_not_saved_are_constants_and_wide_ones_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.register_buffer("positions", torch.arange(512), persistent=False)
    assert FlatModel(model, split_after(model, "0")).statistics.size == 0
    model.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    with pytest.raises(SettingsError, match=r"The buffer 'scale' of Sequential is torch.float64"):
        FlatModel(model, split_after(model, "0"))


def test_frozen_parameters_belong_to_nobody_and_never_change() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].requires_grad_(False)
    before = model[1].weight.clone()
    flat = FlatModel(model, split_after(model, "0"))
    assert flat.split.size == 12  # of 18
    _, gradient = flat.loss_and_gradient(torch.ones(12), torch.ones(3, 2), torch.tensor([0, 1, 0]))
    assert gradient.shape == (12,)
    assert torch.equal(model[1].weight, before)
    assert model[1].weight.grad is None


def test_the_base_starts_once_and_heads_start_apart(digits: Task) -> None:
    heads = [digits.initial_private(digits.split, client) for client in range(3)]
    assert not torch.equal(heads[0], heads[1])
    assert torch.equal(heads[2], digits.initial_private(digits.split, 2))
    assert torch.equal(digits.initial_shared(digits.split), digits.initial_shared(digits.split))


def test_building_a_model_leaves_torchs_own_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    build_model("lenet5", 10, 7)
    assert torch.equal(torch.get_rng_state(), before)


def test_images_are_padded_with_black_and_normalised(digits: Task) -> None:
    batch = digits.train.batch(digits.partition.train[0][:4])
    assert batch.inputs.shape == (4, 1, 32, 32)
    black = torch.tensor((0 - 0.1307) / 0.3081)
    assert torch.allclose(batch.inputs[:, :, :2], black)
    assert torch.allclose(batch.inputs[:, :, :, -2:], black)


def test_a_model_that_cannot_take_the_data_is_refused() -> None:
    with pytest.raises(SettingsError, match="takes inputs of shape .* but 'mrpc' has texts"):
        build_task(TaskSettings(dataset="mrpc"), 0)


def test_the_majority_guess_is_right_for_the_share_of_its_label(digits: Task) -> None:
    labels = digits.test.labels[digits.partition.test[0]]
    counts = sorted((labels == label).mean() for label in set(labels.tolist()))
    assert digits.constant_guess([0])[0] in counts
