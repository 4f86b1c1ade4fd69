"""Who plans what, and what comes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.algorithms.contract import SIGNALS, ServerState
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.allocation.tuned_form import STEPS
from leanfed.errors import InfeasibleError, SettingsError
from leanfed.records import Floats, RoundPlan
from leanfed.rounds.costs import Accountant, RadioSettings
from leanfed.rounds.engine import RoundOutcome, empty_outcome
from leanfed.rounds.forms import AllocationSettings
from leanfed.rounds.loop import measured_signals, round_row
from leanfed.rounds.planning import Planner
from leanfed.rounds.probing import TheorySettings
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings
from leanfed.wireless.fleet import FleetSettings

WorldOf = Callable[..., World]
FEW = TheorySettings(samples=32)  # for theta, which takes longer than all plans


def planner(world: World, radio: RadioSettings | None = None, rounds: int = 1000, **allocation: object) -> Planner:
    settings, accountant = AllocationSettings.model_validate(allocation), Accountant(radio or RadioSettings(), world)
    return Planner(settings, accountant, rounds, FEW)


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


@pytest.mark.parametrize(
    ("form", "feedback", "memory", "steps"),
    [("plain", False, "discard", 1), ("safe", True, "keep", 1), ("fast", True, "keep", 5)],
)
def test_what_a_form_brings_to_the_method(form: str, feedback: bool, memory: str, steps: int) -> None:
    method = Settings.from_values({"allocation": {"rule": "joint", "form": form}}).algorithm
    assert isinstance(method, Flpdsp)
    assert (method.sparsify.error_feedback, method.prune.head_memory) == (feedback, memory)
    assert method.head_steps == steps


def test_heads_of_other_models_take_one_step_unless_told() -> None:
    values = {"task": {"model": "resnet18", "dataset": "cifar10"}, "allocation": {"rule": "joint"}}
    assert Settings.from_values(values).algorithm.work(1.0).head_passes == 0
    told = {**values, "algorithm": {"name": "flpdsp", "head_steps": 4}}
    assert Settings.from_values(told).algorithm.work(1.0).head_passes == 3


def test_what_is_said_in_so_many_words_holds() -> None:
    rest = {"sparsify": {"error_feedback": False}, "prune": {"head_memory": "discard"}}
    values = {"name": "flpdsp", "head_steps": 1, **rest}
    settings = Settings.from_values({"allocation": {"rule": "joint"}, "algorithm": values})
    assert isinstance(settings.algorithm, Flpdsp)
    assert not settings.algorithm.sparsify.error_feedback
    assert settings.algorithm.prune.head_memory == "discard"
    assert settings.algorithm.head_steps == 1
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
    made = planner(world_of(Flpdsp()), rule="joint", form=form, deadline_s=0.001, within_rounds=0)
    with pytest.raises(InfeasibleError, match=r"round 0: .*Raise allocation\.deadline_s"):
        made.plan(0)
    later = made.plan(2)  # a run that is under way passes over such a round
    assert later.plan.participants == ()
    assert len(later.reasons["excluded"]) == 5


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

    def make(rounds: int = 1000, method: Algorithm | None = None, **allocation: object) -> Planner:
        return planner(world_of(method or Flpdsp()), radio, rounds, **{"rule": "joint", **allocation})

    return make


def test_everybody_takes_part_once_in_m_rounds(slow_fleet: Callable[..., Planner]) -> None:
    for within in (3, 5):
        made = slow_fleet(within_rounds=within)
        present = np.zeros((12, 5), dtype=bool)
        for number in range(12):
            present[number, list(made.plan(number).plan.participants)] = True
        assert not present.all()  # otherwise the floor was not needed
        for start in range(12 - within + 1):
            assert present[start : start + within].any(axis=0).all()


@pytest.mark.parametrize(("first", "come"), [(1, {0, 7}), (3, {2}), (9, {6})])
def test_who_never_came_comes_early_and_then_in_turn(
    first: int, come: set[int], slow_fleet: Callable[..., Planner]
) -> None:
    made = slow_fleet(form="tuned", first_within=first, within_rounds=7)
    slow = {number for number in range(8) if {3, 4} & set(made.plan(number).plan.participants)}
    assert slow == come
    resumed = slow_fleet(form="tuned", first_within=first, within_rounds=7)
    assert resumed.plan(max(come)).plan.participants == (0, 1, 2, 3, 4)


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


def test_in_the_last_part_of_a_run_everybody_takes_part(slow_fleet: Callable[..., Planner]) -> None:
    made = slow_fleet(rounds=9, within_rounds=0, settle=1 / 3)
    assert [len(made.plan(number).plan.participants) for number in range(9)] == [3] * 6 + [5] * 3


@pytest.mark.parametrize("form", ["safe", "fast"])
def test_a_total_of_energy_lasts_to_the_end(form: str, slow_fleet: Callable[..., Planner]) -> None:
    total, rounds = 0.9, 10
    made = slow_fleet(rounds=rounds, form=form, energy_total_j=total)
    free = slow_fleet(rounds=rounds, form=form)
    jumping = slow_fleet(rounds=rounds, form=form, energy_total_j=total)
    spent = {"tight": np.zeros(5), "free": np.zeros(5)}
    for number in range(rounds):
        for name, one in (("tight", made), ("free", free)):
            plan = one.plan(number).plan
            spent[name][list(plan.participants)] += joules(one, plan)
    assert (spent["tight"] <= total).all()
    assert (spent["free"] > total).any()  # otherwise the total was no limit
    assert spent["tight"].max() > 0.5 * total  # and it is put to use
    assert np.array_equal(jumping.plan(rounds - 1).plan.k, made.plan(rounds - 1).plan.k)


def joules(made: Planner, plan: RoundPlan) -> Floats:
    """What a plan costs its participants, by the simulator's own account."""
    world = made.world
    samples = world.samples(plan.participants)
    entries = world.algorithm.entries(world.split, plan.k, plan.r)
    outcome = RoundOutcome(cast(ServerState, None), np.zeros(len(samples)), samples, entries)
    return np.asarray(made.accountant.bill(plan, outcome).cost.energy_j)


