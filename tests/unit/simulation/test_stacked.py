"""Several clients at once, layer by layer: the gradients of the model itself, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.algorithms import ALGORITHMS, Training
from leanfed.algorithms.contract import Weights
from leanfed.algorithms.learner import FlatLearner
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.batched.stacked import StackedLearner, unfit
from leanfed.simulation.batched.stacked_engine import StackedEngine
from leanfed.simulation.choose import choose_engine
from leanfed.tasks.batch import Batch
from leanfed.tasks.losses import LOSSES, LossSpec
from leanfed.tasks.models import MODELS, ModelSpec
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.split import FlatModel, split_after
from leanfed.tasks.task import TaskSettings, build_task

CLIENTS, SAMPLES = 5, 16


class Reader(nn.Module):
    """Token numbers through attention: a masked block of torch's own, and one of queries unlike its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.ask = nn.MultiheadAttention(8, 4)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.block(self.table(tokens), src_key_padding_mask=tokens == 0)
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        turned = x.transpose(0, 1)
        y, shares = self.ask(turned.flip(0), turned, turned, attn_mask=later)
        return self.head(y.mean(0) + shares.mean((1, 2)).unsqueeze(1))


class Twice(nn.Module):
    """A layer that is used twice, one that is frozen and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.same, self.idle = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.same(torch.tanh(self.same(self.frozen(x)))))


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2, bias=False),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def series() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 4, 3, dilation=2), nn.GELU(), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3))


def table() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16, elementwise_affine=False), nn.Linear(16, 3))


CASES = {
    "table": (table, (8,), "0"),
    "series": (series, (2, 8), "0"),
    "pictures": (pictures, (2, 8, 8), "4"),
    "tokens": (Reader, (6,), "block"),
    "twice": (Twice, (8,), "idle"),
}


def learners(name: str, loss: LossSpec = LOSSES["cross_entropy"]) -> tuple[FlatLearner, StackedLearner, Weights, Batch]:
    torch.manual_seed(3)
    build, shape, cut = CASES[name]
    model = build()
    assert unfit(model) is None
    split = split_after(model, cut)
    whole = name == "tokens"
    inputs = torch.randint(0, 11, (CLIENTS, SAMPLES, *shape)) if whole else torch.randn(CLIENTS, SAMPLES, *shape)
    if whole:
        inputs[..., 0] = 1  # some token of every sample stands for something
    flat = FlatLearner(FlatModel(copy.deepcopy(model), split, loss=loss.compute))
    own = Weights(*(flat.initial * (1 + torch.rand(CLIENTS, 1))).split([split.shared_size, split.private_size], 1))
    return flat, StackedLearner(model, split, loss), own, Batch(inputs, torch.randint(0, 3, (CLIENTS, SAMPLES)))


@pytest.mark.parametrize("name", CASES)
def test_every_layer_has_the_gradients_of_the_model_itself(name: str) -> None:
    flat, stacked, own, batch = learners(name)
    for weights in (own, Weights(own.shared[:1], own.private)):
        expected, found = (learner.loss_and_gradient(weights, batch) for learner in (flat, stacked))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        heads = [learner.head_gradient(weights, batch) for learner in (flat, stacked)]
        torch.testing.assert_close(heads[1], heads[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["table", "tokens", "twice"])
def test_a_client_computes_the_same_bits_alone_and_in_company(name: str) -> None:
    _, stacked, own, batch = learners(name)
    losses, together = (part.clone() for part in stacked.loss_and_gradient(own, batch))
    for row in range(CLIENTS):
        one = slice(row, row + 1)
        alone = stacked.loss_and_gradient(
            Weights(own.shared[one], own.private[one]), Batch(batch.inputs[one], batch.labels[one])
        )
        assert torch.equal(alone[0][0], losses[row])
        assert torch.equal(alone[1][0], together[row])


def test_a_loss_that_cannot_be_told_apart_is_taken_client_by_client() -> None:
    own_loss = LossSpec(lambda outputs, labels: functional.cross_entropy(outputs, labels) ** 2, "any")
    flat, stacked, own, batch = learners("table", own_loss)
    torch.testing.assert_close(stacked.loss_and_gradient(own, batch), flat.loss_and_gradient(own, batch))


class Loose(nn.Module):
    """A weight outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(8)), nn.Linear(8, 3)


