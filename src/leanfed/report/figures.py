"""Figures and LaTeX tables for papers, from the same data as the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from leanfed.charts.publication import Map, Series, draw_bars, draw_lines, draw_maps
from leanfed.charts.tables import Block, latex
from leanfed.files import make_folder, write_text
from leanfed.quantities import SCHEMA, costs, scores, spent
from leanfed.report.packing import unpacked

Data = Mapping[str, Any]
COUNTS: Final = {"dense": "dense", "paper": "paper's count", "exact": "exact count", "wire": "coded"}


def write_figures(data: Data, folder: Path, kind: str) -> list[Path]:
    """All figures (`kind` is pdf or png) and tables of a report; returns the files."""
    make_folder(folder)
    written = [*_curves(data, folder, kind), *_bars(data, folder, kind), *_clients(data, folder, kind)]
    written += [*_plans(data, folder, kind), *_measured(data, folder, kind)]
    targets = (("targets.tex", _targets_table(data)),) if data["targets"] else ()
    for name, text in (("runs.tex", _runs_table(data)), *targets):
        write_text(folder / name, text)
        written.append(folder / name)
    return written


def _curves(data: Data, folder: Path, kind: str) -> list[Path]:
    """Every metric over every cost, mean and band over seeds."""
    written = []
    for metric, (_, score) in scores().items():
        for axis, (_, cost) in costs(plotted=True).items():
            bands = [band for band in data["bands"] if (band["axis"], band["metric"]) == (axis, metric)]
            lines = [_line(data, band) for band in bands]
            if lines:
                path = folder / f"{metric.replace('_', '-')}-{_slug(cost.short)}.{kind}"
                floor = _floor(data) if metric == data["main"]["name"] else None
                draw_lines(path, lines, cost.title, score.picture, floor=floor, guess=data["main"]["guess_label"])
                written.append(path)
    return written


def _line(data: Data, band: Mapping[str, Any]) -> Series:
    group = data["groups"][band["group"]]
    x, mean, low, high = (unpacked(band[name]) for name in ("x", "mean", "low", "high"))
    several = len(group["runs"]) > 1
    look = {"look": band["group"], "method": group["method"]}
    return Series(_text(group["label"]), x, mean, *((low, high) if several else ()), **look)


def _floor(data: Data) -> tuple[float, float] | None:
    """The lowest and the highest score of the best constant guess over the runs."""
    known = [guess for run in data["runs"] if (guess := run["final"][data["main"]["guess"]]) is not None]
    return (min(known), max(known)) if known else None


def _means(data: Data, part: str, of: Any) -> tuple[list[str], list[dict[str, float]]]:
    """Labels of the groups whose runs have a part, and the means over runs of the values that `of` takes from it."""
    names, found = [], []
    for group in data["groups"]:
        values = [
            of(data["runs"][place][part]) for place in group["runs"] if "missing" not in data["runs"][place][part]
        ]
        if values:
            names.append(_text(group["label"]))
            found.append({key: float(np.mean([value[key] for value in values])) for key in values[0]})
    return names, found


def _bars(data: Data, folder: Path, kind: str) -> list[Path]:
    """Bits of an upload by four ways of counting, and the slowest clients' seconds by activity."""

    def bits(part: Mapping[str, Any]) -> dict[str, float]:
        return {key: np.nan if part[key] is None else part[key] / part["uploads"] / 1e3 for key in COUNTS}

    def seconds(part: Mapping[str, Any]) -> dict[str, float]:
        return {key: float(unpacked(part[key]).mean()) for key in ("computation", "communication", "downlink")}

    written = []
    names, found = _means(data, "bits", bits)
    if names:
        parts = {label: [row[key] for row in found] for key, label in COUNTS.items()}
        known = {label: values for label, values in parts.items() if np.isfinite(values).any()}
        draw_bars(folder / f"bits.{kind}", names, known, "kilobits per upload")
        written.append(folder / f"bits.{kind}")
    names, found = _means(data, "time", seconds)
    if names:
        labels = {"computation": "computation", "communication": "upload", "downlink": "broadcast"}
        parts = {label: [row[key] for row in found] for key, label in labels.items() if any(row[key] for row in found)}
        draw_bars(folder / f"time.{kind}", names, parts, "round of the slowest client [s]", stacked=True)
        written.append(folder / f"time.{kind}")
    return written


def _clients(data: Data, folder: Path, kind: str) -> list[Path]:
    """Every client's accuracy, lowest first; each rank is averaged over seeds."""
    lines = []
    for number, group in enumerate(data["groups"]):
        parts = [data["runs"][place]["clients"] for place in group["runs"]]
        ranked = [np.sort(unpacked(part["accuracy"])) for part in parts if part.get("score") == data["main"]["name"]]
        ranked = [values if data["main"]["better"] == "up" else values[::-1] for values in ranked]
        ranked = [values for values in ranked if len(values) == len(ranked[0])]
        if ranked:
            x, values = 100.0 * (np.arange(len(ranked[0])) + 0.5) / len(ranked[0]), np.stack(ranked)
            low, high = (values.min(axis=0), values.max(axis=0)) if len(ranked) > 1 else (None, None)
            lines.append(Series(_text(group["label"]), x, values.mean(axis=0), low, high, number, group["method"]))
    if not lines:
        return []
    draw_lines(folder / f"clients.{kind}", lines, "clients, worst first [%]", data["main"]["picture"], shaded=10.0)
    return [folder / f"clients.{kind}"]


