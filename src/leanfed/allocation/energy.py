"""Energy over a horizon, Eq. (27c): spend each client's total budget over T rounds without knowing later channels.

Three schemes, one round at a time: `cap` allows E/T in every round; `pacing` allows what remains over the rounds left;
`price` (the default) lets a round cost what it is worth, with a price per joule that rises when a client spends faster
than its budget lasts and falls when it saves. None exceeds the total. `offline_bound` is the yardstick when all
channels are known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leanfed.allocation.certified import solve_certified
from leanfed.allocation.curves import Floats
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution
from leanfed.errors import InputError, nearest

SCHEMES = ("price", "pacing", "cap")
PRICE_STEP = 0.1  # how fast the price follows spending, in (objective scale per joule) per relative excess


@dataclass(frozen=True, eq=False)
class EnergyState:
    """What is left of every client's budget, the rounds that it must last, and the price of a joule."""

    budget_j: Floats
    rounds: int
    remaining_j: Floats
    rounds_left: int
    price: Floats  # lambda_n: objective per joule

    @classmethod
    def start(cls, budget_j: Floats, rounds: int) -> EnergyState:
        """Full budgets before the first of `rounds` rounds."""
        if rounds < 1:
            raise InputError(f"rounds is {rounds}; a horizon has at least 1 round.")
        budget = np.array(budget_j, dtype=float)
        if not (budget >= 0.0).all():
            client = int(np.argmax(~(budget >= 0.0)))
            raise InputError(f"energy budget of client {client} is {budget[client]:g} J; it must be at least 0.")
        return cls(budget, rounds, budget.copy(), rounds, np.zeros(budget.size))

    def to_json(self) -> dict[str, Any]:
        """The fields as numbers and lists, for a checkpoint."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EnergyState:
        """The state that `to_json` wrote."""
        kept: dict[str, Any] = {name: np.array(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**kept)

    def of(self, clients: Sequence[int]) -> EnergyState:
        """The state of some clients."""
        chosen = list(clients)
        return replace(
            self, budget_j=self.budget_j[chosen], remaining_j=self.remaining_j[chosen], price=self.price[chosen]
        )

    def with_part(self, clients: Sequence[int], part: EnergyState) -> EnergyState:
        """After a round in which these clients came to the state `part` and the others spent nothing."""
        remaining, price = self.remaining_j.copy(), self.price.copy()
        remaining[list(clients)], price[list(clients)] = part.remaining_j, part.price
        return replace(self, remaining_j=remaining, price=price, rounds_left=part.rounds_left)

    def after(self, problem: Problem, spent: Floats, *, step: float = 0.0) -> EnergyState:
        """After the round: lambda <- max(0, lambda + step gamma (theta1+theta2)/Ebar (e - target)/Ebar)."""
        limited = np.isfinite(self.budget_j)
        mean = np.maximum(np.where(limited, self.budget_j, 1.0) / self.rounds, 1e-300)
        target = np.where(limited, self.remaining_j, 0.0) / self.rounds_left
        worth = problem.weights * (problem.theta1 + problem.theta2) / mean
        excess = np.where(limited, (spent - target) / mean, 0.0)
        price = np.maximum(0.0, self.price + step * worth * excess)
        remaining = np.maximum(self.remaining_j - spent, 0.0)
        return replace(self, remaining_j=remaining, rounds_left=self.rounds_left - 1, price=price)


@dataclass(frozen=True, eq=False)
class HorizonRun:
    """Every round's plan, its cost with absent clients counted as k = r = 0, and what each client spent."""

    solutions: tuple[Solution, ...]
    objective: Floats  # (T,)
    spent_j: Floats  # (N,)


def plan_round(
    problem: Problem, state: EnergyState, *, scheme: str = "price", payload: str = "exact", step: float = PRICE_STEP
) -> tuple[Solution, EnergyState]:
    """Plan one round under the horizon's budgets (the problem's own energy_budget_j is a further cap)."""
    if scheme not in SCHEMES:
        raise InputError(f"Unknown energy scheme {scheme!r}; {nearest(scheme, SCHEMES)}")
    if state.rounds_left < 1:
        raise InputError(f"The horizon of {state.rounds} rounds is over; start a new one.")
    capped = _capped(problem, state, scheme)
    price = state.price if scheme == "price" else None
    solution = solve_certified(capped, payload=payload, energy_price=price)
    spent = energy_spent(capped, solution)
    return solution, state.after(problem, spent, step=step if scheme == "price" else 0.0)


