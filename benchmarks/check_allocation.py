"""The long checks of the allocation room, too long for the tests; writes results/allocation/check.json.

    python benchmarks/check_allocation.py            # everything, about ten minutes on one core
    python benchmarks/check_allocation.py --quick    # a twentieth of it

Random fleets: every plan feasible to 1e-9, no worse than equal shares, bound at or below it. Paper-like instances:
the certified gap, and Algorithm 2 within 2 % without a failure. Energy: three schemes against the offline bound.
Speed: the rows of `leanfed bench plan`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from leanfed.allocation import Problem, Solution, Status, solve_certified
from leanfed.allocation.bench import paper_problem, plan_rows
from leanfed.allocation.dca import solve_dca
from leanfed.allocation.energy import SCHEMES, offline_bound, run_horizon
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.rules import equal_shares
from leanfed.files import make_folder, write_json
from leanfed.streams import stream

OUTPUT = Path(__file__).parent.parent / "results" / "allocation" / "check.json"


def random_fleet(number: int) -> Problem:
    """A fleet far from the paper's: wild channels, sizes, limits, floors and value widths."""
    draw = stream(number, "random fleet")
    clients = int(draw.integers(1, 41))
    choose = draw.choice
    floors = draw.random() < 0.3
    return Problem.of(
        weights=draw.dirichlet(np.full(clients, 2.0)),
        channel_gain=choose([1.0] * 9 + [0.0], clients)
        * 10 ** draw.normal(-10.5, float(choose([0.3, 1.0, 3.0])), clients),
        power_w=10 ** draw.uniform(-2, 0, clients),
        cpu_hz=10 ** draw.uniform(8.5, 9.5, clients),
        batch_size=32,
        cycles_per_sample=float(choose([0.0, 1e6, 8e6])),
        energy_coefficient=float(choose([0.0, 1e-28, 1e-27])),
        deadline_s=choose([None, 0.3, 1.0, 5.0]),
        energy_budget_j=choose([None, 0.1, 0.3, 1.0]),
        bandwidth_hz=float(clients * 10 ** draw.uniform(3, 6)),
        noise_w_per_hz=4e-21,
        base_size=int(10 ** draw.uniform(3, 7)),
        head_size=int(choose([0, 1_000, 100_000])),
        value_bits=int(choose([1, 8, 16, 32, 32, 64])),
        theta1=float(choose([0.0, 0.01, 0.1, 1.0, 10.0])),
        theta2=1.0,
        k_min=choose([0.0, 0.01], clients) if floors else 0.0,
        k_max=choose([1.0, 0.5], clients) if floors else 1.0,
        r_min=choose([0.0, 0.2], clients) if floors else 0.0,
    )


def violation(problem: Problem, solution: Solution) -> float:
    """The largest relative excess over any limit."""
    inside = np.ones(problem.clients, dtype=bool)
    inside[[entry.client for entry in solution.excluded]] = False
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, solution.payload)
    excess = [float(solution.l.sum()) - 1.0]
    for used, limit in ((latency, problem.deadline_s), (energy, problem.energy_budget_j)):
        bounded = inside & np.isfinite(limit)
        excess.append(float(np.max(used[bounded] / limit[bounded] - 1.0, initial=-1.0)))
    excess.append(float(np.max(problem.k_min[inside] - solution.k[inside], initial=-1.0)))
    return max(excess)


def check_random_fleets(count: int) -> dict[str, Any]:
    """Feasibility, comparison with equal shares and gaps over random fleets."""
    worst_violation, worst_loss, gaps, outcomes = -1.0, -np.inf, [], {"solved": 0, "infeasible": 0}
    for number in track(range(count), "random fleets"):
        problem, payload = random_fleet(number), ("exact", "paper")[number % 2]
        solution = solve_certified(problem, payload=payload)
        outcomes[str(solution.status)] += 1
        if solution.status is not Status.SOLVED:
            continue
        worst_violation = max(worst_violation, violation(problem, solution))
        gaps.append(solution.relative_gap)
        equal = equal_shares(problem, payload=payload)
        if len(equal.excluded) == len(solution.excluded):
            worst_loss = max(worst_loss, solution.objective - equal.objective)
    return {
        "fleets": count,
        **outcomes,
        "worst_violation": worst_violation,
        "worst_loss_to_equal_shares": worst_loss,
        **_spread("gap", gaps),
    }


def paper_like(number: int) -> Problem:
    """N = 100, LeNet-5 and ResNet-18 sizes, 10, 30 and 50 MHz in turn."""
    model, band = ("lenet", "resnet")[number % 2], (1e7, 1e7, 3e7, 5e7)[number // 2 % 4]
    return paper_problem(100, number, model=model, bandwidth_hz=band)


def check_paper_like(count: int) -> dict[str, Any]:
    """Certified gaps on paper-like instances, both payloads."""
    found = {"exact": [], "paper": []}
    for number in track(range(count), "paper-like instances"):
        for payload, gaps in found.items():
            gaps.append(solve_certified(paper_like(number), payload=payload).relative_gap)
    return {"instances": count, **{payload: _spread("gap", gaps) for payload, gaps in found.items()}}


def check_dca(count: int) -> dict[str, Any]:
    """Algorithm 2 against the certified optimum on tight and slack instances."""
    losses, statuses, steps = [], {str(status): 0 for status in Status}, []
    for number in track(range(count), "Algorithm 2"):
        problem = paper_like(number)
        ours, best = solve_dca(problem, payload="paper"), solve_certified(problem, payload="paper")
        losses.append((ours.objective - best.objective) / abs(best.objective))
        statuses[str(ours.status)] += 1
        steps.append(ours.seconds / ours.steps)
    return {"instances": count, **statuses, **_spread("loss", losses), **_spread("seconds_per_step", steps)}


def check_energy(rounds: int, clients: int = 10, joules: float = 0.2) -> dict[str, Any]:
    """Objective per round and budget used of each scheme; the offline bound as the yardstick."""
    problems = [
        paper_problem(clients, 1000 + t, bandwidth_hz=1e5 * clients).with_(energy_budget_j=None)
        for t in track(range(rounds), "energy")
    ]
    budget = np.full(clients, joules * rounds)
    bound, _ = offline_bound(problems, budget)
    report: dict[str, Any] = {"rounds": rounds, "clients": clients, "joules_a_round": joules, "bound": bound / rounds}
    for scheme in SCHEMES:
        run = run_horizon(problems, budget, scheme=scheme)
        mean = float(run.objective.mean())
        used = float((run.spent_j / budget).max())
        report[scheme] = {"objective": mean, "gap": mean - bound / rounds, "most_used": used}
    return report


def _spread(name: str, values: list[Any]) -> dict[str, float]:
    array = np.array(values, dtype=float)
    return {
        f"{name}_median": float(np.median(array)),
        f"{name}_p95": float(np.quantile(array, 0.95)),
        f"{name}_max": float(array.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the instances")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    options = parser.parse_args()
    part = 20 if options.quick else 1
    report = {
        "random_fleets": check_random_fleets(10_000 // part),
        "paper_like": check_paper_like(200 // part),
        "dca": check_dca(500 // part),
        "energy": check_energy(100 // (2 if options.quick else 1)),
        "energy_on_the_papers_fleet": check_energy(100 // part, clients=100),
        "speed": plan_rows(
            seeds=20 // (4 if options.quick else 1),
            clients=(100, 1_000) if options.quick else (100, 1_000, 10_000, 100_000),
        ),
    }
    make_folder(options.out.parent)
    write_json(options.out, report)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
