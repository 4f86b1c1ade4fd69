"""How Algorithm 2 grows with the number of clients; writes results/allocation/growth.json.

    nice -n 10 python benchmarks/dca_growth.py            # N = 10 to 200, three fleets each
    python benchmarks/dca_growth.py --clients 5 10 --fleets 1 --out growth.json

The paper says O(I C) for I iterations and C = O(N^3.5 ln(1/eps)) for one convex problem by the interior-point method.
Measured are the iterations and the processor's seconds of one iteration, with the slopes of their logarithms over
log N: the exponents. Problem (35) is sparse, every client has its own variables and two sums join them, so a solver
that uses it factorises in about linear time; 3.5 is the exponent of a dense one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from leanfed.allocation.bench import paper_problem
from leanfed.allocation.dca import solve_dca
from leanfed.files import make_folder, write_json

OUTPUT = Path(__file__).parent.parent / "results" / "allocation" / "growth.json"
CLIENTS = (10, 20, 50, 100, 200)
CLAIMED = 3.5  # the paper's exponent of N for one iteration


def measured(clients: int, fleet: int) -> dict[str, Any]:
    """One solve: iterations, and processor seconds, which other programs on the machine do not count into."""
    problem = paper_problem(clients, fleet)
    began = time.process_time()
    solution = solve_dca(problem)
    seconds = time.process_time() - began
    each = seconds / max(1, solution.steps)
    return {"clients": clients, "fleet": fleet, "iterations": solution.steps, "cpu_s": seconds, "cpu_s_each": each}


def exponent(rows: list[dict[str, Any]], column: str) -> float:
    """The slope of log(column) over log N, by least squares over all solves."""
    sizes, values = (np.log([row[name] for row in rows]) for name in ("clients", column))
    return float(np.polyfit(sizes, values, 1)[0])


def growth(clients: list[int], fleets: int) -> dict[str, Any]:
    """All solves and the fitted exponents."""
    rows = []
    for count in clients:
        solve_dca(paper_problem(count, 0), max_steps=1)  # compiles the problem of this size, outside the clock
        rows += [measured(count, fleet) for fleet in range(fleets)]
    names = {"iterations": "iterations", "one iteration": "cpu_s_each", "a solve": "cpu_s"}
    return {
        "claimed": {"one iteration": CLAIMED},
        "exponents": {name: round(exponent(rows, column), 3) for name, column in names.items()},
        "most_iterations": max(row["iterations"] for row in rows),
        "rows": [{**row, "cpu_s": round(row["cpu_s"], 5), "cpu_s_each": round(row["cpu_s_each"], 6)} for row in rows],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    options.add_argument("--fleets", type=int, default=3)
    options.add_argument("--out", type=Path, default=OUTPUT)
    given = options.parse_args()
    make_folder(given.out.parent)
    write_json(given.out, growth(given.clients, given.fleets))


if __name__ == "__main__":
    main()
