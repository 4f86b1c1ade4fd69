"""The page's data on a run's plans: positions of the devices, excluded clients, quality of the plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanfed.errors import LeanfedError
from leanfed.files import read_json
from leanfed.records import STARVED_BELOW, Floats, Ints
from leanfed.report.packing import floats, thinned, whole
from leanfed.report.parts import ROUNDS_OF_A_LINE, Part
from leanfed.report.read import Flaw, Lacking, RunFiles

SNAPSHOTS = 12  # rounds of the cell map
TRACES = 12  # rounds whose solver steps are shown
DEVICES = 400  # at most, in a round of the cell map


CUT = ("layer", "shared", "private", "seconds", "joules", "gain", "refused")  # what the page shows of a cut


def cuts_part(run: RunFiles) -> Part | None:
    """Every cut of the model and why the run has its own; None where the settings named one."""
    if not run.folder.cuts.is_file():
        return None
    try:
        table = read_json(run.folder.cuts)
        rows = [{name: cut[name] for name in CUT} for cut in table["cuts"]]
        return {"chosen": str(table["chosen"]), "why": str(table["why"]), "cuts": rows}
    except (LeanfedError, KeyError, TypeError) as error:
        run.flaws.append(Flaw(str(run.folder.cuts), "", f"not readable: {error}"))
        return None


def cell_part(run: RunFiles) -> Part:
    """Devices by distance in some rounds, with k, r, share, accuracy and whether they took part."""
    if run.real and not run.fleet.width:
        raise Lacking("Nobody told where the devices of this real fleet stand, so there is no map of them.")
    numbers = np.unique(run.column("fleet", "round").astype(np.int64))
    numbers = numbers[numbers < run.rounds_done]
    if not len(numbers):
        raise Lacking(f"{run.folder.fleet} has no row of a finished round")
    rounds, clients = (run.column("clients", name).astype(np.int64) for name in ("round", "client"))
    plans = {plan["round"]: plan for plan in run.plans}
    distances = _distances(run)
    shown = numbers[thinned(len(numbers), SNAPSHOTS)]
    chosen = thinned(run.clients, DEVICES)
    return {
        "clients": whole(chosen),
        "of_clients": run.clients,
        "radius_m": run.setting("radio.fleet.radius_m", None),
        "moves": "place" not in (run.setting("radio.fleet.hold", None) or ()),
        "snapshots": [
            _snapshot(run, int(number), distances, np.flatnonzero(rounds == number), clients, plans.get(number), chosen)
            for number in shown
        ],
    }


def _distances(run: RunFiles) -> dict[int, Floats]:
    """Round -> distances in m at which path loss alone gives each device's gain; exact if there is no fading."""
    at_1km, per_decade = (run.setting(f"radio.fleet.path_loss_{name}_db") for name in ("at_1km", "per_decade"))
    rounds = run.column("fleet", "round").astype(np.int64)
    loss_db = -10.0 * np.log10(run.column("fleet", "gain"))
    distance = 1000.0 * 10.0 ** ((loss_db - at_1km) / per_decade) if per_decade else np.full(len(rounds), np.nan)
    return {int(number): distance[rounds == number] for number in np.unique(rounds)}


def _snapshot(
    run: RunFiles,
    number: int,
    distances: dict[int, Floats],
    rows: Ints,
    clients: Ints,
    plan: dict[str, Any] | None,
    chosen: Ints,
) -> Part:
    """One round of the cell map."""
    rates = {}
    for name in ("k", "r", "share"):
        values = np.full(run.clients, np.nan)
        values[clients[rows]] = run.column("clients", name)[rows]
        rates[name] = values
    excluded = [entry for entry in (plan or {}).get("excluded", []) if isinstance(entry, dict)]
    starved = np.flatnonzero(rates["k"] < STARVED_BELOW).tolist() if plan else []
    listed = (plan or {}).get("starved")
    starved = sorted({*starved, *listed}) if isinstance(listed, list) else starved
    shown = set(chosen.tolist())
    return {
        "round": number + 1,
        "distance": floats(distances[number][chosen]),
        "k": floats(rates["k"][chosen]),
        "r": floats(rates["r"][chosen]),
        "share": floats(100.0 * rates["share"][chosen]),
        "excluded": [{"client": e["client"], "why": str(e.get("why", ""))} for e in excluded if e["client"] in shown],
        "starved": [client for client in starved if client in shown],
        "accuracy": _accuracy_at(run, number, chosen),
    }


def _accuracy_at(run: RunFiles, number: int, chosen: Ints) -> Part | None:
    """Every client's accuracy at the newest evaluation up to a round."""
    if not run.has("evaluations", "accuracy"):
        return None
    rounds = run.column("evaluations", "round")
    before = rounds[rounds <= number]
    if not len(before):
        return None
    rows = rounds == before.max()
    values = np.full(run.clients, np.nan)
    values[run.column("evaluations", "client")[rows].astype(np.int64)] = run.column("evaluations", "accuracy")[rows]
    return {"round": int(before.max()) + 1, "values": floats(values[chosen])}


def solver_part(run: RunFiles) -> Part:
    """Every round's plan in numbers: gap, deadline, participants, seconds; steps and alternatives of some rounds."""
    plans = run.plans
    if not plans:
        if run.setting("allocation.rule", "own") == "own":
            return {"nothing": "The keep rates of this run are the method's own, so there was nothing to solve."}
        raise Lacking(f"{run.folder.events} has no event 'plan'")
    kept = [plans[place] for place in thinned(len(plans), ROUNDS_OF_A_LINE)]
    columns = {
        "round": whole([plan["round"] + 1 for plan in kept]),
        "participants": floats([_number(plan, "participants") for plan in kept]),
        "excluded": whole([len(plan.get("excluded") or []) for plan in kept]),
    }
    for name in ("relative_gap", "price", "objective", "deadline_s", "k", "seconds", "worth_per_s"):
        values = np.array([_number(plan, name) for plan in kept])
        if np.isfinite(values).any():
            columns[name] = floats(values)
    traced = [plan for plan in plans if plan.get("trace") or plan.get("alternatives")]
    return {
        **columns,
        "solver": str(plans[-1].get("solver", "")),
        "deadline_most_s": run.setting("allocation.deadline_s", None),
        "of": len(plans),
        "words": str(plans[-1].get("words", "")),
        "traces": [_trace(traced[place]) for place in thinned(len(traced), TRACES)] if traced else [],
    }


def _number(plan: dict[str, Any], name: str) -> float:
    value = plan.get(name)
    return float(value) if isinstance(value, int | float) else np.nan


def _trace(plan: dict[str, Any]) -> Part:
    """The steps of Algorithm 2, or the alternatives from which the fast form chose."""
    steps = [step for step in plan.get("trace") or [] if isinstance(step, dict)]
    others = [other for other in plan.get("alternatives") or [] if isinstance(other, dict)]
    return {
        "round": plan["round"] + 1,
        "objective": [_number(step, "objective") for step in steps],
        "residual": [_number(step, "residual") for step in steps],
        "alternatives": [
            {name: _number(other, name) for name in ("k", "deadline_s", "participants", "worth_per_s")}
            for other in others
        ],
        "chosen": {name: _number(plan, name) for name in ("k", "deadline_s", "participants", "worth_per_s")},
    }
