"""What two gradients of each client say about sharing a layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leanfed.theory.agreement import agreement


def test_two_clients_by_hand() -> None:
    pairs = [(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])), (torch.tensor([0.0, 4.0]), torch.tensor([2.0, 0.0]))]
    found = agreement(pairs, [1, 1])
    assert found.own_sq.tolist() == [(1 * 3 + 0 * 2) / 2, (2 * 2 + 4 * 0) / 2]
    assert found.noise_sq.tolist() == [(2**2 / 2 + 2**2 / 2) / 2, (0 + 4**2 / 2) / 2]
    assert found.cross.tolist() == [2 * 1, 2 * 2]  # the product of the two clients' means
    assert found.divergence_sq.tolist() == [1.5 - 2, 2 - 4]
    assert found.worth_sharing(2, 10).tolist() == [1.0, 1.0]  # no client differs from the mean


def test_clients_with_one_gradient_agree_wholly() -> None:
    one = torch.arange(6.0)
    found = agreement([(one, one)] * 5, [2, 4])
    assert found.cross == pytest.approx(found.own_sq)
    assert found.worth_sharing(32, 200).tolist() == [1.0, 1.0]


def test_independent_clients_do_not_agree_and_n_star_is_the_batch_times_noise_over_divergence() -> None:
    draws = torch.Generator().manual_seed(0)
    means = torch.randn(400, 50, generator=draws)
    noise = 0.5 * torch.randn(2, 400, 50, generator=draws)
    found = agreement(((mean + a, mean + b) for mean, a, b in zip(means, *noise, strict=True)), [50])
    assert abs(found.cross[0]) < 0.1  # of 50; its deviation over 400 clients is about 50 ** 0.5 / 400
    assert found.own_sq == pytest.approx([50], rel=0.02)
    assert found.noise_sq == pytest.approx([50 * 0.25], rel=0.02)
    assert found.worth_sharing(32, 200) == pytest.approx([32 * 0.25 / 200], rel=0.05)


def test_one_client_has_nobody_to_agree_with() -> None:
    with pytest.raises(ValueError, match="two clients at least"):
        agreement([(torch.ones(2), torch.ones(2))], [2])


def test_layers_without_noise_or_divergence_are_worth_sharing() -> None:
    zero = torch.zeros(3)
    assert np.array_equal(agreement([(zero, zero)] * 2, [1, 2]).worth_sharing(1, 1), np.ones(2))
