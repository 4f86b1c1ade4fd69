"""One battery for every rule of aggregation: a newcomer gains these tests by being registered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leanfed.algorithms import ALGORITHMS, Upload
from leanfed.algorithms.uploads import Listed
from leanfed.compression import exact
from leanfed.rounds.aggregation import AGGREGATIONS, Aggregation, WeightedMean
from leanfed.rounds.loop import start
from leanfed.simulation.choose import choose_engine

EVERY = pytest.mark.parametrize("name", list(AGGREGATIONS))
GAMMA = np.array([0.5, 0.3, 0.2])


def uploads(seed: int = 0) -> list[Upload]:
    """A whole vector, a sparse one and an empty one."""
    draw = torch.Generator().manual_seed(seed)
    whole = Upload(6, torch.randn(6, generator=draw))
    sparse = Upload(6, torch.randn(2, generator=draw), torch.tensor([1, 4]))
    return [whole, sparse, Upload(6, torch.empty(0), torch.empty(0, dtype=torch.int64))]


@EVERY
def test_an_answer_has_the_size_of_the_shared_part(name: str) -> None:
    combined = AGGREGATIONS[name]().combine(6, GAMMA, uploads())
    assert combined.shape == (6,)
    assert combined.dtype == torch.float32
    assert torch.isfinite(combined).all()


@EVERY
def test_uploads_are_left_alone(name: str) -> None:
    sent = uploads()
    before = [upload.values.clone() for upload in sent]
    AGGREGATIONS[name]().combine(6, GAMMA, sent)
    assert all(torch.equal(upload.values, values) for upload, values in zip(sent, before, strict=True))


@EVERY
def test_clients_that_agree_are_followed(name: str) -> None:
    same = [Upload(3, torch.tensor([1.0, -2.0, 0.5]))] * 5
    combined = AGGREGATIONS[name]().combine(3, np.full(5, 0.2), same)
    assert combined.tolist() == pytest.approx([1.0, -2.0, 0.5])


@EVERY
def test_the_order_of_uploads_does_not_matter(name: str) -> None:
    rule, sent = AGGREGATIONS[name](), uploads()
    forth, back = rule.combine(6, GAMMA, sent), rule.combine(6, GAMMA[::-1].copy(), sent[::-1])
    assert torch.allclose(forth, back, rtol=0, atol=1e-7)


@EVERY
@pytest.mark.parametrize("engine", ["reference", "streamed", "batched", "batched-torch"])
def test_every_engine_serves_the_rule(name: str, engine: str, world_of) -> None:
    ends = []
    for chosen in ("reference", engine):
        world = world_of(ALGORITHMS["flpdsp"](k=0.1), aggregation=AGGREGATIONS[name]())
        progress = start(world)
        ends.append(choose_engine(world, chosen).run_round(progress.server, progress.clients, world.plan(0)).server)
    assert torch.allclose(ends[0].shared, ends[1].shared, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_no_order_of_a_hundred_uploads_changes_a_bit_of_their_mean(dtype: torch.dtype) -> None:
    rng, gamma = torch.Generator().manual_seed(1), np.random.default_rng(1).dirichlet(np.ones(100))
    sent = [Upload(500, torch.randn(500, generator=rng).to(dtype)) for _ in range(50)]
    places = [torch.randperm(500, generator=rng)[:60].sort().values for _ in range(50)]
    sent += [Upload(500, torch.randn(60, generator=rng).to(dtype), place) for place in places]
    totals, means = [], []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(100)
        totals.append(exact.zeros(500))  # float64: rounded to float32 any sum would look independent of its order
        Listed([sent[n] for n in order]).add_to(totals[-1], gamma[order])
        means.append(WeightedMean().combine(500, gamma[order], [sent[n] for n in order]))
    assert all(torch.equal(total, totals[0]) for total in totals)
    assert all(torch.equal(mean, means[0]) for mean in means)
    plain = sum(g * upload.dense().double() for g, upload in zip(gamma, sent, strict=True))
    assert torch.allclose(means[0].double(), plain, rtol=1e-6, atol=1e-9)


def test_kernels_and_torch_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, gamma = torch.randn(7, 1000, generator=torch.Generator().manual_seed(2)), np.linspace(0.01, 0.3, 7)
    compiled, plain = exact.zeros(900), exact.zeros(900)
    exact.add_rows(compiled, rows, gamma)
    monkeypatch.setattr(exact, "_kernel", lambda: None)
    exact.add_rows(plain, rows, gamma)
    assert torch.equal(compiled, plain)


class Impatient(Aggregation):
    """Looks at the first upload only."""

    def combine(self, size, gamma, uploads):
        return next(iter(uploads)).dense()


@pytest.mark.parametrize("engine", ["reference", "streamed", "batched"])
def test_a_rule_that_stops_early_does_not_keep_clients_from_training(engine: str, world_of) -> None:
    world = world_of(ALGORITHMS["fedper"](), aggregation=Impatient())
    progress = start(world)
    outcome = choose_engine(world, engine).run_round(progress.server, progress.clients, world.plan(0))
    assert len(outcome.loss) == 5
    assert progress.clients.changed == {0, 1, 2, 3, 4}


def test_a_mask_is_a_vector_of_zeros_and_ones_to_every_rule() -> None:
    assert Upload(2, torch.tensor([True, False])).dense().tolist() == [1.0, 0.0]
