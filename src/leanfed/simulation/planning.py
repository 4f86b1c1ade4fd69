"""Each round's plan: the fleet's state becomes participants, keep rates and bandwidth shares.

A plan follows from the settings, the seed and the round alone, so a run that goes on after a stop plans as it would
have done. The participation floor looks back at earlier plans; those are made again where they are not remembered.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.allocation.pace import set_pace
from leanfed.allocation.plan import ALLOCATORS
from leanfed.allocation.problem import Problem
from leanfed.allocation.rules import fastest_rates, fastest_split
from leanfed.allocation.solution import Solution, Status
from leanfed.errors import InfeasibleError
from leanfed.records import Floats, Ints, RoundPlan, Section
from leanfed.simulation.costs import Accountant, of_participants, upload_bits

Rate = Annotated[float, Field(ge=0, le=1)]
Form = Literal["plain", "safe", "fast"]

# What a form brings along where the settings do not say otherwise.
FORMS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"k_min": 0.0, "k_max": 1.0, "r_min": 0.0, "within_rounds": 0},
    "safe": {"k_min": 0.0, "k_max": 1.0, "r_min": 0.0, "within_rounds": 0},
    "fast": {"k_min": 0.01, "k_max": 0.05, "r_min": 0.5, "within_rounds": 10},
}


class AllocationSettings(Section):
    """Who decides on keep rates and bandwidth; the constants that the paper leaves open carry a source tag."""

    rule: Literal["own", "joint"] = "own"
    """own: the method's rates, bandwidth as below; joint: FLPDSP's k, r and bandwidth are planned every round."""
    bandwidth: Literal["equal", "min-max"] = "equal"
    """With rule = "own": even shares as in the paper, or the split that makes the slowest participant fastest."""
    form: Form = "fast"
    """With rule = "joint". plain: the paper to the letter; safe: its objective with heads that survive pruning and
    error feedback; fast: the most progress per second, with a deadline of its own choice."""
    solver: Literal["certified", "dca"] = "certified"
    """Of the plain and the safe form: the price solver with its certificate, or Algorithm 2."""
    deadline_s: float | None = Field(default=0.8, gt=0)
    """tau_max of a round (assumed, for LeNet-5); the fast form chooses any deadline up to it. None: no limit."""
    energy_budget_j: float | None = Field(default=0.3, gt=0)
    """E_max of one client in one round (assumed, for LeNet-5). None: no limit."""
    theta1: float = Field(default=0.1, ge=0)
    """Price of pruning in Eq. (27); only theta1 / theta2 matters (estimated: 0.1 to 0.15 fits the paper's tables)."""
    theta2: float = Field(default=1.0, gt=0)
    """Price of sparsification in Eq. (27)."""
    k_min: Rate = 0.01
    """Least keep rate of a base gradient (plain and safe 0 as in the paper; fast 0.01, assumed)."""
    k_max: Rate = 0.05
    """Largest keep rate of a base gradient (plain and safe 1 as in the paper; fast 0.05, estimated: on the embedded
    digits 0.02 to 0.05 took less simulated time than 0.1, and 0.02 ended a point lower)."""
    r_min: Rate = 0.5
    """Least keep rate of a head (plain and safe 0 as in the paper; fast 0.5, assumed)."""
    within_rounds: int = Field(default=10, ge=0)
    """Everybody takes part at least once in so many rounds, where its own limits allow it (fast 10, estimated on the
    embedded digits); 0: no such floor (plain and safe)."""
    first_k: Rate | None = None
    """k of everybody in round 0, less where it does not fit; None: round 0 is planned as the others are."""
    first_r: Rate | None = None
    """r of everybody in round 0, if first_k is given; None: whole heads."""

    @model_validator(mode="before")
    @classmethod
    def _what_the_form_brings(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**FORMS.get(str(values.get("form", "fast")), {}), **values}

    @model_validator(mode="after")
    def _bounds_in_order(self) -> AllocationSettings:
        if self.k_min > self.k_max:
            raise ValueError(f"k_min = {self.k_min} is above k_max = {self.k_max}; lower one or raise the other")
        if self.first_r is not None and self.first_k is None:
            raise ValueError("first_r is given without first_k; give both, or first_k alone")
        if self.within_rounds and self.form != "fast":
            raise ValueError(f"within_rounds is a floor of the form 'fast'; leave it out with form = {self.form!r}")
        return self

    def fitted(self, algorithm: Algorithm) -> Algorithm:
        """The method as the rule needs it: safe and fast keep dense heads and what was not sent, unless told not to.

        What the settings say in so many words (algorithm.prune.head_memory, algorithm.sparsify.error_feedback) holds.
        """
        if self.rule == "own":
            return algorithm
        if not isinstance(algorithm, Flpdsp):
            raise ValueError(
                "allocation.rule = 'joint' plans k and r of the method 'flpdsp'; for other methods set "
                "allocation.rule = 'own', with allocation.bandwidth = 'min-max' if the band should be split well"
            )
        if self.form == "plain":
            return algorithm
        sparsify, prune = algorithm.sparsify, algorithm.prune
        if "error_feedback" not in sparsify.model_fields_set and not sparsify.rescale:
            sparsify = sparsify.model_copy(update={"error_feedback": True})
        if "head_memory" not in prune.model_fields_set:
            prune = prune.model_copy(update={"head_memory": "keep"})
        return algorithm.model_copy(update={"sparsify": sparsify, "prune": prune})


@dataclass(frozen=True)
class Planned:
    """A plan, what it took to make it, and why it is as it is (nothing where there was nothing to decide)."""

    plan: RoundPlan
    seconds: float
    reasons: dict[str, Any]


class Planner:
    """Plans the rounds of a run over the fleet and the payload that its accountant charges for."""

    def __init__(self, settings: AllocationSettings, accountant: Accountant) -> None:
        self.settings = settings
        self.accountant = accountant
        self.world = accountant.world
        self._next = 0  # the round that `_absent` was counted up to
        self._absent = np.zeros(self.world.task.clients, dtype=np.int64)  # rounds since each client took part

    def plan(self, number: int) -> Planned:
        """The plan of one round."""
        if self.settings.rule == "own":
            return self._own(number)
        if number < self._next:
            self._next, self._absent = 0, np.zeros_like(self._absent)
        for earlier in range(self._next, number if self.settings.within_rounds else 0):
            self._step(earlier)
        return self._step(number)

    def _step(self, number: int) -> Planned:
        """Plan the next round and count who was absent."""
        began = time.perf_counter()
        plan, reasons = self._joint(number, self._absent)
        self._absent = self._absent + 1
        self._absent[list(plan.participants)] = 0
        self._next = number + 1
        return Planned(plan, time.perf_counter() - began, reasons)

    def _own(self, number: int) -> Planned:
        """The method's own rates, on even shares or on the fastest split."""
        began, plan = time.perf_counter(), self.world.plan(number)
        if self.settings.bandwidth == "equal":
            return Planned(plan, time.perf_counter() - began, {})
        radio, algorithm, split = self.accountant.settings, self.world.algorithm, self.world.split
        entries = algorithm.entries(split, plan.k, plan.r)
        exact, paper = upload_bits(algorithm, split.shared_size, entries, radio.value_bits)
        problem = self._problem(number, plan.participants, computed_share=algorithm.computed_share(split, plan.r))
        shares, _ = fastest_split(problem, exact if radio.payload == "exact" else paper, plan.r)
        return Planned(replace(plan, share=shares), time.perf_counter() - began, {})

    def _joint(self, number: int, absent: Ints) -> tuple[RoundPlan, dict[str, Any]]:
        """k, r and shares for everybody who can take part."""
        cohort = self.world.cohort(number)
        problem = self._problem(number, cohort)
        due = absent[list(cohort)] + 1 >= self.settings.within_rounds if self.settings.within_rounds else None
        solution, reasons = self._solve(problem, number, due)
        out = {entry.client for entry in solution.excluded}
        taking = [place for place in range(len(cohort)) if place not in out]
        if solution.status is Status.INFEASIBLE or not taking:
            raise InfeasibleError(
                f"No client can take part in round {number}: {solution.excluded[0].why} (client "
                f"{cohort[solution.excluded[0].client]}). Raise allocation.deadline_s or allocation.energy_budget_j."
            )
        reasons |= {"solver": solution.solver, "status": str(solution.status)}
        reasons["due"] = [cohort[place] for place in reasons.get("due", ())]
        reasons["excluded"] = [{**entry.to_json(), "client": cohort[entry.client]} for entry in solution.excluded]
        participants = tuple(cohort[place] for place in taking)
        return RoundPlan(number, participants, solution.k[taking], solution.r[taking], solution.l[taking]), reasons

    def _solve(self, problem: Problem, number: int, due: Any) -> tuple[Solution, dict[str, Any]]:
        """The form's answer and its reasons."""
        payload = self.accountant.settings.payload
        if number == 0 and self.settings.first_k is not None:
            first_r = 1.0 if self.settings.first_r is None else self.settings.first_r
            return fastest_rates(problem, k=self.settings.first_k, r=first_r, payload=payload), {}
        if self.settings.form == "fast":
            pace = set_pace(problem, due=due, payload=payload)
            return pace.solution, pace.reasons()
        solution = ALLOCATORS[self.settings.solver](problem, payload=payload)
        if solution.status is Status.SOLVER_FAILED:  # the certified solver does not fail
            solution = ALLOCATORS["certified"](problem, payload=payload)
        reasons = {
            "objective": solution.objective,
            "relative_gap": solution.relative_gap,
            "price": solution.price,
            "starved": len(solution.starved),
        }
        return solution, reasons

    def _problem(self, number: int, cohort: tuple[int, ...], *, computed_share: Floats | None = None) -> Problem:
        """The round's allocation problem: the state of the cohort's devices, the model's sizes, the limits.

        With `computed_share` the work is fixed: all of it counts as base and the head as nothing.
        """
        settings, radio, split = self.settings, self.accountant.settings, self.world.split
        state = of_participants(self.accountant.fleet.state(number), cohort)
        fixed = computed_share is not None
        share = np.ones(len(cohort)) if computed_share is None else computed_share
        return Problem.of(
            weights=self.world.task.gamma[list(cohort)],
            channel_gain=state.gain,
            power_w=state.power_w,
            cpu_hz=state.cpu_hz,
            batch_size=self.world.samples(cohort),
            cycles_per_sample=radio.cycles_per_sample * share,
            energy_coefficient=state.energy_coefficient,
            deadline_s=None if fixed else settings.deadline_s,
            energy_budget_j=None if fixed else settings.energy_budget_j,
            k_min=settings.k_min,
            k_max=settings.k_max,
            r_min=settings.r_min,
            bandwidth_hz=float(state.bandwidth_hz),
            noise_w_per_hz=state.noise_w_per_hz,
            base_size=split.shared_size,
            head_size=0 if fixed else split.private_size,
            value_bits=radio.value_bits,
            theta1=settings.theta1,
            theta2=settings.theta2,
        )
