"""FedMask's rows, masks, means over owners and its steps before round 0, by hand where that is possible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from leanfed.algorithms.contract import Cohort, ServerState, Training
from leanfed.algorithms.fedmask import FedMask, frozen_weights
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.row_structure import structure_of
from leanfed.algorithms.uploads import Upload
from leanfed.rounds.aggregation import WeightedMean
from leanfed.rounds.wire import from_frame, to_frame
from leanfed.rounds.world import World
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import FlatModel, split_after

WorldOf = Callable[..., World]
INPUTS = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.3, -2.0]])
LABELS = torch.tensor([0, 1, 1])
ETA = 0.1
OPEN = torch.tensor([0.3, -0.8, 0.1, 0.4, 0.2, 0.2, -0.1, 0.5])  # scores of the first masked matrix, (4, 2)
LAST = torch.tensor([0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8])  # of the last, (2, 4)


def learner() -> FlatLearner:
    """A first layer of two outputs; then masked matrices (4, 2), with a bias, and (2, 4): 16 entries in 6 rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4), nn.Linear(4, 2, bias=False))
    return FlatLearner(FlatModel(model, FedMask().divide(split_after(model, "1"))))


def state(*rows: int, scores: Tensor | None = None) -> Tensor:
    """A client that holds these rows of the first masked matrix, and both of the last."""
    flags = torch.zeros(6)
    flags[[*rows, 4, 5]] = 1.0
    return torch.cat([torch.cat([OPEN, LAST]) if scores is None else scores, flags])


def cohort(*states: Tensor, number: int = 0) -> Cohort:
    one = np.ones(len(states))
    batch = Batch(INPUTS.expand(len(states), -1, -1), LABELS.expand(len(states), -1))
    training = Training(learning_rate=ETA)
    return Cohort(tuple(range(len(states))), number, 0, training, one, one, torch.stack(states), {}, [batch], 1)


def mean_of(*uploads: Upload, gamma: list[float]) -> Tensor:
    mean = WeightedMean().combine(uploads[0].size, np.array(gamma), uploads)
    return FedMask().step(ServerState(torch.zeros(22)), mean, Training(), 0).shared


def test_all_weight_matrices_behind_the_first_layer_are_masked(world_of: WorldOf) -> None:
    split = world_of(FedMask()).split
    assert list(split.shared) == ["conv2.weight", "conv3.weight", "fc1.weight", "fc2.weight"]
    assert split.shared_size == 2_400 + 48_000 + 10_080 + 840


def test_rows_of_lenet_by_hand(world_of: WorldOf) -> None:
    rows = structure_of(world_of(FedMask()).split)
    assert (rows.counts, rows.widths) == ((16, 120, 84, 10), (150, 400, 120, 84))
    assert rows.prunable == 60_480
    # At r = 0.3: 4 of 16, 36 of 120, 25 of 84 rows, all 10 of the last; at r = 0.001 one of each.
    assert rows.sent(np.array([0.3, 0.001])).tolist() == [
        4 * 150 + 36 * 400 + 25 * 120 + 840 + 230,
        150 + 400 + 120 + 840 + 230,
    ]


def test_the_rows_with_the_largest_mean_scores_are_kept_and_all_of_the_last_matrix() -> None:
    scores = torch.tensor([0.1, 0.1, 0.9, -0.9, 0.3, 0.2, 0.2, 0.3, *LAST.tolist()])  # means 0.1, 0, 0.25, 0.25
    rows = structure_of(learner().split)
    assert rows.best_rows(scores, 0.5).tolist() == [0, 0, 1, 1, 1, 1]
    assert rows.best_rows(scores, 0.25).tolist() == [0, 0, 1, 0, 1, 1]  # a tie goes to the lower row


def test_initial_weights_are_kept_up_to_one_factor_for_a_matrix(world_of: WorldOf) -> None:
    net = world_of(FedMask()).new_learner()
    assert torch.equal(frozen_weights(net.split, net.initial, "initial"), net.initial)
    frozen = frozen_weights(net.split, net.initial)
    assert float(frozen[:2_400].square().mean()) == pytest.approx(2 / 150)
    ratio = frozen[:2_400] / net.initial[:2_400]
    assert torch.allclose(ratio, ratio[0].expand(2_400))
    biases = [n for n in net.split.private if n.endswith("bias")]
    assert len(biases) == 5
    assert torch.equal(frozen[-10:], net.initial[-10:])


def test_a_pruned_row_has_neither_weights_nor_a_bias() -> None:
    net = learner()
    frozen = frozen_weights(net.split, net.initial)
    shared, private = FedMask().personal_weights(ServerState(torch.zeros(22)), state(0, 3).unsqueeze(0), net)
    # Row 0 has scores (0.3, -0.8), rows 1 and 2 are pruned, row 3 has (-0.1, 0.5).
    assert torch.equal(shared[0, :8], frozen[:8] * torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 1]))
    assert torch.equal(shared[0, 8:], frozen[8:16] * (LAST > 0))
    assert list(net.split.private) == ["0.weight", "0.bias", "1.bias"]
    assert torch.equal(private[0], frozen[16:] * torch.tensor([1.0] * 6 + [1, 0, 0, 1]))


