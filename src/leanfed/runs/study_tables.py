"""What a study found: a row for each method at each point of the grid, as JSON, Markdown, LaTeX, CSV and figures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from leanfed.charts.publication import Series, draw_lines
from leanfed.charts.tables import Block, latex, markdown
from leanfed.errors import InputError, LeanfedError
from leanfed.files import make_folder, write_json, write_text
from leanfed.quantities import SCHEMA, guess_of, rises, scores, spent
from leanfed.runs.outcome import Run
from leanfed.runs.statistics import Paired, Spread, mean_ranks, paired
from leanfed.runs.study import Carried, Job, Study

Found = Sequence[tuple[Job, Run]]


def study_results(study: Study, carried: Carried) -> dict[str, Any]:
    """Everything that the tables show, as plain values."""
    if not carried.runs and not carried.failures:
        raise InputError(f"No run of {study.name!r} is finished there. Leave --no-train out, or name another --out.")
    if not carried.runs:
        raise LeanfedError(f"No run of {study.name!r} was carried out. The first reason: {carried.failures[0]}")
    main = carried.runs[0][1].main
    reference = study.reference or next(iter(study.methods), study.name)
    points = list(dict.fromkeys(job.point for job, _ in carried.runs))
    rows = [row for point in points for row in _rows(point, carried.runs, main, reference)]
    blocks = [
        {job.method: run.score for job, run in carried.runs if (job.point, job.seed) == (point, seed)}
        for point in points
        for seed in study.seeds
    ]
    return {
        "name": study.name,
        "score": main,
        "better": "up" if rises(main) else "down",
        "reference": reference,
        "seeds": list(study.seeds),
        "rows": rows,
        "ranks": mean_ranks([block for block in blocks if block], rising=rises(main)),
        "failures": list(carried.failures),
    }


def _rows(point: tuple[tuple[str, str], ...], found: Found, main: str, reference: str) -> list[dict[str, Any]]:
    """One row for each method at a point of the grid."""
    here: dict[str, dict[int, Run]] = {}
    for job, run in found:
        if job.point == point:
            here.setdefault(job.method, {})[job.seed] = run
    scored = {method: {seed: run.score for seed, run in runs.items()} for method, runs in here.items()}
    rows = []
    for method, runs in here.items():
        against = None if method == reference else paired(scored[method], scored.get(reference, {}))
        rows.append(
            {
                "method": method,
                "point": dict(point),
                main: _plain(Spread.of(list(scored[method].values()))),
                "each": {str(seed): value for seed, value in scored[method].items()},
                "difference": None if against is None else _difference(against),
                "worst_decile": _mean([run.summary.get("worst_decile") for run in runs.values()]),
                guess_of(main): _mean([run.summary.get(guess_of(main)) for run in runs.values()]),
                **{name: _mean([run.summary.get(name) for run in runs.values()]) for name in spent(plotted=True)},
            }
        )
    return rows


def _plain(spread: Spread) -> dict[str, Any]:
    half = None if math.isnan(spread.half) else spread.half
    deviation = None if math.isnan(spread.deviation) else spread.deviation
    return {"seeds": spread.count, "mean": spread.mean, "deviation": deviation, "half_interval_95": half}


def _difference(found: Paired) -> dict[str, Any]:
    return {**_plain(found.difference), "p": found.p}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def block_of(results: dict[str, Any]) -> Block:
    """The table: means with their 95 % intervals, differences to the reference, what was spent, mean ranks."""
    main, costs = results["score"], spent(plotted=True)
    keys = list(results["rows"][0]["point"])
    head = [
        *(key.rpartition(".")[2].replace("_", " ") for key in keys),
        *("method", "seeds", f"{SCHEMA[main].label} (95 %)", "deviation"),
        f"minus {results['reference']} (95 %)",
        *("p", "worst decile", SCHEMA[guess_of(main)].label),
        *(cost.narrow for cost in costs.values()),
        "mean rank",
    ]
    rows = []
    for row in results["rows"]:
        gap = row["difference"]
        rows.append(
            [
                *(str(row["point"][key]) for key in keys),
                *(row["method"], str(row[main]["seeds"]), _with_half(row[main]), _number(row[main]["deviation"])),
                "-" if gap is None else _with_half(gap, signed=True),
                "-" if gap is None else f"{gap['p']:.2g}",
                *(_number(row["worst_decile"]), _number(row[guess_of(main)])),
                *(_number(None if row[name] is None else row[name] / cost.scale) for name, cost in costs.items()),
                _number(results["ranks"].get(row["method"]), 3),
            ]
        )
    return Block(results["name"], head, rows)


def _with_half(value: dict[str, Any], *, signed: bool = False) -> str:
    mean = f"{value['mean']:+.4f}" if signed else f"{value['mean']:.4f}"
    return mean if value["half_interval_95"] is None else f"{mean} ± {value['half_interval_95']:.4f}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def write_study(study: Study, carried: Carried, folder: Path) -> dict[str, Any]:
    """Write study.json, table.md, table.tex, runs.csv and a figure for each point of the grid; returns the results."""
    make_folder(folder)
    results = study_results(study, carried)
    block = block_of(results)
    caption = (
        f"{study.name}: means over {len(study.seeds)} seeds with 95 % intervals (Student's t), differences by seed."
    )
    write_json(folder / "study.json", results)
    write_text(folder / "table.md", f"# {study.name}\n\n{markdown(block)}\n")
    write_text(folder / "table.tex", latex([block], caption=caption, label="tab:leanfed-study"))
    write_text(folder / "runs.csv", _csv(carried.runs))
    points = list(dict.fromkeys(job.point for job, _ in carried.runs))
    results["figures"] = [
        str(_draw(point, carried.runs, results["score"], folder, n)) for n, point in enumerate(points)
    ]
    return results


def _csv(found: Found) -> str:
    """One line for each run: where it stands in the study, and its summary."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    keys = [key for key, _ in found[0][0].point]
    names = [name for name, value in found[0][1].summary.items() if not isinstance(value, dict | list)]
    table.writerow(["method", *keys, *names, "folder"])
    for job, run in found:
        point = dict(job.point)
        table.writerow(
            [job.method, *(point[key] for key in keys), *(run.summary.get(name) for name in names), run.folder]
        )
    return text.getvalue()


def _draw(point: tuple[tuple[str, str], ...], found: Found, main: str, folder: Path, number: int) -> Path | None:
    """The main score over rounds, mean and range over seeds, at one point of the grid; None without a common round."""
    lines = []
    for place, method in enumerate(dict.fromkeys(job.method for job, _ in found)):
        runs = [run for job, run in found if (job.method, job.point) == (method, point)]
        tested = [run.rounds.filter(pl.col(main).is_not_null()).select("round", main) for run in runs]
        common = sorted(set.intersection(*(set(table["round"].to_list()) for table in tested))) if tested else []
        if common:
            values = np.stack([table.filter(pl.col("round").is_in(common))[main].to_numpy() for table in tested])
            low, high = (values.min(0), values.max(0)) if len(runs) > 1 else (None, None)
            lines.append(Series(method, np.array(common, dtype=float) + 1, values.mean(0), low, high, place))
    if not lines:
        return None
    path = folder / f"curves-{number}.png"
    draw_lines(path, lines, "rounds", scores()[main][1].picture)
    return path