def measured(number: int, **constants: float) -> dict[str, float | int]:
    """A row of the rounds table with constants in it."""
    known = {"loss": 2.0, "l1": 3.0, "l2": 5.0, "g_sq": 4.0, "m": 7.0, "sigma_sq": 1.0, "delta_sq": 1.0, "eta": 0.1}
    return {"round": number, **{f"theory_{name}": value for name, value in (known | constants).items()}}


def test_theta_follows_from_what_was_measured_before(world_of: WorldOf) -> None:
    made = planner(world_of(Flpdsp()), rule="joint", form="safe", theta="estimated")
    made.__dict__["_first"] = measured(-1, l1=1.0)
    made.observe(measured(0))
    made.observe(measured(3, l1=6.0))
    # theta1 / theta2 = 2 L1 M / (eta (3 - L2 eta) G^2), the largest constants met so far
    assert made.plan(0).reasons["theta_ratio"] == pytest.approx(2 * 1 * 7 / (0.1 * (3 - 5 * 0.1) * 4))
    assert made.plan(1).reasons["theta_ratio"] == pytest.approx(2 * 3 * 7 / (0.1 * (3 - 5 * 0.1) * 4))
    assert made.plan(4).reasons["theta_ratio"] == pytest.approx(2 * 6 * 7 / (0.1 * (3 - 5 * 0.1) * 4))


def test_theta_is_known_before_the_run(world_of: WorldOf) -> None:
    """Measured at the initial models: the same in every planner of the seed, and so after a resume."""
    ratios = [
        planner(world_of(Flpdsp()), rule="joint", form=form).plan(0).reasons["theta_ratio"]
        for form in ("plain", "safe")
    ]
    assert ratios[0] == ratios[1] > 1  # far above the 0.1 that was assumed once: no head is erased
    plan = planner(world_of(Flpdsp()), rule="joint", form="plain").plan(0).plan
    assert (plan.r > 0).all()


