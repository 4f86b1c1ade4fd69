"""The page's data on one run: each function returns the columns of one figure, or raises `Lacking`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from leanfed.quantities import SCHEMA, guess_of, rises
from leanfed.records import Floats, Ints
from leanfed.report.packing import floats, matrix, thinned, whole
from leanfed.report.read import WITHHELD, Flaw, Lacking, RunFiles

ROUNDS_OF_A_LINE = 400
ROUNDS_OF_A_MAP = 200
CLIENTS_OF_A_MAP = 150
CLIENTS_OF_A_BAR = 400
COUNTED = {"paper": "paper_bits", "exact": "exact_bits", "wire": "coded_bits"}  # way of counting -> column
Part = dict[str, Any]


def time_part(run: RunFiles) -> Part:
    """Computation, communication and broadcast of the slowest client of every round."""
    rounds = run.column("clients", "round")
    computation, communication = (run.column("clients", f"{name}_s") for name in ("computation", "communication"))
    total = computation + communication
    # The last row of each round after sorting by (round, seconds) is its slowest client.
    order = np.lexsort((total, rounds))
    last = np.flatnonzero(np.diff(rounds[order], append=np.inf))
    slowest = order[last]
    numbers = run.column("rounds", "round")
    latency = run.column("rounds", "latency_s")[np.searchsorted(numbers, rounds[slowest])]
    chosen = thinned(len(slowest), ROUNDS_OF_A_LINE)
    slowest, downlink = slowest[chosen], np.maximum(latency[chosen] - total[slowest[chosen]], 0.0)
    downlink[downlink < 1e-9 * np.maximum(latency[chosen], 1e-300)] = 0.0
    return {
        "round": whole(rounds[slowest] + 1),
        "client": whole(run.column("clients", "client")[slowest]),
        "computation": floats(computation[slowest]),
        "communication": floats(communication[slowest]),
        "downlink": floats(downlink),
        "of": len(last),
    }


def heat_part(run: RunFiles) -> Part:
    """k, r and the share of the band over clients and rounds; empty if a client does not take part."""
    rounds, clients = (run.column("clients", name).astype(np.int64) for name in ("round", "client"))
    numbers = np.unique(rounds)
    shown = numbers[thinned(len(numbers), ROUNDS_OF_A_MAP)]
    people = thinned(max(run.clients, int(clients.max(initial=0)) + 1), CLIENTS_OF_A_MAP)
    place = _Cells(rounds, clients, shown, people)
    return {
        "rounds": whole(shown + 1),
        "clients": whole(people),
        "of_rounds": len(numbers),
        "of_clients": run.clients,
        "k": matrix(place.fill(run.column("clients", "k"))),
        "r": matrix(place.fill(run.column("clients", "r"))),
        "share": matrix(100.0 * place.fill(run.column("clients", "share"))),
    }


class _Cells:
    """The cells of a (clients, rounds) matrix to which the rows of the clients table belong."""

    def __init__(self, rounds: Ints, clients: Ints, shown: Ints, people: Ints) -> None:
        self.shape = (len(people), len(shown))
        column, row = np.searchsorted(shown, rounds), np.searchsorted(people, clients)
        column, row = np.minimum(column, len(shown) - 1), np.minimum(row, len(people) - 1)
        self.rows = np.flatnonzero((shown[column] == rounds) & (people[row] == clients))
        self.column, self.row = column[self.rows], row[self.rows]

    def fill(self, values: Floats) -> Floats:
        """The matrix with the values in their cells and NaN elsewhere."""
        filled = np.full(self.shape, np.nan)
        filled[self.row, self.column] = values[self.rows]
        return filled


def energy_part(run: RunFiles) -> Part:
    """Joules of every client: the total, the largest of a round, and the budget."""
    client, energy = run.column("clients", "client").astype(np.int64), run.column("clients", "energy_j")
    count = max(run.clients, int(client.max(initial=0)) + 1)
    spent, taken = np.bincount(client, energy, count), np.bincount(client, minlength=count)
    dearest = np.zeros(count)
    np.maximum.at(dearest, client, energy)
    planned = run.setting("allocation.rule", "own") == "joint"
    budget, total = (
        run.setting(f"allocation.energy_{name}_j", None) if planned else None for name in ("budget", "total")
    )
    chosen = thinned(count, CLIENTS_OF_A_BAR)
    return {
        "client": whole(chosen),
        "spent": floats(spent[chosen]),
        "rounds": whole(taken[chosen]),
        "dearest": floats(dearest[chosen]),
        "budget_j": budget if isinstance(budget, int | float) else None,
        "total_j": total if isinstance(total, int | float) else None,
        "of_rounds": run.rounds_done,
        "of_clients": count,
    }


def counts() -> dict[str, str]:
    """The four ways of counting an upload's bits, with their names on the page."""
    dense = {"dense": "dense: every value, 32 bits each"}
    return dense | {name: SCHEMA[column].label for name, column in COUNTED.items()}


