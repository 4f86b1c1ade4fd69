"""Each round's plan: participants, keep rates and bandwidth shares from the state of the fleet.

A plan depends only on the settings, the seed, the round and what the run measured before it, so a resumed run makes the
same plans. `within_rounds` and the energy budgets depend on earlier plans, which are recomputed if they were not saved.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from leanfed.algorithms.contract import SIGNALS
from leanfed.allocation.energy import EnergyState, energy_spent, pacing_cap, plan_round
from leanfed.allocation.fast_form import Upload, plan_fast
from leanfed.allocation.limits import Mask
from leanfed.allocation.plan import plan as plan_once
from leanfed.allocation.problem import Problem
from leanfed.allocation.rules import fastest_rates, fastest_split
from leanfed.allocation.solution import Solution, Status
from leanfed.allocation.tuned_form import PAST, STEPS, TunedPlan, Worths, plan_tuned
from leanfed.errors import InfeasibleError
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.rounds.costs import Accountant, ModelSizes, model_sizes, of_participants, planned_share, upload_bits
from leanfed.rounds.forms import AllocationSettings
from leanfed.rounds.probing import CONSTANTS, TheorySettings, initial_constants
from leanfed.rounds.selection import overdue
from leanfed.theory.bound import theta_ratio
from leanfed.theory.recorded import constants_so_far
from leanfed.wireless.fleet import Curves


@dataclass(frozen=True)
class Planned:
    """A plan, how long it took to make, and the reasons for it (empty if there was nothing to decide)."""

    plan: RoundPlan
    seconds: float
    reasons: Mapping[str, Any]


@dataclass(frozen=True)
class _Past:
    """What the plans of earlier rounds mean for the next one."""

    next: int  # the round to be planned
    absent: Ints  # rounds since each client took part
    energy: EnergyState | None  # what is left of the budgets for the whole run


class Planner:
    """Plans the rounds of a run over the fleet and the payload that its accountant charges for."""

    def __init__(
        self,
        settings: AllocationSettings,
        accountant: Accountant,
        rounds: int,
        theory: TheorySettings = TheorySettings(),  # noqa: B008  (frozen)
    ) -> None:
        self.settings = settings
        self.theory = theory
        self.accountant = accountant
        self.world = accountant.world
        self.rounds = rounds  # of the whole run
        self._reachable: Collection[int] | None = None  # None: everyone
        self._past = self._beginning()
        self._measured: list[dict[str, Any]] = []  # rows passed to `observe`, by round

    def memory(self) -> dict[str, Any]:
        """The state that later plans depend on, as plain values."""
        past = self._past
        return {
            "next": past.next,
            "absent": past.absent.tolist(),
            "energy": None if past.energy is None else past.energy.to_json(),
            **({"measured": self._measured[-PAST:]} if self.settings.measures else {}),
        }

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Restore a state returned by `memory`."""
        energy = None if memory["energy"] is None else EnergyState.from_json(memory["energy"])
        self._past = _Past(memory["next"], np.array(memory["absent"], dtype=np.int64), energy)
        if self.settings.measures:
            self._measured = list(memory["measured"])

    def follow(self, earlier: Planner, number: int) -> None:
        """Go on in round `number` from where the planner of the rounds before it stands."""
        if earlier._looks_back and earlier._past.next < number:
            earlier.plan(number - 1)
        self._past, self._measured = earlier._past, list(earlier._measured)

    def plan(self, number: int, reachable: Collection[int] | None = None) -> Planned:
        """The plan of one round; of a fleet for the clients that can be reached."""
        self._reachable = reachable
        if self.settings.rule == "own" and self.settings.wait in ("all", "fastest"):  # the past does not matter
            return self._timed(number)[0]
        if number < self._past.next:
            self._past = self._beginning()
        for earlier in range(self._past.next, number if self._looks_back else 0):
            self._step(earlier)
        return self._step(number)

    def observe(self, row: Mapping[str, Any]) -> None:
        """Record a finished round's row: later rounds are planned by what was measured in it."""
        if self.settings.theta == "estimated" and row.get("theory_loss") is not None:
            self._measured.append({name: row[name] for name in ("round", *CONSTANTS)})
        if self.settings.measures and row.get(SIGNALS[0]) is not None:
            self._measured.append({name: row.get(name) for name in ("round", "head_steps", *SIGNALS)})

    @property
    def _looks_back(self) -> bool:
        floors = self.settings.within_rounds or (self.settings.measures and self.settings.first_within)
        return bool(floors) or self.settings.energy_total_j is not None

    def _beginning(self) -> _Past:
        clients, total_j = self.world.task.clients, self.settings.energy_total_j
        energy = None if total_j is None else EnergyState.start(np.full(clients, total_j), self.rounds)
        return _Past(0, np.zeros(clients, dtype=np.int64), energy)

    def _step(self, number: int) -> Planned:
        """Plan the next round, and update absences and energy budgets."""
        planned, energy = self._timed(number)
        absent = self._past.absent + 1
        absent[list(planned.plan.participants)] = 0
        self._past = _Past(number + 1, absent, energy)
        return planned

    def _timed(self, number: int) -> tuple[Planned, EnergyState | None]:
        """A round's plan, the seconds that it took, and the energy left."""
        began = time.perf_counter()
        if self.settings.rule == "joint":
            plan, reasons, energy = self._joint(number)
        else:
            plan, reasons, energy = self._paced(number) if self.settings.wait == "pace" else self._own(number)
        return Planned(plan, time.perf_counter() - began, reasons), energy

    def _own(self, number: int) -> tuple[RoundPlan, dict[str, Any], None]:
        """A plan with the method's own rates, on even bandwidth shares or on the min-max split."""
        plan, reasons = self._with_a_link(self.world.plan(number, self._reachable))
        if self.settings.wait in ("fastest", "turns") and plan.participants:
            plan, due = self._fastest(plan)
            reasons |= {"due": due} if self.settings.wait == "turns" else {}
        if self.accountant.fleet.state(number).curves is not None:  # nothing is shared: each has its link for itself
            plan = replace(plan, share=np.ones(len(plan.participants)))
        if plan.share is not None or self.settings.bandwidth == "equal" or not plan.participants:
            return plan, reasons, None
        problem = self._problem(number, plan.participants, fixed_share=self._work(plan))
        shares, _ = fastest_split(problem, self._bits(plan), plan.r)
        return replace(plan, share=shares), reasons, None

    def _fastest(self, plan: RoundPlan) -> tuple[RoundPlan, list[int]]:
        """The part of a plan with the fastest processors of the round, and who comes because it is their turn.

        Lower numbers go first among equals.
        """
        members, turns = list(plan.participants), self.settings.within_rounds if self.settings.wait == "turns" else 0
        count = max(1, round(self.settings.fastest * len(members)))
        state = of_participants(self.accountant.fleet.state(plan.round), plan.participants)
        speed = state.cpu_hz if state.curves is None else 1.0 / state.curves.sample_s
        fast = set(np.argsort(-speed, kind="stable")[:count].tolist())
        late = np.flatnonzero(overdue(self._past.absent[members], turns)).tolist() if turns else []
        called = set(late) - fast
        return plan.only(sorted(fast | called)), [members[place] for place in sorted(called)]

    def _due(self, number: int, members: list[int]) -> Mask | None:
        """Who of them must take part now: to do so once in some rounds, or at last for the first time."""
        settings, absent = self.settings, self._past.absent[members]
        floor = 1 if settings.settling(number, self.rounds) else settings.within_rounds
        due = overdue(absent, floor) if floor else None
        if settings.measures and settings.first_within and number + 1 >= settings.first_within:
            never = absent == number
            due = never if due is None else due | never
        return due

    def _paced(self, number: int) -> tuple[RoundPlan, dict[str, Any], EnergyState | None]:
        """A plan with the method's own rates for those with whom a round brings the most weight per second."""
        plan, reasons = self._with_a_link(self.world.plan(number, self._reachable))
        if not plan.participants:
            return plan, reasons, None
        members = list(plan.participants)
        due = self._due(number, members)
        problem = self._problem(number, plan.participants, fixed_share=self._work(plan), limited=True)
        upload = Upload(plan.k, self._bits(plan), np.ones(len(members)))
        fast = plan_fast(problem, due=due, payload=self.accountant.settings.payload, upload=upload)
        out = {entry.client: entry for entry in fast.solution.excluded}
        if len(out) == len(members) and number == 0:
            raise _nobody(number, members[0], out[0].why)
        taking = [place for place in range(len(members)) if place not in out]
        reasons |= fast.reasons() | {"due": [members[place] for place in fast.due]}
        excluded = [{**entry.to_json(), "client": members[entry.client]} for entry in out.values()]
        reasons["excluded"] = [*reasons.get("excluded", ()), *excluded]
        return replace(plan.only(taking), share=fast.solution.l[taking]), reasons, None

    def _bits(self, plan: RoundPlan) -> Floats:
        """The bits that each participant sends at the method's own rates."""
        radio = self.accountant.settings
        exact, paper = upload_bits(self.world, radio, self.world.entries(plan), plan.participants)
        return exact if radio.payload == "exact" else paper

    def _work(self, plan: RoundPlan) -> Floats:
        """The share of a step of the whole model that each participant computes at the method's own rates."""
        return planned_share(self.world, self.accountant.settings, plan)

    def _with_a_link(self, plan: RoundPlan) -> tuple[RoundPlan, dict[str, Any]]:
        """The plan without devices whose link is dead in this round, and why they sit it out."""
        out = self.accountant.out_of_reach(plan)
        if not out:
            return plan, {}
        if len(out) == len(plan.participants) and plan.round == 0:
            client, why = next(iter(out.items()))
            raise InfeasibleError(f"No client can take part in round 0: client {client} cannot, {why}.")
        reasons = {"excluded": [{"client": client, "why": why, "needs": None} for client, why in out.items()]}
        return plan.only([place for place, client in enumerate(plan.participants) if client not in out]), reasons

    def _joint(self, number: int) -> tuple[RoundPlan, dict[str, Any], EnergyState | None]:
        """A plan with optimised k, r and shares, the reasons for it, and the energy left."""
        cohort = self.world.cohort(number, self._reachable)
        members = list(cohort)
        due = self._due(number, members)
        energy = self._past.energy
        if not members:  # of a Poisson cohort nobody may come
            spent = None if energy is None else replace(energy, rounds_left=energy.rounds_left - 1)
            return self.world.plan(number, self._reachable), {}, spent
        budget = None if energy is None else energy.of(members)
        solution, reasons, budget = self._solve(cohort, number, due, budget)
        out = {entry.client for entry in solution.excluded}
        taking = [place for place in range(len(cohort)) if place not in out]
        if solution.status is Status.INFEASIBLE:
            taking = []
        if not taking and number == 0:
            raise _nobody(number, cohort[solution.excluded[0].client], solution.excluded[0].why)
        reasons |= {"solver": solution.solver, "status": str(solution.status), "trace": list(solution.trace)}
        reasons["starved"] = [cohort[place] for place in solution.starved]
        reasons["due"] = [cohort[place] for place in reasons.get("due", ())]
        reasons["excluded"] = [{**entry.to_json(), "client": cohort[entry.client]} for entry in solution.excluded]
        participants = tuple(cohort[place] for place in taking)
        steps = reasons.get("head_steps")
        plan = RoundPlan(number, participants, solution.k[taking], solution.r[taking], solution.l[taking], steps)
        return plan, reasons, None if energy is None or budget is None else energy.with_part(members, budget)

    def _solve(
        self, cohort: tuple[int, ...], number: int, due: Any, budget: EnergyState | None
    ) -> tuple[Solution, dict[str, Any], EnergyState | None]:
        """The form's solution, the reasons for it, and the energy left after it."""
        payload, problem = self.accountant.settings.payload, self._problem(number, cohort)
        capped = problem if budget is None else pacing_cap(problem, budget)
        if number == 0 and self.settings.first_k is not None:
            first_r = 1.0 if self.settings.first_r is None else self.settings.first_r
            solution = fastest_rates(capped, k=self.settings.first_k, r=first_r, payload=payload)
            return solution, {}, budget and budget.after(problem, energy_spent(capped, solution))
        if self.settings.form == "fast":
            fast = plan_fast(capped, due=due, payload=payload)
            return fast.solution, fast.reasons(), budget and budget.after(problem, energy_spent(capped, fast.solution))
        if self.settings.form == "tuned":
            tuned, problem = self._tuned(cohort, number, due, budget)
            spent = budget and budget.after(problem, energy_spent(problem, tuned.fast.solution))
            return tuned.fast.solution, tuned.reasons(), spent
        problem, theta = self._with_theta(problem, number)
        if budget is not None:
            solution, budget = plan_round(problem, budget, payload=payload)
        else:
            solution = plan_once(problem, solver=self.settings.solver, payload=payload)
            if solution.status is Status.SOLVER_FAILED:  # the certified solver does not fail
                solution = plan_once(problem, payload=payload)
        reasons = {
            "objective": solution.objective,
            "relative_gap": solution.relative_gap,
            "price": solution.price,
        }
        return solution, reasons | theta, budget

    def _tuned(
        self, cohort: tuple[int, ...], number: int, due: Any, budget: EnergyState | None
    ) -> tuple[TunedPlan, Problem]:
        """The tuned form's plan by what earlier rounds measured, and the problem that it solves."""

        def at(steps: int) -> Problem:
            problem = self._problem(number, cohort, head_steps=steps)
            return problem if budget is None else pacing_cap(problem, budget)

        seen = [row for row in self._measured if row["round"] < number]
        worths = Worths.measured(seen[-PAST:], SIGNALS, self.world.training.server.average)
        own, most = self.world.algorithm.work(1.0).head_passes + 1, self.settings.head_steps_max
        steps = [each for each in STEPS if each <= most] if self.world.split.private_size and most else [own]
        last = int(seen[-1]["head_steps"]) if seen and seen[-1]["head_steps"] else None  # stated rates have none
        payload = self.accountant.settings.payload
        plan = plan_tuned(at, worths, number, steps=steps, last=last, due=due, payload=payload)
        return plan, at(plan.head_steps)

    def _with_theta(self, problem: Problem, number: int) -> tuple[Problem, dict[str, Any]]:
        """The problem with the prices that the paper's formulas give for the constants measured so far, and why."""
        if self.settings.theta == "given":
            return problem, {}
        seen = [self._first, *(row for row in self._measured if row["round"] < number)]
        constants = constants_so_far(pl.DataFrame(seen, infer_schema_length=None))
        ratio, broken = theta_ratio(constants)
        reasons = {"theta_ratio": ratio} | ({"theta_broken": broken} if broken else {})
        return replace(problem, theta1=ratio, theta2=1.0), reasons

    @cached_property
    def _first(self) -> dict[str, Any]:
        """The constants at the clients' initial models, measured before the run."""
        return {"round": -1, **initial_constants(self.world, self.theory)}

    def _problem(
        self,
        number: int,
        cohort: tuple[int, ...],
        *,
        fixed_share: Floats | None = None,
        limited: bool | None = None,
        head_steps: int | None = None,
    ) -> Problem:
        """The round's allocation problem: the state of the cohort's devices, the model's sizes, the limits.

        With `fixed_share` the work is fixed: all of it counts as the base's, none as the head's, and there are no
        limits unless it is `limited`.
        """
        settings, radio = self.settings, self.accountant.settings
        state = of_participants(self.accountant.fleet.state(number), cohort)
        fixed = fixed_share is not None
        limits = not fixed if limited is None else limited
        sizes = model_sizes(self.world, radio, cohort, head_steps)
        if fixed_share is not None:
            sizes = ModelSizes(sizes.base + sizes.head, 0.0 * sizes.head, fixed_share, np.ones(len(cohort)))
        return Problem.of(
            **_measured(state.curves, sizes.cycles),
            weights=self.world.task.gamma[list(cohort)],
            channel_gain=state.gain,
            power_w=state.power_w,
            cpu_hz=state.cpu_hz,
            batch_size=self.world.samples(cohort),
            cycles_per_sample=radio.cycles_per_sample * sizes.cycles,
            energy_coefficient=state.energy_coefficient,
            deadline_s=settings.deadline_s if limits else None,
            energy_budget_j=settings.energy_budget_j if limits else None,
            k_min=settings.k_min,
            k_max=settings.k_max,
            r_min=settings.r_min,
            bandwidth_hz=float(state.bandwidth_hz),
            noise_w_per_hz=state.noise_w_per_hz,
            base_size=sizes.base,
            head_size=sizes.head,
            head_work=sizes.head_work,
            value_bits=radio.bits,
            theta1=settings.theta1,
            theta2=settings.theta2,
        )


def _measured(curves: Curves | None, share: Floats) -> dict[str, Floats]:
    """The measured curves of a problem's clients, each sample by the share of a whole step; nothing where none are."""
    if curves is None:
        return {}
    given = {"link_bit_per_s": curves.link_bit_per_s, "fixed_s": curves.fixed_s, "compute_w": curves.compute_w}
    return {**given, "sample_s": curves.sample_s * share}


def _nobody(number: int, client: int, why: str) -> InfeasibleError:
    """The refusal of a round that no client can take part in."""
    return InfeasibleError(
        f"No client can take part in round {number}: {why} (client {client}). Raise allocation.deadline_s or "
        "allocation.energy_budget_j."
    )