def test_a_learning_rate_beyond_the_theorem_is_told(world_of: WorldOf) -> None:
    made = planner(world_of(Flpdsp()), rule="joint", form="safe")
    made.__dict__["_first"] = measured(-1, l2=31.0)  # eta = 0.1 is above 3/L2
    reasons = made.plan(1).reasons
    assert "0.1 is not below 3/L2 = 0.0968" in reasons["theta_broken"]
    assert reasons["theta_ratio"] == pytest.approx(3 * 31 * 7 / 4)  # L1 L2 M / G^2, the ratio at eta = 1/L2


def test_prices_are_estimated_unless_they_are_given() -> None:
    assert AllocationSettings(form="plain").theta == AllocationSettings(form="safe").theta == "estimated"
    assert AllocationSettings(form="plain", theta1=0.3).theta == AllocationSettings(form="fast").theta == "given"
    decayed = {"allocation": {"rule": "joint", "form": "plain"}, "training": {"momentum": 0.9}}
    assert any("do not cover this run: there is momentum" in note for note in Settings.from_values(decayed).notes())


@pytest.mark.parametrize(("share", "expected"), [(0.6, (0, 1, 2)), (0.2, (2,)), (0.01, (2,)), (1.0, (0, 1, 2, 3, 4))])
def test_the_fastest_share_is_waited_for(
    share: float, expected: tuple[int, ...], slow_fleet: Callable[..., Planner]
) -> None:
    made = slow_fleet(rule="own", wait="fastest", fastest=share)
    assert made.plan(0).plan.participants == expected


def test_with_turns_everybody_comes_once_in_some_rounds_and_the_fast_in_each(
    slow_fleet: Callable[..., Planner],
) -> None:
    made = slow_fleet(rule="own", wait="turns", within_rounds=4)
    plans = [made.plan(number) for number in range(9)]
    alone, all_of_them = (0, 1, 2), (0, 1, 2, 3, 4)
    assert [one.plan.participants for one in plans] == [*[alone] * 3, all_of_them, *[alone] * 3, all_of_them, alone]
    assert [one.reasons["due"] for one in plans[2:5]] == [[], [3, 4], []]
    again = slow_fleet(rule="own", wait="turns", within_rounds=4)  # a resumed run plans what an unbroken one does
    assert again.plan(7).plan.participants == all_of_them


def test_pace_does_for_any_method_what_fast_does_for_its_own(slow_fleet: Callable[..., Planner]) -> None:
    """At the keep rate that fast chooses, with whole heads, both make the same plan."""
    fast = slow_fleet(k_min=0.05, k_max=0.05)
    paced = slow_fleet(rule="own", wait="pace", method=Flpdsp(k=0.05, r=1.0))
    for number in range(4):
        ours, theirs = paced.plan(number), fast.plan(number)
        assert ours.plan.participants == theirs.plan.participants
        assert ours.plan.share == pytest.approx(theirs.plan.share, rel=1e-3)  # whole entries against k d
        assert ours.reasons["deadline_s"] == pytest.approx(theirs.reasons["deadline_s"], rel=1e-3)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_can_be_paced(name: str, slow_fleet: Callable[..., Planner]) -> None:
    method, own = ALGORITHMS[name](), AllocationSettings()
    passes = float(method.work(1.0).passes)  # one that computes twice as much needs twice the limits of a round
    limits = {"deadline_s": own.deadline_s * passes, "energy_budget_j": own.energy_budget_j * passes}
    made = slow_fleet(rule="own", wait="pace", method=method, within_rounds=4, **limits)
    present = [set(made.plan(number).plan.participants) for number in range(8)]
    assert all(set.union(*present[start : start + 4]) == set(range(5)) for start in range(5))
    assert any(3 not in members for members in present)  # the slow ones are not waited for when they are not due
    plan = made.plan(8).plan
    assert plan.share is not None
    assert plan.share.sum() <= 1 + 1e-9