def bits_part(run: RunFiles) -> Part:
    """Bits of all uploads, counted in four ways: the paper's, the exact one, coded bytes on the wire, and dense."""
    uploads = float(run.column("rounds", "participants").sum())
    whole_model = float(run.column("rounds", "download_bits").max(initial=0.0))  # differences are shorter
    counted = {name: float(np.nansum(run.column("rounds", COUNTED[name]))) for name in ("paper", "exact")}
    wire = float(np.nansum(run.column("rounds", COUNTED["wire"]))) if run.has("rounds", COUNTED["wire"]) else None
    return {**counted, "wire": wire, "dense": uploads * whole_model, "uploads": uploads}


def accuracy_part(run: RunFiles) -> Part:
    """Every client's accuracy (or other main score) at the last evaluation, and the worst tenth of them."""
    rounds = run.column("evaluations", "round")
    if not len(rounds) and run.withholds:
        raise Lacking(WITHHELD)
    if not len(rounds):
        raise Lacking(f"{run.folder.table('evaluations')} has no row yet; let the run reach its first evaluation")
    last = rounds == rounds.max()
    main, guess = run.main, guess_of(run.main)
    accuracy = run.column("evaluations", main)[last]
    worst = max(1, math.ceil(len(accuracy) / 10))
    worst_first = np.sort(accuracy) if rises(main) else np.sort(accuracy)[::-1]
    return {
        "score": main,
        "round": int(rounds.max()) + 1,
        "client": whole(run.column("evaluations", "client")[last]),
        "accuracy": floats(accuracy),
        "worst": worst,
        "worst_decile": float(worst_first[:worst].mean()),
        "guess": floats(run.world[guess]) if _numbers(run, guess, len(accuracy)) else None,
    }


def _numbers(run: RunFiles, name: str, count: int) -> bool:
    """Whether world.json has a list of `count` numbers under this name."""
    values = run.world.get(name)
    return isinstance(values, list) and len(values) == count and all(isinstance(v, int | float) for v in values)


def labels_part(run: RunFiles) -> Part:
    """Training samples of every label at every client."""
    try:
        counts = np.array(run.world_field("label_counts"), dtype=float)
    except (TypeError, ValueError) as error:
        raise Lacking(f"{run.folder.world} field 'label_counts' is not a table of numbers ({error})") from error
    if not counts.size and run.main != "accuracy":
        raise Lacking("Numbers are predicted here, so there are no labels to count.")
    if counts.ndim != 2 or not counts.size:
        raise Lacking(f"{run.folder.world} field 'label_counts' is not one row of counts per client")
    chosen = thinned(len(counts), CLIENTS_OF_A_MAP)
    return {"clients": whole(chosen), "counts": matrix(counts[chosen]), "of_clients": len(counts)}


def add_part(run: RunFiles, name: str, make: Callable[[RunFiles], Part]) -> Part:
    """The columns of one figure, or {"missing": why}; an error in one figure does not affect the others."""
    try:
        return make(run)
    except Lacking as error:
        return {"missing": str(error)}
    except Exception as error:  # damaged values can cause any error in the array libraries
        message = f"the figure on {name} cannot be drawn from this folder ({type(error).__name__}: {error})"
        run.flaws.append(Flaw(str(run.path), name, message))
        return {"missing": f"{run.path}: {message}"}
