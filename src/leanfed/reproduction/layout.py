"""Numbers of a results file as blocks of a table: ours, followed by the paper's in brackets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leanfed.charts.tables import Block
from leanfed.reproduction.judging import digits


def layout(numbers: Sequence[dict[str, Any]], form: dict[str, Any]) -> list[Block]:
    """Numbers as blocks of a table: ours, followed by the paper's in brackets."""
    blocks: dict[str, dict[str, dict[str, str]]] = {}
    heads: dict[str, dict[str, None]] = {}
    for number in numbers:
        labels = number["labels"]
        block = labels.get(form["block"], "")
        row = ", ".join(labels[name] for name in form["rows"] if name in labels)
        column = ", ".join(labels[name] for name in form["columns"] if name in labels) or "value"
        heads.setdefault(block, {}).setdefault(column)
        blocks.setdefault(block, {}).setdefault(row, {})[column] = cell_text(number)
    return [
        Block(
            block,
            [", ".join(form["rows"]), *heads[block]],
            [[row, *(cells.get(column, "-") for column in heads[block])] for row, cells in rows.items()],
        )
        for block, rows in blocks.items()
    ]


def cell_text(number: dict[str, Any]) -> str:
    """Mean, range if there are several seeds, and the paper's number in brackets."""
    ours = "n.r." if number["ours"] else "-"
    if number["mean"] is not None:
        ours = digits(number["mean"])
        if len(number["ours"]) > 1:
            ours += f" ({digits(number['range'][0])}-{digits(number['range'][1])})"
    return ours if number["published"] is None else f"{ours} [{digits(number['published'])}]"
