"""Curves of several runs in one picture."""

from __future__ import annotations

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


def draw_curves(
    path: Path, curves: Sequence[Curve], *, title: str, x_label: str, y_label: str, floor: float | None = None
) -> None:
    """Save a PNG of the curves; `floor` is a dashed line that a useful result must clear."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _plot(axes, curves)
    if floor is not None:
        axes.axhline(floor, color="0.45", linestyle="--", linewidth=1, label="per-client majority guess", zorder=1)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    make_folder(path.parent)
    write_atomically(path, lambda partial: figure.savefig(partial, format="png", dpi=150))


def _plot(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw lines with colours and markers that repeat after seven."""
    for number, curve in enumerate(curves):
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=1.6,
        )
