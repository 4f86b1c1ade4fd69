"""One battery for every way to plan: what is planned can be carried out, and is charged as planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.rounds.costs import Accountant, RadioSettings, RoundBill
from leanfed.rounds.forms import AllocationSettings
from leanfed.rounds.loop import start
from leanfed.rounds.planning import Planner
from leanfed.rounds.probing import TheorySettings
from leanfed.rounds.world import World
from leanfed.simulation.choose import choose_engine
from leanfed.wireless.fleet import FleetSettings
from tests.methods import method_of
from tests.thinned import in_turn

WorldOf = Callable[..., World]
JOINT: dict[str, dict[str, Any]] = {
    "plain": {"form": "plain"},
    "plain by dca": {"form": "plain", "solver": "dca", "theta1": 0.2},  # given, for what is not is measured first
    "safe": {"form": "safe"},
    "safe with floors": {"form": "safe", "r_min": 0.5, "k_min": 0.01, "theta1": 0.2},
    "fast": {"form": "fast"},
    "fast, two rounds": {"form": "fast", "within_rounds": 2},
    "first round": {"form": "safe", "first_k": 0.4, "theta1": 0.2},
}
FLEETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "narrow": {"bandwidth_hz": 2e5},
    "fading": {"rayleigh": True, "shadowing_db": 8.0, "bandwidth_hz": (3e5, 3e6)},
    "hungry": {"energy_coefficient": 2e-28},
    "held": {"hold": ("place", "cpu", "power")},
}
PAYLOADS = ("exact", "paper")


def made(world: World, radio: RadioSettings, settings: AllocationSettings) -> Planner:
    few = TheorySettings(samples=32)  # for theta, which takes longer than all plans
    return Planner(settings, Accountant(radio, world), rounds=30, theory=few)


def charge(planner: Planner, number: int) -> tuple[Any, RoundBill]:
    """A round's plan and its bill after the real training."""
    progress, plan = start(planner.world), planner.plan(number).plan
    outcome = choose_engine(planner.world, threads=1).run_round(progress.server, progress.clients, plan)
    return plan, planner.accountant.bill(plan, outcome)


@pytest.mark.parametrize(("rule", "fleet", "payload"), in_turn(JOINT, FLEETS, PAYLOADS))
def test_joint_plans_hold_their_deadline_and_budget_as_charged(
    rule: str, fleet: str, payload: str, world_of: WorldOf
) -> None:
    settings = AllocationSettings.model_validate({"rule": "joint", **JOINT[rule]})
    # By weights the fast form's 20 head steps cost 4.4 steps of the model: none of these five clients has the joules.
    computation = "operations" if JOINT[rule]["form"] == "fast" else "weights"
    radio = RadioSettings.model_validate({"fleet": FLEETS[fleet], "payload": payload, "computation": computation})
    planner = made(world_of(settings.fitted(Flpdsp(), "lenet5")), radio, settings)
    for number in (0, 1):
        plan, bill = charge(planner, number)
        limit = planner.plan(number).reasons.get("deadline_s", settings.deadline_s)
        assert limit <= settings.deadline_s
        assert np.all(bill.cost.latency_s <= limit * (1 + 1e-9))
        assert np.all(bill.cost.energy_j <= settings.energy_budget_j * (1 + 1e-9))
        assert plan.share.sum() <= 1 + 1e-9
        assert np.all((plan.k <= settings.k_max) & (plan.r >= settings.r_min * (1 - 1e-9)) & (plan.r <= 1))


@pytest.mark.parametrize(("name", "payload"), in_turn(ALGORITHMS, PAYLOADS))
def test_the_min_max_split_is_never_slower_than_even_shares(name: str, payload: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    radio = RadioSettings(fleet=FleetSettings(bandwidth_hz=1e6), payload=payload)
    (_, even), (_, split) = (
        charge(made(world, radio, AllocationSettings(bandwidth=bandwidth)), 2) for bandwidth in ("equal", "min-max")
    )
    if not even.cost.upload_bits.any():  # nothing is sent
        assert split.cost.round_latency_s == even.cost.round_latency_s
    else:
        assert split.cost.round_latency_s < even.cost.round_latency_s
        assert np.ptp(split.cost.latency_s) <= 1e-9 * split.cost.round_latency_s  # all end together


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_what_a_method_says_it_will_send_is_what_it_sends(name: str, world_of: WorldOf) -> None:
    algorithm: Algorithm = method_of(name)
    world = world_of(algorithm)
    progress, plan = start(world), world.plan(0)
    outcome = choose_engine(world, threads=1).run_round(progress.server, progress.clients, plan)
    assert np.array_equal(outcome.entries, algorithm.entries(world.split, plan.k, plan.r))
    assert np.array_equal(outcome.samples, world.samples(plan.participants))


def test_samples_of_local_epochs_are_known_before(world_of: WorldOf) -> None:
    world = world_of(Flpdsp(), local_epochs=2, batch_size=200)
    progress, plan = start(world), world.plan(0)
    outcome = choose_engine(world, threads=1).run_round(progress.server, progress.clients, plan)
    assert np.array_equal(outcome.samples, world.samples(plan.participants))


@pytest.mark.parametrize("rule", JOINT)
def test_the_same_seed_gives_the_same_plan(rule: str, world_of: WorldOf) -> None:
    settings = AllocationSettings.model_validate({"rule": "joint", **JOINT[rule]})
    first, again = (made(world_of(Flpdsp()), RadioSettings(), settings).plan(2).plan for _ in range(2))
    assert first.participants == again.participants
    for name in ("k", "r", "share"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