def pacing_cap(problem: Problem, state: EnergyState) -> Problem:
    """The problem with no client allowed more than what it has left over the rounds that are left."""
    return _capped(problem, state, "pacing")


def _capped(problem: Problem, state: EnergyState, scheme: str) -> Problem:
    """The problem under a scheme's limit for this round."""
    # Plans meet their limits up to 1e-12, and a total is not to be exceeded even by that.
    allowed = _allowance(problem, state, scheme) * (1.0 - 4e-12)
    return replace(problem, energy_budget_j=np.minimum(allowed, problem.energy_budget_j))


def energy_spent(problem: Problem, solution: Solution) -> Floats:
    """Joules of every client that takes part, Eqs. (11), (13)."""
    _, energy = plan_cost(problem, solution.k, solution.r, solution.l, solution.payload)
    if solution.objective is None:
        return np.zeros(problem.clients)
    energy[[entry.client for entry in solution.excluded]] = 0.0
    return energy


def _allowance(problem: Problem, state: EnergyState, scheme: str) -> Floats:
    """The most that each client may spend in this round."""
    if scheme == "cap":
        return np.minimum(state.budget_j / state.rounds, state.remaining_j)
    if scheme == "pacing":
        return state.remaining_j / state.rounds_left
    base_j = problem.compute_power_w * problem.base_s
    reserved = state.remaining_j - (state.rounds_left - 1) * base_j
    # Where not even the base layers of every later round can be paid, waiting would not help: what is left may go now.
    return np.where(reserved >= base_j, reserved, state.remaining_j)


def run_horizon(
    problems: Sequence[Problem], budget_j: Floats, *, scheme: str = "price", payload: str = "exact"
) -> HorizonRun:
    """All rounds in order, each planned without looking at the later ones."""
    state = EnergyState.start(budget_j, len(problems))
    solutions, objectives, spent = [], [], np.zeros(state.budget_j.size)
    for problem in problems:
        solution, state = plan_round(problem, state, scheme=scheme, payload=payload)
        solutions.append(solution)
        objectives.append(_with_absent(problem, solution))
        spent += energy_spent(problem, solution)
    return HorizonRun(tuple(solutions), np.array(objectives), spent)


def _with_absent(problem: Problem, solution: Solution) -> float:
    """The objective with excluded clients at k = r = 0, so that leaving clients out does not look like a gain."""
    absent = problem.weights[[entry.client for entry in solution.excluded]].sum() * problem.theta1
    return float((solution.objective or 0.0) + absent)


def offline_bound(
    problems: Sequence[Problem], budget_j: Floats, *, payload: str = "exact", steps: int = 60
) -> tuple[float, Floats]:
    """A lower bound on the sum of objectives when all channels are known, and the joule prices that prove it.

    L(lambda) = sum_t min (objective_t + sum_n lambda_n e_nt) - sum_n lambda_n E_n, climbed by subgradient steps that
    shrink. For clients that take part in every round.
    """
    mean = budget_j / len(problems)
    worth = problems[0].weights * (problems[0].theta1 + problems[0].theta2) / mean
    price, best, best_price = np.zeros(mean.size), -np.inf, np.zeros(mean.size)
    for number in range(steps):
        value, spent = _lagrangian(problems, budget_j, price, payload)
        if value > best:
            best, best_price = value, price
        price = np.maximum(0.0, price + worth / (1.0 + 0.3 * number) * (spent / budget_j - 1.0))
    return best, best_price


def _lagrangian(problems: Sequence[Problem], budget_j: Floats, price: Floats, payload: str) -> tuple[float, Floats]:
    """L(lambda) and what every client spends in all when a joule costs lambda."""
    value, total = -float(price @ budget_j), np.zeros(budget_j.size)
    for problem in problems:
        capped = replace(problem, energy_budget_j=np.minimum(problem.energy_budget_j, budget_j))
        solution = solve_certified(capped, payload=payload, energy_price=price, most_nodes=1)
        spent = energy_spent(capped, solution)
        absent = _with_absent(problem, solution) - (solution.objective or 0.0)
        value += (solution.lower_bound or 0.0) + float(price @ spent) + absent
        total += spent
    return value, total