def tied() -> nn.Module:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return nn.Sequential(first, second, nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.1)), "1 drops out at random"),
        (nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3)), r"1 \(BatchNorm1d\) keeps running statistics"),
        (nn.Sequential(nn.GRU(8, 3)), r"0 \(GRU\) has weights that it has no rule for"),
        (nn.Sequential(nn.Conv1d(8, 3, 3, padding="same")), "0 has padding 'same' of mode 'zeros'"),
        (nn.Sequential(nn.Embedding(8, 3, max_norm=1.0)), "0 has embeddings with max_norm"),
        (nn.Sequential(nn.MultiheadAttention(8, 2, dropout=0.1)), "0 has attention with dropout"),
        (Loose(), r"the model \(Loose\) has weights that it has no rule for"),
        (tied(), "1 shares weights with another layer"),
    ],
)
def test_what_no_rule_covers_is_told(model: nn.Module, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        assert unfit(model) is None, unfit(model)


class Mixing(nn.Module):
    """Known layers, but every sample is compared with the mean of all."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(1024, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.head(torch.relu(x - x.mean(0)))


def small(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 8), nn.ReLU(), nn.Linear(8, outputs))


def conv(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 5, stride=4), nn.Flatten(), nn.Linear(98, outputs))


@pytest.fixture
def world_with():
    made = {"small": (small, "1"), "conv": (conv, "0"), "mixing": (Mixing, "first")}
    for name, (build, cut) in made.items():
        MODELS.add(f"stacked-{name}", ModelSpec(build, input_shape=(1, 32, 32), default_split=cut))

    def world(name: str, **training: int) -> World:
        partition = PartitionSettings(kind="iid", clients=3)
        task = build_task(TaskSettings(model=f"stacked-{name}", partition=partition), seed=0)
        return World(task, ALGORITHMS["fedper"](), Training(**training), Participation())

    yield world
    for name in made:
        MODELS.remove(f"stacked-{name}")


def test_dense_models_are_stacked_and_the_rest_streamed_by_a_rule(world_with) -> None:
    engine = choose_engine(world_with("small"))
    assert (engine.name, engine.any_company) == ("stacked", True)
    assert engine.reason == "The stacked engine trains chunks of clients at once, layer by layer."
    assert choose_engine(world_with("conv")).name == "streamed"
    assert choose_engine(world_with("conv"), "stacked").name == "stacked"
    odd = choose_engine(world_with("small", batch_size=20))
    assert odd.name == "streamed"  # so that several ranks, which need it, choose as one process does
    assert "last digits would depend on who computes beside it" in odd.reason
    epochs = choose_engine(world_with("small", local_epochs=1))
    assert epochs.name == "streamed"
    assert "nor does the stacked engine: training.local_epochs gives clients different numbers" in epochs.reason


def test_a_model_that_mixes_samples_is_found_out(world_with) -> None:
    engine = choose_engine(world_with("mixing"))
    assert engine.name == "streamed"
    assert "layer by layer for several clients its gradients differ" in engine.reason


def test_a_run_goes_on_with_the_engine_that_began_it(world_with) -> None:
    kept = choose_engine(world_with("small"), begun="streamed")
    assert (kept.name, kept.reason) == ("streamed", "The streamed engine began this run.")
    assert choose_engine(world_with("small"), begun="batched").name == "stacked"  # which does not fit
    assert choose_engine(world_with("small"), "reference", begun="streamed").name == "reference"


def test_tests_and_chunks_follow_another_world(world_with) -> None:
    engine = StackedEngine(world_with("small", batch_size=4), threads=1)
    other = engine.at(world_with("small", batch_size=8))
    assert isinstance(other, StackedEngine)
    assert other._alone.world is other.world
    assert engine._alone.world is engine.world