def _plans(data: Data, folder: Path, kind: str) -> list[Path]:
    """k, r and bandwidth shares of the first run of every group that was planned, and the labels of its clients."""
    written = []
    for group in data["groups"]:
        run = data["runs"][group["runs"][0]]
        heat, labels = run["heat"], run["labels"]
        if "round" in run["solver"] and "missing" not in heat:
            x, y = unpacked(heat["rounds"]), unpacked(heat["clients"])
            names = {"k": "k", "r": "r", "share": "share of band [%]"}
            maps = [Map(unpacked(heat[key]), x, y, label) for key, label in names.items()]
            written.append(folder / f"plan-{_slug(group['label'])}.{kind}")
            draw_maps(written[-1], maps, "round", "client")
        if "missing" not in labels and group is data["groups"][0]:
            counts = unpacked(labels["counts"]).T
            filled = np.where(counts > 0.5, counts, np.nan)
            written.append(folder / f"labels.{kind}")
            drawn = Map(filled, unpacked(labels["clients"]), np.arange(len(filled), dtype=float), "samples")
            draw_maps(written[-1], [drawn], "client", "label")
    return written


def _measured(data: Data, folder: Path, kind: str) -> list[Path]:
    """Predicted and measured seconds of the rounds of every run on a real fleet."""
    written = []
    for run in data["runs"]:
        part = run["measured"]
        if "round" in part:
            x = unpacked(part["round"])
            lines = [Series(name, x, unpacked(part[f"{name}_s"])) for name in ("predicted", "measured")]
            written.append(folder / f"measured-{_slug(run['label'])}.{kind}")
            draw_lines(written[-1], lines, "round", "time of the round [s]")
    return written


def _runs_table(data: Data) -> str:
    """Final values of every method, means over seeds."""
    rates, spends = (data["main"]["name"], "worst_decile"), spent(plotted=True)
    labels = [*(SCHEMA[name].label for name in rates), *(cost.narrow for cost in spends.values())]
    rows = []
    for group in data["groups"]:
        finals = [data["runs"][place]["final"] for place in group["runs"]]
        cells = [_cell([final[name] for final in finals if final.get(name) is not None], 3) for name in rates]
        for name, cost in spends.items():
            cells.append(_cell([final[name] / cost.scale for final in finals if final.get(name) is not None], None))
        rows.append([group["label"], str(len(finals)), *cells])
    head = ["method", "seeds", *labels]
    return latex([Block("", head, rows)], caption="Final results, means over seeds", label="tab:leanfed-runs")


def _targets_table(data: Data) -> str:
    """The cost of every target, means over seeds, and the paper's time if there is one."""
    paper = any("paper" in row for target in data["targets"] for row in target["rows"])
    shown = {axis: cost.narrow for axis, (_, cost) in costs().items() if cost.plotted}
    head = ["method", *shown.values(), *(["paper's time [s]"] if paper else [])]
    blocks = []
    for target in data["targets"]:
        rows = []
        for row in target["rows"]:
            label = data["groups"][row["group"]]["label"]
            cells = [_cost(row, axis) for axis in shown]
            published = [f"{row['paper']['seconds']:.4g}" if "paper" in row else "-"] if paper else []
            rows.append([label, *cells, *published])
        main, value = data["main"], target["target"]
        aim = f"{100 * value:g} % accuracy" if main["name"] == "accuracy" else f"a {main['label']} of {value:g}"
        blocks.append(Block(f"to {aim}, sustained (first crossing)", head, rows))
    return latex(blocks, caption=f"Cost of reaching a target {data['main']['label']}", label="tab:leanfed-targets")


def _cost(row: Mapping[str, Any], axis: str) -> str:
    if row["mean"][axis] is None and row["reached"] == row["of"] > 0:  # rows of an older version lack this cost
        return "-"
    if row["mean"][axis] is None:
        first = "not reached" if row["first"][axis] is None else f"never ({row['first'][axis]:.4g})"
        return f"{row['reached']} of {row['of']} seeds" if row["reached"] else first
    first = row["first"][axis]
    return f"{row['mean'][axis]:.4g}" + ("" if first is None else f" ({first:.4g})")


def _cell(values: list[float], decimals: int | None) -> str:
    """The mean, with the range if there are several seeds."""
    if not values:
        return "-"

    def shown(value: float) -> str:
        return f"{value:.{decimals}f}" if decimals is not None else f"{value:.4g}"

    span = f" ({shown(min(values))} to {shown(max(values))})" if len(values) > 1 else ""
    return shown(float(np.mean(values))) + span


def _text(label: str) -> str:
    """A label escaped for matplotlib, where $ starts a formula and a leading _ hides a line from the legend."""
    safe = label.replace("$", r"\$")
    return f" {safe}" if safe.startswith("_") else safe


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "run"
