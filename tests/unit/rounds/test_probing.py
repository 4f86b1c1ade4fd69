"""What a run measures of the theory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leanfed.algorithms.contract import Training
from leanfed.algorithms.fedmask import FedMask
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.rounds.loop import start
from leanfed.rounds.probing import Prober, TheorySettings, why_no_bound
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings

WorldOf = Callable[..., World]


def row_of(world: World, number: int = 0, **settings: int) -> dict[str, float | None]:
    progress = start(world)
    prober = Prober(TheorySettings(**{"every": 2, **settings}), world, world.new_learner())
    return prober.row(progress.server, progress.clients, world.plan(number))


def test_nothing_is_measured_unless_asked_for(world_of: WorldOf) -> None:
    assert row_of(world_of(Flpdsp()), every=0) == {}


def test_rounds_between_measurements_hold_rates_only(world_of: WorldOf) -> None:
    row = row_of(world_of(Flpdsp(k=0.25, r=0.75)), number=1)
    assert row["theory_k"] == pytest.approx(0.25)
    assert row["theory_root"] == pytest.approx(0.5)
    assert {name for name, value in row.items() if value is not None} == {"theory_eta", "theory_k", "theory_root"}


def test_a_measurement_can_be_repeated_and_has_the_columns_of_every_round(world_of: WorldOf) -> None:
    world = world_of(Flpdsp(k=0.5, r=0.5))
    measured = row_of(world)
    assert measured == row_of(world)
    assert list(measured) == list(row_of(world, number=1))
    assert all(value is not None and value >= 0 for value in measured.values())


def test_pruning_is_seen(world_of: WorldOf) -> None:
    whole, pruned = row_of(world_of(Flpdsp(r=1.0))), row_of(world_of(Flpdsp(r=0.05)))
    assert whole["theory_loss"] != pruned["theory_loss"]
    assert whole["theory_m"] == pytest.approx(pruned["theory_m"])  # M is of the weights before pruning


def test_with_one_probe_there_is_no_divergence(world_of: WorldOf) -> None:
    assert row_of(world_of(Flpdsp()), probes=1)["theory_delta_sq"] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({}, None),
        ({"local_steps": 2}, "more than one local step"),
        ({"local_epochs": 1}, "more than one local step"),
        ({"momentum": 0.5}, "momentum"),
        ({"weight_decay": 0.1}, "weight decay"),
        ({"learning_rate_decay": 0.9}, "decays"),
    ],
)
def test_the_theorem_speaks_of_plain_single_steps(training: dict[str, float], reason: str | None) -> None:
    told = why_no_bound(Flpdsp(), Training(**training))
    assert told is None if reason is None else reason in told
    notes = Settings.from_values({"training": training, "theory": {"every": 1}}).notes()
    assert len(notes) == (reason is not None)
    assert Settings.from_values({"training": training}).notes() == ()


def test_the_theorem_speaks_of_heads_that_take_one_step() -> None:
    assert why_no_bound(Flpdsp(head_steps=2), Training()) == "heads take more than one step"


def test_masks_are_no_weights(world_of: WorldOf) -> None:
    row = row_of(world_of(FedMask()))
    assert row["theory_eta"] is None
    assert row["gradient_norm_sq"] > 0
