"""Rules against dishonest clients, by hand and by what they promise; and the attacks themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.uploads import Upload
from leanfed.errors import SettingsError
from leanfed.rounds.adversary import ATTACKS, Adversary, Scheme, flipped, largest, tampered
from leanfed.rounds.aggregation import AGGREGATIONS
from leanfed.rounds.bench import rule_rows
from leanfed.rounds.exchange import Answers
from leanfed.rounds.loop import round_row, start
from leanfed.rounds.robust import Clip, ClipDedupe, GeometricMedian, MultiKrum, TrimmedMean, inner_products
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings
from leanfed.simulation.reference import ReferenceEngine

WorldOf = Callable[..., World]


def whole(*values: float) -> Upload:
    return Upload(len(values), torch.tensor(values))


def even(count: int) -> np.ndarray:
    return np.full(count, 1 / count)


def test_clip_cuts_to_the_median_norm() -> None:
    sent = [whole(3, 4), whole(0, 1), whole(0, -50)]  # norms 5, 1, 50: the median is 5
    assert Clip().weigh(2, np.array([0.5, 0.25, 0.25]), sent).tolist() == pytest.approx([0.5, 0.25, 0.025])
    assert Clip().combine(2, np.array([2.0, 1.0, 1.0]), sent).tolist() == pytest.approx([1.5, 1.0])


def test_copies_of_one_direction_count_once() -> None:
    honest = [whole(1, 0, 0), whole(0, 1, 0)]
    liars = [whole(0, 0, 1)] * 4
    combined = ClipDedupe().combine(3, even(6), [*honest, *liars])
    assert combined.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    weights = ClipDedupe().weigh(3, even(6), [*honest, *liars])
    assert weights.tolist() == pytest.approx([1 / 3, 1 / 3, *[1 / 12] * 4])


def test_the_geometric_median_of_points_on_a_line_is_their_median() -> None:
    sent = [whole(value, 0.0) for value in (0.0, 1.0, 2.0, 3.0, 1000.0)]
    assert GeometricMedian(iterations=200).combine(2, even(5), sent)[0].item() == pytest.approx(2.0, abs=0.01)


def test_krum_leaves_out_who_is_far_from_the_others() -> None:
    near = [whole(1.0 + 0.01 * place, 0.0) for place in range(8)]
    weights = MultiKrum(liars=0.2).weigh(2, even(10), [*near, whole(9, 9), whole(-9, 3)])
    assert weights[8:].tolist() == [0.0, 0.0]
    assert weights.sum() == pytest.approx(1.0)


def test_buckets_share_their_fate() -> None:
    near = [whole(1.0 + 0.01 * place, 0.0) for place in range(8)]
    weights = MultiKrum(liars=0.1, bucket=2).weigh(2, even(10), [*near, whole(9, 9), whole(-9, 3)])
    assert weights[8] == weights[9] == 0.0


def test_a_trimmed_mean_by_hand() -> None:
    sent = [whole(value) for value in (-100.0, 1.0, 2.0, 6.0, 100.0)]
    assert TrimmedMean(liars=0.2).combine(1, even(5), sent).tolist() == pytest.approx([3.0])


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_inner_products_of_sparse_uploads_are_those_of_dense_ones(count: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sent = []
    for _ in range(count):
        places = np.sort(rng.choice(size, rng.integers(0, size + 1), replace=False))
        values = torch.from_numpy(rng.standard_normal(len(places))).to(torch.float32)
        sent.append(Upload(size, values, torch.from_numpy(places)))
    rows = np.stack([upload.dense().double().numpy() for upload in sent])
    for few in (0, 400):  # by dense columns, and sparse
        with patch("leanfed.rounds.robust.FEW", few):
            assert inner_products(size, sent) == pytest.approx(rows @ rows.T, abs=1e-9)


def test_columns_are_made_dense_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [whole(1, 2, 3, 4, 5), Upload(5, torch.tensor([2.0, 3.0]), torch.tensor([1, 4]))]
    expected = inner_products(5, sent)
    monkeypatch.setattr("leanfed.rounds.robust.VALUES", 4)  # two columns of two uploads
    assert inner_products(5, sent) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["clip", "clip-dedupe", "centred-clip"])
def test_nobody_gains_by_shouting(name: str) -> None:
    """However long one upload is, the update is no longer than the median upload."""
    honest = [whole(*row) for row in np.random.default_rng(0).standard_normal((9, 20))]
    median = np.median([float(upload.values.norm()) for upload in honest])
    for factor in (1.0, 1e3, 1e20):
        loud = Upload(20, torch.full((20,), factor))
        assert float(AGGREGATIONS[name]().combine(20, even(10), [*honest, loud]).norm()) < 1.5 * median


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
def test_what_cannot_work_on_sparse_uploads_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"name = '{name}' cannot .* 'flpdsp': more than half.*'clip'"):
        Settings.from_values({"aggregation": {"name": name}})
    Settings.from_values({"aggregation": {"name": name}, "algorithm": {"name": "fedper"}})


def test_masks_are_not_weighed_by_length() -> None:
    with pytest.raises(SettingsError, match=r"'fedmask': masks are votes.*use 'mean'"):
        Settings.from_values({"aggregation": {"name": "clip"}, "algorithm": {"name": "fedmask"}})


def answers_of(uploads: list[Upload]) -> Answers:
    count = len(uploads)
    blank = np.zeros(count, dtype=np.int64)
    entries = np.array([upload.entries for upload in uploads])
    return Answers(even(count), np.zeros(count), blank, entries, None, None, tuple(uploads), None)


def sparse_uploads(count: int = 10, size: int = 60, entries: int = 6) -> list[Upload]:
    rng = np.random.default_rng(1)
    places = [torch.from_numpy(np.sort(rng.choice(size, entries, replace=False))) for _ in range(count)]
    return [Upload(size, torch.from_numpy(rng.standard_normal(entries)).float(), place) for place in places]


def by_mean(uploads: Sequence[Upload]) -> Tensor:
    return torch.stack([upload.dense() for upload in uploads]).mean(0)


@pytest.mark.parametrize("kind", ["sign-flip", "scaling", *ATTACKS, "adaptive"])
def test_attackers_send_no_more_than_their_share_and_touch_nobody_else(kind: str) -> None:
    sent, adversary = sparse_uploads(), Adversary.model_validate({"kind": kind})
    liars = frozenset({2, 7})
    scheme = Scheme(adversary, liars, by_mean)
    after, _ = tampered(scheme, answers_of(sent), range(10), 0, 3)
    again, _ = tampered(scheme, answers_of(sent), range(10), 0, 3)
    for client, (before, upload) in enumerate(zip(sent, after.uploads, strict=True)):
        assert torch.equal(upload.values, again.uploads[client].values)  # the same for a seed and a round
        if client not in liars:
            assert upload is before
            continue
        assert upload.entries == before.entries
        assert upload.positions is not None
        assert (torch.diff(upload.positions) > 0).all()
        assert not torch.equal(upload.dense(), before.dense())


@given(st.lists(st.integers(-3, 3), max_size=30), st.integers(0, 35))
def test_the_largest_are_those_of_a_stable_sort(values: list[int], count: int) -> None:
    vector = np.array(values, dtype=np.float64)
    assert largest(vector, count).tolist() == sorted(np.argsort(-np.abs(vector), kind="stable")[:count].tolist())


def test_attacks_by_hand() -> None:
    honest = [whole(4, 0, 0, 0), whole(2, 2, 0, 0)]  # mean (3, 1, 0, 0), norms 4 and 2.83

    def lie(kind: str, **more: float) -> list[float]:
        scheme = Scheme(Adversary.model_validate({"kind": kind, **more}), frozenset({2}), by_mean)
        return tampered(scheme, answers_of([*honest, whole(1, 1, 1, 1)]), range(3), 0, 0)[0].uploads[2].values.tolist()

    assert lie("sign-flip") == [-5.0] * 4
    assert lie("scaling") == [-50.0] * 4
    assert lie("ipm", strength=2.0) == pytest.approx([-6, -2, 0, 0])
    assert lie("alie") == pytest.approx([3 - 1, 1 - 1, 0, 0])  # std (1, 1, 0, 0)
    norm = (4 + 8**0.5) / 2
    assert lie("support") == pytest.approx([-3 * norm / 10**0.5, -norm / 10**0.5, 0, 0])
    apart = np.array(lie("min-max"))  # mean - c std no farther from an honest one than those are from each other
    assert max(np.linalg.norm(apart - u.values.numpy()) for u in honest) == pytest.approx(8**0.5, rel=1e-6)


@pytest.mark.parametrize("rule", ["mean", "clip", "clip-dedupe"])
def test_an_attacker_that_knows_the_rule_does_at_least_what_the_others_do(rule: str) -> None:
    sent, liars = sparse_uploads(), frozenset({2, 5, 7})
    honest = torch.stack([u.dense() for place, u in enumerate(sent) if place not in liars]).double().mean(0)

    def combined(uploads: Sequence[Upload]) -> Tensor:
        return AGGREGATIONS[rule]().combine(uploads[0].size, even(len(uploads)), uploads)

    def progress(kind: str) -> float:
        after, _ = tampered(
            Scheme(Adversary.model_validate({"kind": kind}), liars, combined), answers_of(sent), range(10), 0, 3
        )
        return float(combined(after.uploads).double() @ honest)

    others = {
        kind: progress(kind)
        for kind in ("support", "spread", "alie", "ipm", "min-max", "turncoat", "hedged", "veteran")
    }
    assert progress("adaptive") <= min(others.values())
    assert progress("adaptive") < max(others.values())


@pytest.mark.parametrize(("liars", "power"), [(5, 2), (20, 2), (60, 2), (20, 3)])
def test_what_liars_can_weigh_together_on_clip_dedupe(liars: int, power: int) -> None:
    """n uploads of the median norm and pairwise cosine c sum to sqrt(n + n (n - 1) c) / (1 + (n - 1) c^power) of it."""

    def length(cosine: float) -> float:  # relative to one honest upload
        shared, own = cosine**0.5, (1 - cosine) ** 0.5
        lies = torch.cat([torch.full((liars, 1), shared), own * torch.eye(liars)], dim=1)
        rows = torch.block_diag(lies, torch.eye(3))  # and three honest ones that point elsewhere
        sent = [Upload(rows.shape[1], row) for row in rows]
        weights = ClipDedupe(power=power).weigh(rows.shape[1], even(len(sent)), sent)
        return float(np.linalg.norm(weights[:liars] @ rows[:liars].numpy()) / weights[-1])

    cosines = np.linspace(0, 1, 101)
    lengths = [length(c) for c in cosines]
    formula = np.sqrt(liars + liars * (liars - 1) * cosines) / (1 + (liars - 1) * cosines**power)
    assert lengths == pytest.approx(formula.tolist(), rel=1e-5)
    assert lengths[-1] == pytest.approx(1.0, rel=1e-5)  # copies weigh as one
    assert max(lengths) <= 1.01 * liars ** (1 - 1 / (2 * power))  # where the mean lets them weigh n
    if liars == 20:
        assert max(lengths) == pytest.approx({2: 6.40, 3: 8.51}[power], abs=0.01)
        assert length(1 / 8) > {2: 0.98, 3: 0.9}[power] * max(lengths)  # the overlap of spread is near the worst


def test_flipped_labels_are_those_of_the_liars_alone(world_of: WorldOf) -> None:
    task = world_of(FedPer()).task
    after = flipped(task, frozenset({1}))
    mine, others = task.partition.train[1], task.partition.train[0]
    assert np.array_equal(after.train.labels[mine], 9 - task.train.labels[mine])
    assert np.array_equal(after.train.labels[others], task.train.labels[others])


@pytest.mark.parametrize("rule", ["mean", "clip"])
def test_results_are_those_of_the_honest(rule: str, world_of: WorldOf) -> None:
    plain = world_of(Flpdsp(k=0.1), aggregation=AGGREGATIONS[rule]())
    world = World(
        plain.task,
        plain.algorithm,
        plain.training,
        plain.participation,
        aggregation=plain.aggregation,
        adversary=Adversary(kind="scaling", share=0.2),
    )
    (liar,) = world.liars
    progress, engine = start(world), ReferenceEngine(world)
    outcome = engine.run_round(progress.server, progress.clients, world.plan(0))
    tested = engine.evaluate(outcome.server, progress.clients)
    honest = [client for client in range(5) if client != liar]
    gamma = world.task.gamma[honest]
    assert tested.accuracy == pytest.approx(gamma @ tested.accuracy_per_client[honest] / gamma.sum())
    assert tested.worst_decile == tested.accuracy_per_client[honest].min()
    guess = round_row(world, world.plan(0), outcome, tested)["majority_guess"]
    assert guess == pytest.approx(gamma @ world.task.constant_guess(honest) / gamma.sum())
    if rule == "clip":
        assert outcome.weights is not None
        assert outcome.weights[liar] < 0.05 * world.task.gamma[liar]


def test_no_adversary_changes_nothing(world_of: WorldOf) -> None:
    assert Adversary().liars(100, 0) == frozenset()
    world = world_of(FedPer())
    assert world.judged is world.task.gamma


def test_every_rule_for_sparse_uploads_is_timed_beside_the_mean() -> None:
    rows = rule_rows([3], repeats=1)
    fit = [name for name in AGGREGATIONS if AGGREGATIONS[name]().misfit(Flpdsp()) is None]
    assert [row["rule"] for row in rows] == fit
    assert {"mean", "clip-dedupe"} <= set(fit)
    assert "median" not in fit
    assert all(row["milliseconds"] > 0 and row["over_mean"] > 0 and row["uploads"] == 3 for row in rows)


def test_krum_leaves_out_who_has_no_weight() -> None:
    weights = MultiKrum(liars=0.2).weigh(2, np.array([0.5, 0.5, 0.0, 0.0, 0.0]), [whole(x, 1) for x in range(5)])
    assert weights.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]
