"""Tables from plain text cells, as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Rows under the same column heads; the title says what the cells contain."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def markdown(block: Block) -> str:
    """A Markdown table, its title in the first column's head.

    >>> print(markdown(Block("t", ["a", "b"], [["1", "2|3"]])))
    | a | b |
    |---|---|
    | 1 | 2\\|3 |
    """
    lines = [_line(block.head), "|" + "---|" * len(block.head), *(_line(row) for row in block.rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def latex(blocks: Sequence[Block], *, caption: str, label: str, notes: Sequence[str] = ()) -> str:
    """One floating table (package booktabs) with the blocks below each other."""
    width = max(len(block.head) for block in blocks)
    lines = [*(f"% {note}" for note in notes), r"\begin{table*}[htbp]", r"\centering", r"\small"]
    lines += [
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{'l' * width}}}",
        r"\toprule",
    ]
    for number, block in enumerate(blocks):
        lines += [r"\midrule"] if number else []
        if block.title:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textbf{{{escape(block.title)}}}}} \\")
        lines += [_row(block.head, width), r"\midrule", *(_row(row, width) for row in block.rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""])


def _row(cells: Sequence[str], width: int) -> str:
    padded = [*cells, *[""] * (width - len(cells))]
    return " & ".join(escape(cell) for cell in padded) + r" \\"


def escape(text: str) -> str:
    """Text with LaTeX's special characters escaped.

    >>> escape("80 % of a_b~c")
    '80 \\\\% of a\\\\_b$\\\\sim$c'
    """
    safe = re.sub(r"([%&_#${}])", r"\\\1", text.replace("\\", "\0")).replace("~", r"$\sim$")
    return safe.replace("\0", r"\textbackslash{}").replace("^", r"\textasciicircum{}")
