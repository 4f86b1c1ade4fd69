"""Private rounds: what one client can change, the plain run as a limit, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import leanfed as package
from leanfed.algorithms.uploads import Upload
from leanfed.errors import SettingsError
from leanfed.rounds.privacy import Ledger, Privacy, noises, release
from leanfed.rounds.selection import Moment, Participation, select
from leanfed.runs.prepare import build_world
from leanfed.runs.settings import Settings

Tiny = Callable[..., Settings]
EVEN = {"kind": "iid", "clients": 5}


def tiny(**changes: Any) -> Settings:
    return Settings.from_values(
        {"rounds": 3, "task": {"partition": EVEN}, "algorithm": {"name": "fedper"}, "run": {"threads": 1}, **changes}
    )


def ledger(clients: int = 5, **how: Any) -> Ledger:
    return Ledger(Privacy.model_validate({"unit": "client", **how}), 1.0, float(clients), clients, 10, seed=0)


def uploads(rows: np.ndarray) -> list[Upload]:
    return [Upload(rows.shape[1], torch.from_numpy(row).to(torch.float32)) for row in rows]


@given(st.integers(2, 8), st.floats(0.1, 10.0), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_one_client_moves_the_sum_by_no_more_than_the_clip(count: int, clip: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sent = uploads(rng.standard_normal((count, 6)) * 10.0 ** rng.uniform(-3, 6, (count, 1)))
    book = ledger(count, noise_multiplier=0, adaptive=False, clip=clip)
    whole, without = (release(book, clip, 6, some, 0).mean.double() * count for some in (sent, sent[1:]))
    assert float((whole - without).norm()) <= clip * (1 + 1e-5) + 1e-9


def test_zero_noise_and_no_clip_with_even_weights_is_the_plain_run_bit_for_bit() -> None:
    world = build_world(tiny())
    assert len(set(world.task.partition.sizes.tolist())) == 1  # even weights
    free = {"unit": "client", "noise_multiplier": 0, "clip": None, "adaptive": False}
    plain, private = package.run(tiny()), package.run(tiny(privacy=free))
    assert plain.rounds["accuracy"].to_list() == private.rounds["accuracy"].to_list()
    assert plain.rounds["train_loss"].to_list() == private.rounds["train_loss"].to_list()


def test_the_noise_is_what_was_paid_for() -> None:
    book = ledger(noise_multiplier=2.0, adaptive=False, clip=3.0)
    drawn = release(book, 3.0, 200_000, [], 4).mean
    assert float(drawn.std()) == pytest.approx(2.0 * 3.0 / 5, rel=0.01)
    assert torch.equal(drawn, release(book, 3.0, 200_000, [], 4).mean)
    assert not torch.equal(drawn, release(book, 3.0, 200_000, [], 5).mean)


def test_sum_and_count_together_cost_the_ledgers_noise() -> None:
    book = ledger(100, noise_multiplier=2.0)
    on_sum, on_count = noises(book)
    assert on_sum**-2 + (2 * on_count) ** -2 == pytest.approx(2.0**-2)
    assert on_count == 5.0  # a twentieth of those expected


@pytest.mark.parametrize(("quantile", "expected"), [(0.5, 5.0), (0.9, 5.8)])
def test_an_adaptive_clip_follows_a_quantile_of_the_norms(quantile: float, expected: float) -> None:
    book = ledger(100, noise_multiplier=0.0, clip=1.0, quantile=quantile)
    sent = uploads(np.linspace(4, 6, 100)[:, None] * np.eye(6)[np.arange(100) % 6])
    clip = 1.0
    for number in range(60):
        clip = release(book, clip, 6, sent, number).clip
    assert clip == pytest.approx(expected, abs=0.1)


def test_epsilon_is_a_column_and_a_run_ends_with_its_budget() -> None:
    how = {"unit": "client", "noise_multiplier": 4.0, "epsilon": 2.0, "delta": 1e-2}
    run = package.run(tiny(rounds=50, privacy=how))
    spent = run.rounds["epsilon"].to_list()
    assert len(spent) < 50
    assert spent == sorted(spent)
    assert spent[-1] <= 2.0 < run_ledger(how).epsilon(len(spent) + 1)
    assert run.summary["epsilon"] == spent[-1]
    with pytest.raises(SettingsError, match=r"does not allow a single round at noise_multiplier = 4"):
        package.run(tiny(privacy={**how, "epsilon": 0.01}))


def run_ledger(how: dict[str, Any]) -> Ledger:
    found = build_world(tiny(rounds=50, privacy=how)).ledger
    assert found is not None
    return found


def test_a_budget_alone_chooses_the_noise() -> None:
    book = run_ledger({"unit": "client", "epsilon": 3.0, "delta": 1e-2})
    assert book.affordable == 50
    assert 2.99 < book.epsilon(50) <= 3.0


def test_poisson_cohorts_are_drawn_one_by_one() -> None:
    who = Participation(rule="poisson", fraction=0.3)
    sizes = [len(select(who, Moment(number, 0, 100))) for number in range(200)]
    assert np.mean(sizes) == pytest.approx(30, abs=1.5)
    assert np.var(sizes) == pytest.approx(21, rel=0.35)  # N q (1 - q); a fixed number would have none
    assert select(Participation(rule="poisson", fraction=1e-6), Moment(0, 0, 10)) == ()


def test_a_round_without_anybody_still_releases_noise() -> None:
    how = {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-2}
    nobody = {"rule": "poisson", "fraction": 1e-6}
    run = package.run(tiny(privacy=how, participation=nobody, rounds=2))
    assert run.rounds["participants"].to_list() == [0, 0]
    assert run.rounds["accuracy"].null_count() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": {"name": "fedmask"}}, r"masks are no gradients"),
        ({"aggregation": {"name": "clip"}}, r"known sensitivity"),
        ({"participation": {"rule": "poisson", "fraction": 0.5}, "accountant": "exact"}, r"knows no sampling"),
        (
            {"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint", "deadline_s": 1.0}},
            r"plans follow sample counts",
        ),
        ({"allocation": {"wait": "pace", "deadline_s": 1.0}}, r"plans follow sample counts"),
        (
            {"participation": {"rule": "poisson", "fraction": 0.5}, "allocation": {"wait": "fastest"}},
            r"depends on the others",
        ),
        ({"clip": None}, r"without clip no noise is enough"),
        ({"noise_multiplier": None}, r"needs epsilon, noise_multiplier or both"),
    ],
    ids=str,
)
def test_what_cannot_be_private_is_refused(changes: dict[str, Any], message: str) -> None:
    inside = {key: changes[key] for key in changes if key in ("accountant", "clip", "noise_multiplier")}
    rest = {key: changes[key] for key in changes if key not in inside}
    with pytest.raises(SettingsError, match=message):
        tiny(privacy={"unit": "client", "noise_multiplier": 1.0, **inside}, **rest)


def test_single_samples_are_refused_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(SettingsError, match=r"unit is 'sample', but .* heads .*up to 2 B clips.* set unit = 'client'"):
        tiny(privacy={"unit": "sample", "noise_multiplier": 1.0})


def test_a_user_hears_what_is_not_covered() -> None:
    notes = tiny(privacy={"unit": "client", "noise_multiplier": 1.0}).notes()
    assert any("the server itself" in note for note in notes)
    assert any("without sampling" in note for note in notes)