def test_a_pace_that_nobody_can_keep_says_what_to_do(slow_fleet: Callable[..., Planner]) -> None:
    made = slow_fleet(rule="own", wait="pace", deadline_s=0.001)
    with pytest.raises(InfeasibleError, match=r"round 0: .*Raise allocation\.deadline_s"):
        made.plan(0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"allocation": {"rule": "joint", "theta": "estimated"}}, r"'fast' plans without theta"),
        ({"allocation": {"rule": "joint", "form": "safe", "solver": "dca", "energy_total_j": 3.0}}, r"certified"),
        ({"allocation": {"rule": "joint", "solver": "equal"}}, r"plans the forms 'plain' and 'safe'"),
        ({"allocation": {"form": "fast", "first_within": 3}}, r"first_within is read by the form 'tuned'"),
        ({"allocation": {"wait": "turns", "within_rounds": 0}}, r"needs within_rounds"),
        ({"allocation": {"wait": "turns", "form": "safe"}}, r"set wait = 'fastest' for no turns"),
        ({"allocation": {"solver": "eqal"}}, r"no allocator has that name: did you mean 'equal'\?"),
    ],
    ids=str,
)
def test_theta_energy_and_solvers_that_cannot_be_had_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_values(values)


def test_what_clients_report_is_averaged_in_no_order_and_without_gaps() -> None:
    signals = np.random.default_rng(1).uniform(size=(40, len(SIGNALS)))
    signals[::3, -1] = np.nan
    gamma = np.random.default_rng(2).uniform(size=40)
    means = measured_signals(signals, gamma)
    other = np.random.default_rng(3).permutation(40)
    assert means == measured_signals(np.asfortranarray(signals[other]), gamma[other])
    known = np.isfinite(signals[:, -1])
    assert means["head_contraction"] == pytest.approx(np.average(signals[known, -1], weights=gamma[known]))
    nothing = measured_signals(np.full((2, len(SIGNALS)), np.nan), gamma[:2])
    assert set(nothing.values()) == {None}
    assert measured_signals(None, gamma) == nothing  # a round without participants has the same columns


def test_an_idle_round_of_a_tuned_run_has_the_columns_of_the_others(world_of: WorldOf) -> None:
    world = replace(world_of(Flpdsp()), reports=True)
    busy, idle = (
        RoundPlan(0, (1,), np.ones(1), np.ones(1), head_steps=2),
        RoundPlan(1, (), np.ones(0), np.ones(0), head_steps=2),
    )
    one = np.ones(1)
    outcome = RoundOutcome(
        cast(ServerState, None), one, one.astype(int), one.astype(int), signals=np.ones((1, len(SIGNALS)))
    )
    rows = [round_row(world, busy, outcome, None), round_row(world, idle, empty_outcome(cast(ServerState, None)), None)]
    assert list(rows[0]) == list(rows[1])
    assert rows[1]["kept_01"] is None


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (
            {"algorithm": {"name": "flpdsp", "head_steps": 5}, "allocation": {"rule": "joint", "form": "tuned"}},
            "they are planned",
        ),
        ({"allocation": {"head_steps_max": 3}}, "without the joint plans of allocation.form = 'tuned'"),
    ],
)
def test_head_steps_that_have_no_effect_are_told(values: dict[str, object], note: str) -> None:
    assert any(note in told for told in Settings.from_values(values).notes())


def test_the_tuned_form_goes_on_from_a_first_round_with_stated_rates(world_of: WorldOf) -> None:
    made = planner(world_of(Flpdsp()), rule="joint", form="tuned", first_k=0.3, deadline_s=5.0)
    first = made.plan(0).plan
    assert first.head_steps is None
    made.observe({"round": 0, "head_steps": None, **dict.fromkeys(SIGNALS, 0.5)})
    assert made.plan(1).plan.head_steps in STEPS


@pytest.mark.parametrize("form", ["plain", "safe", "fast", "tuned"])
def test_of_a_poisson_cohort_nobody_may_come(world_of: WorldOf, form: str) -> None:
    world = world_of(Flpdsp(), participation={"rule": "poisson", "fraction": 0.05})
    limits = {"deadline_s": 5.0, "energy_total_j": 50.0, "theta": "given"}
    made = planner(world, rounds=12, rule="joint", form=form, **limits)
    came = [len(made.plan(number).plan.participants) for number in range(12)]
    assert 0 in came
    assert made.memory()["energy"]["rounds_left"] == 0