def test_the_score_gradient_goes_straight_through_the_threshold_of_held_rows() -> None:
    net = learner()
    frozen, scores = frozen_weights(net.split, net.initial), torch.cat([OPEN, LAST]).requires_grad_()
    soft = torch.sigmoid(scores)
    hard = (soft > 0.5).float() + soft - soft.detach()  # forward: the bit; backward: the sigmoid
    rows = torch.tensor([1.0, 0, 0, 1])
    hidden = INPUTS @ frozen[16:20].reshape(2, 2).T + frozen[20:22]
    hidden = (hidden @ (frozen[:8] * hard[:8]).reshape(4, 2).T + frozen[22:]) * rows
    functional.cross_entropy(hidden @ (frozen[8:16] * hard[8:]).reshape(2, 4).T, LABELS).backward()
    update = FedMask(score_rate=2.0).client_update(torch.zeros(22), cohort(state(0, 3)), net)
    assert scores.grad is not None
    expected = state(0, 3)
    expected[:16] -= 2.0 * ETA * scores.grad
    assert torch.allclose(update.private[0], expected, atol=1e-6)
    assert torch.equal(update.private[0, 2:6], OPEN[2:6])  # rows 1 and 2 are not its own


def test_a_client_sends_the_bits_of_its_rows_and_the_flags_of_all() -> None:
    update = FedMask(score_rate=1e-6).client_update(torch.zeros(22), cohort(state(0, 3)), learner())
    (upload,) = update.uploads
    assert upload.positions is not None
    assert upload.positions.tolist() == [0, 1, 6, 7, *range(8, 22)]
    assert upload.values.tolist() == [
        *(score > 0 for score in (0.3, -0.8, -0.1, 0.5)),
        *(LAST > 0).tolist(),
        *(True, False, False, True, True, True),
    ]
    assert upload.entries == structure_of(learner().split).sent(np.array([0.5]))[0]


def test_a_mean_is_taken_over_the_owners_and_a_single_owner_is_left_alone() -> None:
    net, method = learner(), FedMask(score_rate=1e-6, pull=0.5)
    flipped = torch.cat([-OPEN, -LAST])
    states = [state(0, 3), state(0, 1, scores=flipped), state(2, 3)]
    uploads = list(method.client_update(torch.zeros(22), cohort(*states), net).uploads)
    shared = mean_of(*uploads, gamma=[0.5, 0.3, 0.2])
    weights = method.trained_weights(shared, cohort(*states, number=1), net)
    assert torch.isfinite(weights.shared).all()
    pulled = method.client_update(shared, cohort(*states, number=1), net).private
    # Row 0 is held by clients 0 and 1: client 0's first bit is 1, client 1's is 0, so the mean is 0.5 / 0.8.
    assert float(pulled[0, 0]) == pytest.approx(0.3 + 0.5 * (0.625 - 1), abs=1e-5)
    assert float(pulled[1, 0]) == pytest.approx(-0.3 + 0.5 * 0.625, abs=1e-5)
    # Row 1 is client 1's alone, row 2 client 2's; row 3 is held by 0 and 2, who agree: nothing is pulled.
    assert torch.allclose(pulled[1, 2:4], states[1][2:4], atol=1e-5)
    assert torch.allclose(pulled[2, 4:8], states[2][4:8], atol=1e-5)
    assert torch.allclose(pulled[0, 6:8], states[0][6:8], atol=1e-5)
    # The last matrix is everybody's.
    assert float(pulled[0, 8]) == pytest.approx(0.1 + 0.5 * (0.7 - 1), abs=1e-5)


def test_before_the_first_mean_nothing_is_pulled() -> None:
    method = FedMask(score_rate=1e-6, pull=0.5)
    update = method.client_update(torch.zeros(22), cohort(state(0, 3)), learner())
    assert torch.allclose(update.private[0], state(0, 3), atol=1e-5)


def test_bits_of_rows_survive_the_wire_in_little_more_than_one_bit_each(world_of: WorldOf) -> None:
    rows = structure_of(world_of(FedMask()).split)
    draw = np.random.default_rng(0)
    flags = rows.best_rows(torch.from_numpy(draw.normal(size=rows.entries)).float(), 0.5)
    sent = torch.cat([rows.held_entries(flags) > 0, torch.ones(rows.rows) > 0])
    positions = torch.nonzero(sent).flatten()
    upload = Upload(rows.size, torch.from_numpy(draw.random(len(positions)) < 0.9), positions)
    frame = to_frame(upload, "float32")
    read = from_frame(frame, max_size=rows.size, mask=True)
    assert read.positions is not None
    assert torch.equal(read.positions, positions)
    assert torch.equal(read.values, upload.values)
    assert upload.entries <= 8 * len(frame) <= 1.1 * upload.entries


def test_clients_choose_rows_of_their_own_before_round_0(world_of: WorldOf) -> None:
    world = world_of(FedMask(r=[0.5, 0.5, 0.5, 0.5, 0.25], pruning_steps=2))
    rows = structure_of(world.split)
    starts = [world.algorithm.start_client(world.task, client).private for client in (0, 0, 1, 4)]
    assert torch.equal(starts[0], starts[1])  # by the client's own stream
    flags = [rows.parts(one)[1] for one in starts]
    assert not torch.equal(flags[0], flags[2])
    assert [int(one.sum()) for one in flags] == [8 + 60 + 42 + 10] * 3 + [4 + 30 + 21 + 10]


def test_keys_of_version_0_1_0() -> None:
    with pytest.raises(ValidationError, match="confidence is gone: set pull"):
        FedMask.model_validate({"name": "fedmask", "confidence": 0.9})
    whole = {"name": "fedmask", "score_rate": 30.0, "confidence": 0.75}  # the table of a finished run folder
    assert FedMask.model_validate(whole) == FedMask()
