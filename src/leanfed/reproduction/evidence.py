"""What a reproduction writes: results/NAME/ with results.json, Parquet files, figures and a LaTeX table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from leanfed.charts.curves import Curve, Panel, draw_panels
from leanfed.charts.tables import latex
from leanfed.files import make_folder, read_json, write_text
from leanfed.reproduction.catalogue import GUESS, Entry, Line, Measured
from leanfed.reproduction.entry_page import entry_text
from leanfed.reproduction.judging import BAD, Book, Number, key_of, plain
from leanfed.reproduction.layout import layout
from leanfed.results import read_parquet, write_table

FORMAT = 1
RESULTS, CURVES, PAGE = "results.json", "curves.parquet", "README.md"
ABOUT = ("version", "seeds", "runs", "runs_missing", "failures", "core_minutes", "made_by")  # of a reproduction


def write_evidence(
    folder: Path, name: str, entry: Entry, measured: Measured, *, about: dict[str, Any]
) -> dict[str, Any]:
    """Write all files of one entry; returns the content of results.json, which docs/results.md describes."""
    make_folder(folder)
    book = entry.book(measured)
    results = {
        "format": FORMAT,
        "name": name,
        "title": entry.title,
        "place": entry.place,
        "command": f"leanfed reproduce {name}",
        "settings": entry.settings,
        "reduced": entry.reduced,
        **about,
        "claims": claims_of(entry, book),
        "layout": {
            "rows": entry.form.rows,
            "columns": entry.form.columns,
            "block": entry.form.block,
            "page": entry.form.page,
        },
        "numbers": [number_of(number) for number in book.numbers],
    }
    write_numbers(folder, book)
    write_curves(folder, entry, measured.lines, guesses(book))
    blocks = layout(results["numbers"], results["layout"])
    if blocks:
        notes = ["ours: mean over seeds, the paper's number in brackets; n.r.: not reached"]
        write_text(folder / "table.tex", latex(blocks, caption=entry.title, label=f"tab:leanfed-{name}", notes=notes))
    write_text(folder / RESULTS, dumped(results))
    write_text(folder / PAGE, entry_text(results, folder))
    return results


def judge_again(folder: Path, entry: Entry) -> dict[str, Any]:
    """Judge the measured numbers of a results file by the current claims and published numbers; redraws figures."""
    before = read_json(folder / RESULTS)
    lines, known = lines_of(folder, entry), measured_of(before).values
    there = {key_of(labels) for labels, _, _ in known}
    read = [(labels, before["seeds"][0], v) for labels, v in entry.read_off(lines) if key_of(labels) not in there]
    measured = Measured([*known, *read], lines)
    return write_evidence(folder, before["name"], entry, measured, about={k: before.get(k) for k in ABOUT})


def lines_of(folder: Path, entry: Entry) -> list[Line]:
    """The curves of a results folder, in the order in which they were written."""
    if not (folder / CURVES).is_file():
        return []
    groups = read_parquet(folder / CURVES).group_by("panel", "label", maintain_order=True)
    return [
        Line(str(panel), str(label), rows[entry.form.x_column].to_list(), rows["value"].to_list())
        for (panel, label), rows in groups
    ]


def measured_of(results: dict[str, Any]) -> Measured:
    """The measured numbers of a results file."""
    return Measured(
        [
            (number["labels"], seed, value)
            for number in results["numbers"]
            for seed, value in zip(number["seeds"], number["ours"], strict=True)
        ]
    )


def claims_of(entry: Entry, book: Book) -> list[dict[str, Any]]:
    """Every claim with the paper's result, ours, and the verdict with its reason."""
    found = []
    for claim, verdict in entry.judged(book):
        told = plain(verdict)
        if told["verdict"] in BAD and claim.why:
            told["reason"] = f"{claim.why} ({told['reason']})"
        found.append(
            {
                "claim": claim.text,
                "form": claim.form,
                "kind": claim.rule.kind,
                "rule": claim.rule.says(),
                "paper": claim.paper,
                **told,
            }
        )
    return found


def number_of(number: Number) -> dict[str, Any]:
    """A number for JSON: labels, the published value, each seed's value, their mean, range and 95 % interval."""
    values = [value for value in number.ours.values() if value is not None]
    whole = bool(values) and len(values) == len(number.ours)
    return {
        "labels": dict(number.labels),
        "published": number.published,
        "seeds": list(number.ours),
        "ours": list(number.ours.values()),
        "mean": number.mean,
        "range": [min(values), max(values)] if whole else None,
        "interval": number.interval,
    }


def dumped(results: dict[str, Any]) -> str:
    """Readable JSON: one line for each field of a claim and one for each number."""
    numbers = ",\n".join(f"    {json.dumps(number, allow_nan=False)}" for number in results["numbers"])
    rest = json.dumps({**results, "numbers": []}, indent=2, allow_nan=False)
    return rest.replace('"numbers": []', '"numbers": [\n' + numbers + "\n  ]") + "\n"


def write_numbers(folder: Path, book: Book) -> None:
    """One row per number and seed, labels as columns."""
    names = sorted({name for number in book.numbers for name in number.labels})
    rows = [
        {
            **{name: number.labels.get(name) for name in names},
            "published": number.published,
            "seed": seed,
            "value": value,
        }
        for number in book.numbers
        for seed, value in (*number.ours.items(), *(() if number.ours else ((None, None),)))
    ]
    schema = {**dict.fromkeys(names, pl.String), "published": pl.Float64, "seed": pl.Int64, "value": pl.Float64}
    write_table(folder / "numbers.parquet", pl.DataFrame(rows, schema=schema))


def guesses(book: Book) -> dict[str, float]:
    """The majority guess of every partition (or panel) that has one, as a mean over seeds."""
    found = (number for number in book.numbers if GUESS in number.labels.values() and number.mean is not None)
    return {number.labels.get("partition") or number.labels["panel"]: float(number.mean or 0.0) for number in found}


def write_curves(folder: Path, entry: Entry, lines: Sequence[Line], floors: Mapping[str, float]) -> None:
    """The points of a figure as Parquet, and the figure as PNG and PDF; `floors` are the panels' majority guesses."""
    if not lines:
        return
    points = [
        {"panel": line.panel, "label": line.label, entry.form.x_column: x, "value": y}
        for line in lines
        for x, y in zip(line.x, line.y, strict=True)
    ]
    write_table(folder / CURVES, pl.DataFrame(points))
    wanted = dict.fromkeys([*entry.form.panels, *(line.panel for line in lines)])
    wanted = {name: None for name in wanted if any(line.panel == name for line in lines)}
    panels = [
        Panel(
            [
                Curve(ln.label, ln.x, ln.y, *entry.form.looks.get(ln.label, (None, "-")))
                for ln in lines
                if ln.panel == name
            ],
            entry.form.x_label,
            entry.form.y_label,
            floor=floors.get(name, floors.get(name.partition(") ")[2])),  # a panel "(a) Class-4", or a partition
            title=name,
            y_log=entry.form.y_log,
        )
        for name in wanted
    ]
    title = entry.title.replace("against latency", "against simulated time")  # as the axis has it
    for ending in ("png", "pdf"):
        # Three in a row leave no place empty, nor do four in two rows; of six places the sixth takes the legend.
        draw_panels(folder / f"figure.{ending}", panels, title=title, columns=3 if len(panels) in (3, 5, 6) else 2)
