"""Curves of several runs in one picture, one panel per pair of quantities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leanfed.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Curve:
    """One line: a label and its points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """Curves over the same axes; `floor` is a dashed line that a useful result must clear."""

    curves: Sequence[Curve]
    x_label: str
    y_label: str
    floor: float | None = None


def draw_panels(path: Path, panels: Sequence[Panel], *, title: str, columns: int) -> None:
    """Save a PNG of the panels, row by row, with one legend for all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.4 * columns, 3.4 * rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for place, panel in zip(axes, panels, strict=True):
        _draw(place, panel)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.suptitle(title)
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    make_folder(path.parent)
    write_atomically(path, lambda partial: figure.savefig(partial, format="png", dpi=150))


def _draw(axes: Axes, panel: Panel) -> None:
    """One panel: lines with colours and markers that repeat after seven."""
    for number, curve in enumerate(panel.curves):
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=3.5,
            linewidth=1.5,
        )
    if panel.floor is not None:
        axes.axhline(panel.floor, color="0.45", linestyle="--", linewidth=1, label="majority guess", zorder=1)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
