"""The page of one table or figure, README.md in its results folder: what was run, its claims, its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanfed.charts.tables import Block, markdown
from leanfed.reproduction.layout import layout

FILES = ("results.json", "numbers.parquet", "table.tex", "curves.parquet", "figure.pdf")
HEAD = "Made by `{command}`; do not edit. Words are explained in [RESULTS.md](../../RESULTS.md#words)."


def entry_text(results: dict[str, Any], folder: Path) -> str:
    """One entry, from the content of its results.json; links are relative to its folder."""
    lines = [f"# {results['title']}", "", HEAD.format(command=results["command"]), "", f"{_about(results)}", ""]
    lines += [f"Failed run: {text}" for text in results["failures"]]
    if results["claims"]:
        lines += [_claims(results), ""]
    if (folder / "figure.png").is_file():
        lines += [f"![{results['title']}](figure.png)", ""]
    wanted = results["layout"]["page"]
    for block in layout(results["numbers"], results["layout"]):
        if not wanted or block.title in wanted:
            lines += [*([f"{block.title}:", ""] if block.title else []), markdown(block), ""]
    there = [f"[{name}]({name})" for name in FILES if (folder / name).is_file()]
    return "\n".join([*lines, f"Files: {', '.join(there)}.", ""])


def _about(results: dict[str, Any]) -> str:
    """Where it stands in the paper, what was run, and what it took."""
    seeds = ", ".join(map(str, results["seeds"]))
    words = [f"In the paper: {results['place']}."] if results["place"] != "not in the paper" else ["Not in the paper."]
    words += [f"Settings: {results['settings']}."] if results["settings"] else []
    words += [f"Reduced: {results['reduced']}."] if results["reduced"] else []
    words += [f"Seeds: {seeds}; {results['runs']} runs, {results['core_minutes']:.0f} minutes of one core."]
    if results["runs_missing"]:
        words.append(f"{results['runs_missing']} of these runs are missing.")
    if results.get("made_by") is None and results["runs"]:
        words.append("Made with version 0.1.0, whose sums had other last bits.")
    return " ".join(words)


def _claims(results: dict[str, Any]) -> str:
    rows = [[c["claim"], c["paper"], c["ours"], verdict_text(c)] for c in results["claims"]]
    return markdown(Block("", ["claim", "paper", "ours", "verdict"], rows))


def verdict_text(claim: dict[str, Any], *, reason: bool = True) -> str:
    """A verdict in bold if there is one, with its reason."""
    word = claim["verdict"] if claim["verdict"] == "not judged" else f"**{claim['verdict']}**"
    return f"{word}: {claim['reason']}" if reason and claim["reason"] else word
