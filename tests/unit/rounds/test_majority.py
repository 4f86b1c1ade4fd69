"""The rule that follows the majority: against its definition, against the attacks it is for, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import leanfed
from leanfed.algorithms.uploads import Upload
from leanfed.rounds.adversary import PAST, Adversary, Crowd, Scheme, tampered
from leanfed.rounds.aggregation import Combined
from leanfed.rounds.exchange import Answers
from leanfed.rounds.robust import ClipDedupe, Majority
from tests.stops import check_resumed

Rows = np.ndarray[Any, np.dtype[np.float64]]


def even(count: int) -> Rows:
    return np.full(count, 1 / count)


def sent(rows: Rows) -> list[Upload]:
    return [Upload(rows.shape[1], torch.from_numpy(row).float()) for row in rows]


def judged(rule: Majority, rows: Rows, memory: Mapping[str, Tensor], clients: Sequence[int] | None = None) -> Combined:
    return rule.judge(rows.shape[1], even(len(rows)), sent(rows), clients or range(len(rows)), memory)


def cosine(one: Rows, other: Rows) -> float:
    scale = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / scale if scale > 1e-12 else 0.0


def by_definition(rule: Majority, rows: Rows, standing: Rows, course: Rows) -> tuple[Rows, Rows, Rows]:
    """Weights, standing and course from the uploads themselves, client by client."""
    lengths = np.linalg.norm(rows, axis=1)
    median = np.median(lengths)

    def weights(some: list[int]) -> Rows:
        copies = {n: max(1.0, sum(max(0.0, cosine(rows[n], rows[j])) ** rule.power for j in some)) for n in some}
        total = sum(1 / copies[n] for n in some)
        return np.array([min(1, median / lengths[n]) / copies[n] / total if n in some else 0 for n in range(len(rows))])

    def agreement(some: list[int]) -> Rows:
        w = weights(some)
        return np.array([cosine(rows[n], w @ rows - w[n] * rows[n]) for n in range(len(rows))])

    trusted = [n for n in range(len(rows)) if standing[n] >= 0]
    if len(trusted) < len(rows) / 2:
        trusted = list(range(len(rows)))
    agreed = agreement(trusted)
    others = [n for n in trusted if agreed[n] < 0]
    if others:
        instead = agreement(others)
        if sum(np.sign(instead[n]) for n in trusted) > sum(np.sign(agreed[n]) for n in trusted):
            agreed = instead
    if sum(np.sign(agreed[n]) for n in trusted) < 0:
        return weights(trusted), standing, course
    along = np.array([cosine(row, course) for row in rows])
    if sum(np.sign(along[n]) for n in trusted) < 0:
        along, course = 0 * along, 0 * course
    after = rule.past * standing + agreed + rule.course * along
    good = [n for n in range(len(rows)) if after[n] >= 0]
    update = weights(good or trusted)
    return update, after, rule.past * course + update @ rows


@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_it_is_its_definition(count: int, seed: int, known: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((count, 12)) + 0.3 * rng.standard_normal(12)).astype(np.float32).astype(np.float64)
    standing = rng.standard_normal(count) if known else np.zeros(count)
    course = rng.standard_normal(12) if known else np.zeros(12)
    memory = {"standing": torch.from_numpy(standing), "course": torch.from_numpy(course)} if known else {}
    rule = Majority(power=3.0, past=0.8, course=2.0)
    made = judged(rule, rows, memory)
    weights, after, then = by_definition(rule, rows, standing, course)
    assert made.memory["standing"].numpy() == pytest.approx(after, abs=1e-6)
    if np.abs(after).min() > 1e-5:  # who is left out is not decided by the last digit
        assert made.weights == pytest.approx(weights, abs=1e-6)
        assert made.memory["course"].numpy() == pytest.approx(then, abs=1e-5)


def camps(honest: int, liars: int) -> tuple[Rows, Rows]:
    """Uploads of length one and what the honest ones share: a little, against which the attackers push together."""
    size = 1 + honest + liars
    rows = np.zeros((honest + liars, size))
    rows[:honest, 0], rows[honest:, 0] = 0.2, -0.6
    for n in range(honest + liars):
        rows[n, 1 + n] = np.sqrt(1 - rows[n, 0] ** 2)
    return rows, np.eye(size)[0]


def test_attackers_who_outweigh_the_others_are_outnumbered() -> None:
    rows, shared = camps(honest=6, liars=4)
    assert ClipDedupe().combine(len(shared), even(10), sent(rows)).numpy() @ shared < 0
    made = judged(Majority(), rows, {})
    assert made.update.numpy() @ shared > 0
    assert made.weights is not None
    assert (made.weights[6:] == 0).all()
    assert (made.weights[:6] > 0).all()
    assert (made.memory["standing"].numpy() < 0).tolist() == [False] * 6 + [True] * 4


def test_one_bad_round_does_not_shut_a_client_out_and_many_do() -> None:
    good = np.hstack([camps(honest=12, liars=0)[0], np.zeros((12, 1))])
    bad = good.copy()
    bad[5] = 0.0
    bad[5, [0, -1]] = -0.3, 0.9
    memory: Mapping[str, Tensor] = {}
    for _ in range(5):
        memory = judged(Majority(), good, memory).memory
    weights = []
    for _ in range(8):
        made = judged(Majority(), bad, memory)
        assert made.weights is not None
        memory = made.memory
        weights.append(made.weights[5])
    assert weights[0] > 0
    assert weights[-1] == 0


def test_who_works_against_the_past_is_seen_by_the_course_alone() -> None:
    rows, shared = camps(honest=6, liars=0)
    gone = np.zeros(len(shared) + 1)
    gone[-1] = 1.0
    rows = np.hstack([rows, np.full((6, 1), 0.05)])
    rows[5] = 0.4 * np.eye(len(gone))[0] - 0.9 * gone  # along the present, against the past
    memory = {"standing": torch.zeros(6).double(), "course": torch.from_numpy(gone)}
    with_it, without = (judged(Majority(course=c), rows, memory).weights for c in (3.0, 0.0))
    assert with_it is not None
    assert without is not None
    assert with_it[5] == 0
    assert without[5] > 0


def test_clients_who_come_later_begin_with_nothing() -> None:
    rows, _ = camps(honest=3, liars=0)
    first = judged(Majority(), rows, {}, [4, 1, 0])
    assert first.memory["standing"].shape == (5,)
    then = judged(Majority(), rows, first.memory, [7, 1, 2])
    before, after = first.memory["standing"].numpy(), then.memory["standing"].numpy()
    assert after.shape == (8,)
    assert (after[[0, 4]] == before[[0, 4]]).all()  # who was absent keeps what it had
    assert (after[[3, 5, 6]] == 0).all()
    assert after[1] > before[1] > 0


def test_a_round_without_a_majority_changes_no_standing() -> None:
    rows = np.array([[1.0, 0], [-0.5, 0]])
    memory = {"standing": torch.tensor([1.0, 2.0]).double(), "course": torch.tensor([0.0, 1.0]).double()}
    made = judged(Majority(), rows, memory)
    assert made.update.numpy() == pytest.approx(ClipDedupe().combine(2, even(2), sent(rows)).numpy())
    assert all(torch.equal(made.memory[name], memory[name]) for name in memory)


def test_a_course_that_most_work_against_is_given_up() -> None:
    """A base that went too far is brought back by all: they are not to be shut out for it."""
    rows, shared = camps(honest=6, liars=0)
    memory = {"standing": torch.zeros(6).double(), "course": torch.from_numpy(-5.0 * shared)}
    made = judged(Majority(), rows, memory)
    assert made.weights is not None
    assert (made.weights > 0).all()
    assert made.memory["course"].numpy() == pytest.approx(made.update.double().numpy())


@pytest.mark.parametrize("rows", [np.zeros((3, 4)), np.ones((1, 4)), np.array([[1.0, 0], [-1.0, 0]])])
def test_without_anybody_to_agree_with_all_are_followed(rows: Rows) -> None:
    memory: Mapping[str, Tensor] = {}
    for _ in range(3):
        made = judged(Majority(), rows, memory)
        memory = made.memory
        assert made.weights is not None
        assert torch.isfinite(made.update).all()
        assert (made.weights > 0).all()


def test_a_camp_without_weight_is_no_fault() -> None:
    rows, _ = camps(honest=3, liars=1)
    made = Majority().judge(rows.shape[1], np.array([0.4, 0.3, 0.3, 0.0]), sent(rows), range(4), {})
    assert torch.isfinite(made.update).all()


def test_attackers_who_know_the_past_agree_with_the_present() -> None:
    rng = np.random.default_rng(4)
    rows, past = rng.standard_normal((8, 30)).astype(np.float32), rng.standard_normal((2, 30))
    crowd = Crowd(rows, past)
    for push, against in ((crowd.turned, past[0]), (crowd.hedged, past[0]), (crowd.veteran, past[1])):
        assert push @ crowd.mean > 0
        assert push @ against < 0
    assert crowd.veteran @ past[0] > 0
    assert cosine(crowd.turned, crowd.mean) == pytest.approx(0.05, abs=0.001)
    for push in (crowd.turned, crowd.hedged, crowd.veteran):
        assert not np.array_equal(push, -crowd.mean)
    first = Crowd(rows, np.zeros((2, 30)))
    assert all(np.array_equal(push, -first.mean) for push in (first.turned, first.hedged, first.veteran))


def test_what_attackers_remember_fades() -> None:
    rows = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)
    answers = Answers(np.zeros(4), np.zeros(4), np.zeros(4, int), np.full(4, 6), None, None, tuple(sent(rows)), None)
    past = torch.ones(2, 6).double()
    scheme = Scheme(Adversary(kind="hedged"), frozenset({3}), lambda uploads: uploads[0].dense(), past)
    _, memory = tampered(scheme, answers, range(4), 0, 2)
    expected = np.array([[0.9], [0.97]]) + rows[:3].mean(axis=0)
    assert memory[PAST].numpy() == pytest.approx(expected)


def test_a_run_that_was_stopped_remembers(tmp_path: Path) -> None:
    values = {
        "rounds": 4,
        "task": {"dataset": "mnist-5k", "partition": {"kind": "class", "classes_per_client": 2, "clients": 6}},
        "algorithm": {"name": "flpdsp", "k": 0.1},
        "aggregation": {"name": "majority"},
        "adversary": {"kind": "veteran", "share": 0.34},
        "participation": {"fraction": 0.7},
        "evaluation": {"every": 4},
        "run": {"checkpoint_every": 1},
    }
    check_resumed(leanfed.Settings.from_values(values), tmp_path, 2)
