"""Metrics of private runs: what one client can change, what they cost, and that what is withheld is nowhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import leanfed as package
from leanfed.errors import InputError, SettingsError
from leanfed.report.data import report_data
from leanfed.results import RunFolder
from leanfed.rounds.metrics import REPORTED, SEEN
from leanfed.rounds.privacy import centred_count, centred_sum, metric_noise, noises, released_means
from leanfed.runs.compare import read_runs
from leanfed.runs.recost import check_same_learning
from leanfed.theory.accounting import ORDERS, gaussian_epsilon
from tests.stops import Stop, stop_after
from tests.unit.rounds.test_privacy import ledger, tiny

HIDDEN = REPORTED | SEEN
OFF = {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-2, "metrics": "off"}
NOISED = {**OFF, "metrics": "noised"}
SHORT = {"rounds": 4, "evaluation": {"every": 2}}
anything = st.floats()  # losses that are no numbers, too


@given(st.lists(anything, min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_one_client_moves_a_centred_sum_by_no_more_than_a_half(values: list[float], bound: float) -> None:
    found = np.array(values)
    assert abs(centred_sum(found, bound) - centred_sum(found[1:], bound)) <= 0.5 + 1e-12


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8), st.floats(0.1, 10.0))
def test_one_client_moves_the_count_of_unclipped_uploads_by_a_half(lengths: list[float], clip: float) -> None:
    found = np.array(lengths)
    assert abs(centred_count(found, clip) - centred_count(found[1:], clip)) == 0.5


def test_a_released_mean_by_hand() -> None:
    """0.2, 0.6 and 1 of the bound, less a half each, over four that were expected: 5 (1/2 + 0.3 / 4)."""
    free = ledger(4, noise_multiplier=0.0, metrics="noised")
    assert released_means(free, 0, {"loss": (np.array([1.0, 3.0, 9.0]), 5.0)}) == {"loss": pytest.approx(2.875)}
    everyone = released_means(free, 0, {"accuracy": (np.array([0.5, 1.0, 0.75, 0.25]), 1.0)})
    assert everyone == {"accuracy": pytest.approx(0.625)}  # all came: the plain mean


def test_the_noise_of_a_mean_is_what_was_paid_for() -> None:
    book = ledger(100, noise_multiplier=2.0, metrics="noised")  # s = 0.5 * 2 * sqrt(1 / 0.1), over 100 clients
    nobody = np.zeros(0)
    drawn = [released_means(book, number, {"accuracy": (nobody, 1.0)})["accuracy"] for number in range(4000)]
    assert np.std(drawn) == pytest.approx(math.sqrt(10) / 100, rel=0.04)
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.002)
    assert metric_noise(book, 3) == pytest.approx(math.sqrt(30))


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_sum_count_and_metrics_together_cost_the_ledgers_noise(adaptive: bool, count: int, share: float) -> None:
    book = ledger(100, noise_multiplier=2.0, metrics="noised", metrics_share=share, adaptive=adaptive)
    on_sum, on_count = noises(book)
    counted = (2 * on_count) ** -2 if adaptive else 0.0
    on_metrics = count * (2 * metric_noise(book, count)) ** -2
    assert on_metrics == pytest.approx(share * 2.0**-2)
    assert on_sum**-2 + counted + on_metrics == pytest.approx(2.0**-2)
    without = noises(ledger(100, noise_multiplier=2.0, adaptive=adaptive))
    assert on_sum > without[0]  # it makes room


def test_epsilon_is_that_of_all_releases_composed_by_hand() -> None:
    how = {"noise_multiplier": 4.0, "delta": 1e-2, "metrics": "noised", "adaptive": False}
    book = ledger(100, accountant="exact", **how)
    on_sum, each = noises(book)[0], metric_noise(book, 3)
    per_round = on_sum**-2 + 3 * (0.5 / each) ** 2  # Gaussian mechanisms add up in (sensitivity / deviation)^2
    assert book.epsilon(10) == pytest.approx(gaussian_epsilon(per_round**-0.5, 10, 1e-2))
    assert book.epsilon(10) > gaussian_epsilon(on_sum, 10, 1e-2)  # the same uploads without metrics cost less
    renyi = [
        10 * order / 2 * per_round + math.log1p(-1 / order) - (math.log(1e-2) + math.log(order)) / (order - 1)
        for order in ORDERS
    ]
    assert ledger(100, accountant="rdp", **how).epsilon(10) == pytest.approx(min(renyi))


def test_without_noise_the_means_are_those_of_the_participants(tmp_path: Path) -> None:
    free = {"unit": "client", "noise_multiplier": 0.0, "clip": 1.0}
    shown = package.run(tiny(**SHORT, privacy=free), tmp_path / "shown")
    run = package.run(tiny(**SHORT, privacy={**free, "metrics": "noised", "metrics_bound": 2.0}))
    tested = RunFolder(tmp_path / "shown").read_table("evaluations")
    for number in range(4):
        mine = shown.clients.filter(pl.col("round") == number)["loss"].clip(upper_bound=2.0)
        assert run.rounds["train_loss"][number] == pytest.approx(mine.mean(), rel=1e-9)
    for number in (1, 3):
        here, row = tested.filter(pl.col("round") == number), run.rounds.row(number, named=True)
        assert row["accuracy"] == pytest.approx(here["accuracy"].mean(), rel=1e-9)
        assert row["loss"] == pytest.approx(here["loss"].clip(upper_bound=2.0).mean(), rel=1e-9)
    assert run.rounds["accuracy"][0] is None  # not due
    assert run.summary["accuracy"] == run.rounds["accuracy"][-1]


def filled(table: pl.DataFrame) -> set[str]:
    """Columns in which anything stands."""
    return {name for name in table.columns if table[name].drop_nulls().drop_nans().len()}


def numbers_in(value: Any) -> set[str]:
    """Keys, at any depth, under which there is a number."""
    if isinstance(value, dict):
        inside = set().union(*map(numbers_in, value.values())) if value else set()
        return inside | {key for key, held in value.items() if isinstance(held, (int, float, list))}
    return set().union(*map(numbers_in, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize(
    ("privacy", "who", "rows"),
    [
        (OFF, {}, 4 * 5),
        (OFF, {"rule": "poisson", "fraction": 0.5}, 0),  # the budget relies on a draw that nobody knows
        ({"metrics": "off"}, {}, 4 * 5),
    ],
    ids=["private", "sampled", "plain"],
)
def test_what_is_off_stands_in_no_file(privacy: dict[str, Any], who: dict[str, Any], rows: int, tmp_path: Path) -> None:
    wanted = tiny(**SHORT, privacy=privacy, participation=who)
    run, place = package.run(wanted, tmp_path / "run"), RunFolder(tmp_path / "run")
    hidden = HIDDEN if "unit" in privacy else REPORTED
    for name in ("rounds", "clients", "evaluations"):
        assert not filled(pl.read_parquet(place.table(name))) & hidden, name
    assert pl.read_parquet(place.table("clients")).height == rows
    for part in place.checkpoint.glob("rows-*"):
        for column, values in load_file(part).items():
            assert column.split(".")[-1] not in hidden or np.isnan(values).all(), column
    told = hidden | {"label_counts", "samples", "test_samples", "best_accuracy", "majority_f1"}
    for file in (place.world, place.summary):
        assert not numbers_in(json.loads(file.read_text())) & told, file.name
    for event in place.read_events():
        assert not numbers_in(event) & told, event
    assert {"latency_s", "energy_j", "upload_bits"} <= filled(run.rounds)  # devices and cohorts, not data
    assert math.isnan(run.accuracy)
    if "unit" in privacy:
        assert run.summary["epsilon"] == run.rounds["epsilon"][-1] > 0


def test_what_is_off_is_learned_all_the_same(tmp_path: Path) -> None:
    for metrics in ("off", "shown"):
        package.run(tiny(**SHORT, privacy={**OFF, "metrics": metrics}), tmp_path / metrics)
    off, shown = (load_file(RunFolder(tmp_path / name).weights) for name in ("off", "shown"))
    assert off.keys() == shown.keys()
    assert all(np.array_equal(off[name], shown[name]) for name in off)


def test_noised_rows_hold_means_and_nothing_of_single_clients(tmp_path: Path) -> None:
    run = package.run(tiny(**SHORT, privacy=NOISED, participation={"rule": "poisson", "fraction": 0.5}), tmp_path / "n")
    assert filled(run.rounds) & HIDDEN == {"train_loss", "loss", "accuracy"}
    assert run.clients.is_empty()
    assert not RunFolder(tmp_path / "n").read_table("evaluations").height
    assert run.rounds["accuracy"].drop_nulls().is_between(0, 1).all()


def test_a_round_without_anybody_releases_noised_metrics_all_the_same() -> None:
    run = package.run(tiny(**SHORT, privacy=NOISED, participation={"rule": "poisson", "fraction": 1e-6}))
    assert run.rounds["participants"].sum() == 0
    assert run.rounds["train_loss"].null_count() == 0


@pytest.mark.parametrize("metrics", ["off", "noised"])
def test_a_resumed_run_equals_an_unbroken_one(metrics: str, tmp_path: Path) -> None:
    wanted = tiny(**SHORT, privacy={**OFF, "metrics": metrics})
    whole = package.run(wanted, tmp_path / "whole")
    with pytest.raises(Stop):
        package.run(wanted, tmp_path / "broken", listen=stop_after(3))
    stopped = package.read(tmp_path / "broken")
    assert stopped.summary["epsilon"] is not None
    resumed = package.resume(tmp_path / "broken")
    assert resumed.rounds.equals(whole.rounds)
    assert resumed.summary["sha256"] == whole.summary["sha256"]


def test_engines_tell_the_same_noised_means() -> None:
    runs = [
        package.run(tiny(**SHORT, privacy=NOISED, run={"engine": engine, "threads": 1})).rounds
        for engine in ("reference", "streamed", "batched")
    ]
    for column in ("train_loss", "loss", "accuracy", "epsilon"):
        for other in runs[1:]:
            np.testing.assert_allclose(other[column].to_numpy(), runs[0][column].to_numpy(), rtol=1e-4)


def test_readers_work_with_what_is_withheld(tmp_path: Path) -> None:
    for metrics in ("off", "noised", "shown"):
        package.run(tiny(**SHORT, name=metrics, privacy={**OFF, "metrics": metrics}), tmp_path / metrics)
    folders = [RunFolder(tmp_path / name) for name in ("off", "noised", "shown")]
    runs, left_out = read_runs(folders)
    assert [run.name for run in runs] == ["noised", "shown"]
    assert len(left_out) == 1
    assert "reports no scores to compare: its settings have privacy.metrics = 'off'" in left_out[0]
    page = report_data([tmp_path])
    assert len(page["runs"]) == 3
    assert not [flaw for flaw in page["flaws"] if "cannot be drawn" in flaw["message"]]
    off = next(run for run in page["runs"] if run["name"] == "off")
    assert off["labels"]["missing"] == off["clients"]["missing"]
    assert "privacy.metrics" in off["labels"]["missing"]
    assert off["final"]["latency_s"] > 0
    with pytest.raises(InputError, match=r"privacy\.metrics keeps back the clients' rows"):
        check_same_learning(folders[0], tiny(**SHORT, name="off", privacy=OFF))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation": {"per_client": True}}, r"single clients' results would be written"),
        ({"evaluation": {"clients": 2}}, r"no panel is tested"),
        ({"theory": {"every": 1}}, r"Theorem 1 is measured on the clients' samples"),
        ({"adversary": {"kind": "sign-flip", "share": 0.2}}, r"judged by the honest clients' results"),
        ({"run": {"stop_at_accuracy": 0.9}}, r"no accuracy is known"),
        ({"training": {"local_epochs": 1}}, r"what epochs cost tells sample counts"),
        ({"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint", "form": "fast"}}, r"follow sample counts"),
        ({"allocation": {"wait": "pace"}}, r"follow sample counts"),
    ],
    ids=str,
)
def test_what_would_let_metrics_out_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        tiny(privacy=OFF, **changes)


def test_noise_on_metrics_needs_a_budget() -> None:
    with pytest.raises(SettingsError, match=r"needs unit = 'client', whose budget pays for the noise"):
        tiny(privacy={"metrics": "noised"})


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        (OFF, "nobody is tested, and no loss, score, guess or label count is reported"),
        (NOISED, "noised means of the round's participants"),
        ({"metrics": "off"}, "nobody is tested"),
    ],
    ids=["off", "noised", "plain"],
)
def test_a_user_hears_what_is_withheld(privacy: dict[str, Any], said: str) -> None:
    notes = tiny(privacy=privacy).notes()
    assert any(said in note for note in notes)
    assert any("the server itself is not covered" in note for note in notes) == ("unit" in privacy)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["train_loss", "accuracy"]))
@settings(max_examples=30, deadline=None)
def test_neighbours_noiseless_means_differ_by_a_half_over_the_expected(seed: int, name: str) -> None:
    rng, bound = np.random.default_rng(seed), 5.0 if name == "train_loss" else 1.0
    values, book = rng.uniform(0, 2 * bound, 6), ledger(6, noise_multiplier=0.0, metrics="noised")
    whole, without = (released_means(book, 0, {name: (some, bound)})[name] for some in (values, values[1:]))
    assert abs(whole - without) <= 0.5 * bound / 6 * (1 + 1e-12)
