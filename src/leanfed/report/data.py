"""The data of a report page as one plain object, the only input of the page's script."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from leanfed.charts.palette import ON_DARK, OUR_DASH, method_look
from leanfed.errors import StorageError
from leanfed.quantities import SCHEMA, costs, guess_of, main_score, scores
from leanfed.report import measured, parts, planned
from leanfed.report.curves import RunCurve, band, costs_of, final_values, mean_of, metrics, run_curve
from leanfed.report.groups import Group, dataset_name, group_runs, method_name, partition_name
from leanfed.report.packing import clean
from leanfed.report.published import Published, differences
from leanfed.report.read import Flaw, Lacking, RunFiles, read_run
from leanfed.results import find_runs, leaves

FORMAT = 1
TARGETS = (0.8, 0.9)
FIGURES = {
    "time": parts.time_part,
    "measured": measured.measured_part,
    "heat": parts.heat_part,
    "cell": planned.cell_part,
    "energy": parts.energy_part,
    "bits": parts.bits_part,
    "clients": parts.accuracy_part,
    "labels": parts.labels_part,
    "solver": planned.solver_part,
}
PAGE_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot") * 3
SOURCES = {
    "paper": "as in the paper",
    "estimated": "estimated from the paper's results or on a run",
    "assumed": "assumed, because the paper leaves it open or its value does not reach its results",
    "chosen": "chosen for this run",
    "default": "left as it is when nothing is said",
}


def report_data(
    paths: Sequence[Path],
    *,
    targets: Sequence[float] | None = None,
    title: str | None = None,
    results: Path | None = None,
) -> dict[str, Any]:
    """Everything that the page shows about the runs in or below the given folders, as plain JSON values.

    `results` is the folder in which `leanfed reproduce` wrote the published values.
    """
    published = Published(results)
    runs = [read_run(folder) for folder in _unique(paths)]
    curves = [_curve(run) for run in runs]
    groups = group_runs(runs)
    group_of = {member: number for number, group in enumerate(groups) for member in group.members}
    shown = [_run(run, curves[place], group_of[place]) for place, run in enumerate(runs)]
    for entry, run in zip(shown, runs, strict=True):
        entry["label"] = _run_label(groups[entry["group"]], run)
    main = main_score({name for curve in curves if curve for name in curve.value})
    data = {
        "format": FORMAT,
        "title": title or _title(groups, runs),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": version("leanfed"),
        "costs": _costs(),
        "main": _main(main),
        "scores": _scores(main, curves),
        "counts": parts.counts(),
        "sources": SOURCES,
        "groups": _looks([_group(group, runs) for group in groups]),
        "runs": shown,
        "bands": _bands(groups, curves),
        "targets": [
            _target(target, groups, runs, curves, published, main)
            for target in (targets if targets is not None else TARGETS if main == "accuracy" else ())
        ],
        "flaws": [flaw.to_json() for flaws in (*(run.flaws for run in runs), published.flaws) for flaw in flaws],
    }
    result: dict[str, Any] = clean(data)
    return result


def _costs() -> list[dict[str, Any]]:
    """Every cost: its axis, the column that it sums, its unit, and its names in tables and curves."""
    plotted = {axis: place for place, axis in enumerate(costs(plotted=True))}
    return [
        {
            "column": quantity.name,
            "summed": quantity.over_rounds == "sum",
            **{name: getattr(cost, name) for name in ("axis", "scale", "unit", "short", "title", "head", "narrow")},
            "plotted": plotted.get(axis),  # its position among the page's choices
        }
        for axis, (quantity, cost) in costs().items()
    ]


def _main(name: str) -> dict[str, Any]:
    """The score by which runs are judged: its labels, and those of the guess that they must beat."""
    quantity, score = scores()[name]
    guess = guess_of(name)
    return {
        "name": name,
        "label": quantity.label,
        "picture": score.picture,
        "better": score.better,
        "guess": guess,
        "guess_label": SCHEMA[guess].label,
        "shown": [name, "worst_decile", guess],  # columns of the summary
    }


def _scores(main: str, curves: Sequence[RunCurve | None]) -> dict[str, dict[str, Any]]:
    """Every score by column, the main one first: its label and, if the page draws its curves, their title."""
    there = {name for curve in curves if curve for name in curve.value} or {main, "loss", "worst_decile"}
    drawn = {
        name: {"title": score.title if name in there else "", "better": score.better}
        for name, (_, score) in scores().items()
    }
    return {
        quantity.name: {"label": quantity.label, **drawn.get(quantity.name, {"title": ""})}
        for quantity in sorted(SCHEMA.values(), key=lambda quantity: quantity.name != main)
        if quantity.over_rounds == "last" and quantity.in_summary
    }


def _unique(paths: Sequence[Path]) -> list[Any]:
    """The run folders, each once."""
    found = {folder.path.resolve(): folder for folder in find_runs(list(paths))}
    if not found:
        raise StorageError("No run folder is named. For example: leanfed report runs/demo")
    return list(found.values())


def _curve(run: RunFiles) -> RunCurve | None:
    """A run's curve; if there is none, the reason is added to its flaws."""
    try:
        return run_curve(run)
    except Lacking as error:
        run.flaws.append(Flaw(str(run.folder.table("rounds")), "accuracy", str(error)))
        return None


