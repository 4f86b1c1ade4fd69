"""Who plans what, and what comes with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.errors import InfeasibleError, SettingsError
from leanfed.experiments.settings import Settings
from leanfed.simulation.costs import Accountant, RadioSettings
from leanfed.simulation.planning import AllocationSettings, Planner
from leanfed.simulation.world import World
from leanfed.wireless.fleet import FleetSettings

WorldOf = Callable[..., World]


def planner(world: World, radio: RadioSettings | None = None, **allocation: object) -> Planner:
    return Planner(AllocationSettings.model_validate(allocation), Accountant(radio or RadioSettings(), world))


def test_the_default_is_the_methods_own_rates_on_even_shares(world_of: WorldOf) -> None:
    world = world_of(Flpdsp(k=0.2, r=0.5))
    planned = planner(world).plan(3)
    assert planned.plan.share is None
    assert planned.plan.k.tolist() == [0.2] * 5
    assert planned.reasons == {}


def test_the_min_max_split_makes_all_end_together(world_of: WorldOf) -> None:
    narrow = RadioSettings(fleet=FleetSettings(bandwidth_hz=1e5))
    plan = planner(world_of(FedPer()), narrow, bandwidth="min-max").plan(0).plan
    assert plan.share is not None
    assert plan.share.sum() == pytest.approx(1)
    assert len(set(plan.share.tolist())) == 5


def test_a_form_brings_its_bounds_unless_they_are_set() -> None:
    plain, fast = AllocationSettings(form="plain"), AllocationSettings(form="fast", k_max=0.2)
    assert (plain.k_max, plain.r_min, plain.within_rounds) == (1.0, 0.0, 0)
    assert (fast.k_min, fast.k_max, fast.within_rounds) == (0.01, 0.2, 10)
    assert AllocationSettings.model_validate(plain.model_dump()) == plain


@pytest.mark.parametrize(("form", "feedback", "memory"), [("plain", False, "discard"), ("fast", True, "keep")])
def test_error_feedback_and_dense_heads_come_with_the_form(form: str, feedback: bool, memory: str) -> None:
    method = Settings.from_values({"allocation": {"rule": "joint", "form": form}}).algorithm
    assert isinstance(method, Flpdsp)
    assert (method.sparsify.error_feedback, method.prune.head_memory) == (feedback, memory)


def test_what_is_said_in_so_many_words_holds() -> None:
    values = {"name": "flpdsp", "sparsify": {"error_feedback": False}, "prune": {"head_memory": "discard"}}
    settings = Settings.from_values({"allocation": {"rule": "joint"}, "algorithm": values})
    assert isinstance(settings.algorithm, Flpdsp)
    assert not settings.algorithm.sparsify.error_feedback
    assert settings.algorithm.prune.head_memory == "discard"
    assert Settings.from_values(settings.resolved()) == settings


def test_only_flpdsp_can_be_planned_jointly() -> None:
    with pytest.raises(SettingsError, match=r"plans k and r of the method 'flpdsp'.*min-max"):
        Settings.from_values({"allocation": {"rule": "joint"}, "algorithm": {"name": "fedper"}})


@pytest.mark.parametrize(
    "values", [{"k_min": 0.5, "k_max": 0.1}, {"first_r": 0.5}, {"form": "safe", "within_rounds": 4}]
)
def test_bounds_that_contradict_each_other_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=r"k_max = 0\.1|give both|leave it out with form = 'safe'"):
        Settings.from_values({"allocation": {"rule": "joint", **values}})


@pytest.mark.parametrize("form", ["plain", "fast"])
def test_a_round_that_nobody_can_make_says_what_to_do(form: str, world_of: WorldOf) -> None:
    with pytest.raises(InfeasibleError, match=r"round 2: .*Raise allocation\.deadline_s"):
        planner(world_of(Flpdsp()), rule="joint", form=form, deadline_s=0.001, within_rounds=0).plan(2)


def test_round_0_can_have_rates_of_its_own(world_of: WorldOf) -> None:
    made = planner(world_of(Flpdsp()), rule="joint", form="plain", first_k=0.3, first_r=0.7)
    assert made.plan(0).plan.k == pytest.approx([0.3] * 5)
    assert made.plan(0).plan.r == pytest.approx([0.7] * 5)
    assert made.plan(1).plan.k != pytest.approx([0.3] * 5)


@pytest.fixture
def slow_fleet(world_of: WorldOf, tmp_path: Path) -> Callable[..., Planner]:
    """Five devices that never change; the last two are too slow to be waited for."""
    file = tmp_path / "fleet.csv"
    rows = [f"{device},50,23,{ghz}" for device, ghz in enumerate((2.0, 2.1, 2.2, 0.4, 0.5))]
    file.write_text("\n".join(["device,distance_m,power_dbm,cpu_ghz", *rows]) + "\n")
    radio = RadioSettings(fleet_file=str(file))
    return lambda **allocation: planner(world_of(Flpdsp()), radio, rule="joint", **allocation)


def test_everybody_takes_part_once_in_m_rounds(slow_fleet: Callable[..., Planner]) -> None:
    for within in (3, 5):
        made = slow_fleet(within_rounds=within)
        present = np.zeros((12, 5), dtype=bool)
        for number in range(12):
            present[number, list(made.plan(number).plan.participants)] = True
        assert not present.all()  # otherwise the floor was not needed
        for start in range(12 - within + 1):
            assert present[start : start + within].any(axis=0).all()


def test_without_a_floor_the_slow_never_take_part(slow_fleet: Callable[..., Planner]) -> None:
    made = slow_fleet(within_rounds=0)
    assert {made.plan(number).plan.participants for number in range(8)} == {(0, 1, 2)}


def test_a_plan_does_not_depend_on_what_was_planned_before(slow_fleet: Callable[..., Planner]) -> None:
    steady, jumping = slow_fleet(within_rounds=4), slow_fleet(within_rounds=4)
    plans = [steady.plan(number).plan for number in range(9)]
    for number in (8, 3, 3, 7):
        again = jumping.plan(number).plan
        assert again.participants == plans[number].participants
        assert np.array_equal(again.k, plans[number].k)
        assert np.array_equal(again.share, plans[number].share)


def test_absent_clients_of_a_partial_cohort_are_not_called_in(world_of: WorldOf) -> None:
    world = world_of(Flpdsp(), participation={"fraction": 0.4})
    made = planner(world, rule="joint", within_rounds=2)
    for number in range(6):
        planned = made.plan(number)
        assert set(planned.reasons["due"]) <= set(planned.plan.participants) <= set(world.cohort(number))