def _run(run: RunFiles, curve: RunCurve | None, group: int) -> dict[str, Any]:
    """The figures and facts of one run."""
    return {
        "group": group,
        "path": str(run.path),
        "seed": run.seed,
        "name": run.name,
        "finished": run.folder.finished,
        "rounds": run.rounds_done,
        "of_rounds": run.setting("rounds", None),
        "final": final_values(run, curve),
        "curve": curve.packed() if curve else None,
        **{name: parts.add_part(run, name, make) for name, make in FIGURES.items()},
        "settings": _settings(run),
        "cuts": planned.cuts_part(run),
        "environment": _environment(run),
        "command": run.environment.get("command"),
        "again": f"leanfed run {shlex.quote(str(run.folder.settings))} --out {shlex.quote(str(run.path) + '-again')}",
    }


def _run_label(group: Group, run: RunFiles) -> str:
    """A label from the run's group and seed."""
    return f"{group.label}, seed {run.seed}" if run.seed is not None else group.label


def _group(group: Group, runs: Sequence[RunFiles]) -> dict[str, Any]:
    """What all runs of a group share."""
    first = runs[group.members[0]]
    algorithm = str(first.setting("algorithm.name", "unknown"))
    return {
        "label": group.label,
        "runs": list(group.members),
        "method": method_name(
            algorithm, first.setting("allocation.rule", "own"), first.setting("allocation.form", "fast")
        ),
        "dataset": dataset_name(first.setting("task.dataset", None)),
        "model": first.setting("task.model", None),
        "partition": partition_name(first),
        "clients": first.clients,
    }


def _looks(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups with the colours of their methods; a second group of a method has its colour and another dash."""
    met: Counter[str] = Counter()
    for group in groups:
        look = method_look(group["label"], method=group["method"])
        if look is not None:
            dash = PAGE_DASHES[(look.dash != OUR_DASH) + met[look.colour]]
            met[look.colour] += 1
            group["look"] = {"colour": look.colour, "dark": ON_DARK.get(look.colour, look.colour), "dash": dash}
    return groups


def _bands(groups: Sequence[Group], curves: Sequence[RunCurve | None]) -> list[dict[str, Any]]:
    """Mean and band of every group over every axis."""
    found = []
    for number, group in enumerate(groups):
        members = [curve for member in group.members if (curve := curves[member]) is not None]
        for axis in costs():
            for metric in metrics():
                drawn = band(members, axis, metric)
                if drawn is not None:
                    found.append({"group": number, "axis": axis, "metric": metric, **drawn.packed()})
    return found


def _target(
    target: float,
    groups: Sequence[Group],
    runs: Sequence[RunFiles],
    curves: Sequence[RunCurve | None],
    published: Published,
    main: str,
) -> dict[str, Any]:
    """What it cost every group to reach a target for good: every seed, the mean; and, as the paper has it, at first."""
    rows = []
    for number, group in enumerate(groups):
        members = [curve for member in group.members if (curve := curves[member]) is not None]
        spent, first = (costs_of(members, target, first=at_first, main=main) for at_first in (False, True))
        row: dict[str, Any] = {
            "group": number,
            "seeds": spent,
            "mean": {axis: mean_of(values) for axis, values in spent.items()},
            "reached": sum(value is not None for value in spent["rounds"]),
            "first": {axis: mean_of(values) for axis, values in first.items()},
            "of": len(members),
        }
        found = published.time_to(runs[group.members[0]], target)
        rows.append({**row, "paper": differences(found, row["first"]["latency_s"])} if found else row)
    return {"target": target, "rows": rows}


def _settings(run: RunFiles) -> list[dict[str, Any]]:
    """Every setting with its value, its source and its meaning."""
    sources = run.world.get("sources")
    sources = sources if isinstance(sources, dict) else {}
    rows = []
    for key, value in leaves(run.settings):
        about = sources.get(key)
        about = about if isinstance(about, dict) else {}
        rows.append(
            {
                "key": key,
                "value": _shown(value),
                "source": about.get("source", "not recorded"),
                "meaning": about.get("meaning", ""),
            }
        )
    return rows


def _shown(value: Any) -> str:
    """A value as a settings file writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(inner) for inner in value) + "]"
    return "none" if value is None else str(value)


def _environment(run: RunFiles) -> list[list[str]]:
    """(name, value) of versions and machine."""
    known = run.environment
    versions = known.get("versions")
    lines: list[list[Any]] = [
        ["Python", known.get("python")],
        ["machine", known.get("platform")],
        ["commit", known.get("commit")],
    ]
    lines += [[name, number] for name, number in versions.items()] if isinstance(versions, dict) else []
    return [[name, str(value)] for name, value in lines if value is not None]


def _title(groups: Sequence[Group], runs: Sequence[RunFiles]) -> str:
    names = [group.label for group in groups]
    if len(names) == 1:
        return f"{names[0]} on {dataset_name(runs[0].setting('task.dataset', None)) or 'unknown data'}"
    sets = sorted({f"{dataset_name(run.setting('task.dataset', None)) or 'unknown data'}" for run in runs})
    return f"{len(names)} methods on {' and '.join(sets[:2])}{' and others' if len(sets) > 2 else ''}"
