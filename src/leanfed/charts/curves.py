"""Curves of several runs in one figure, one panel per pair of quantities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanfed.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
MOST_MARKERS = 15  # on a curve; more would hide the line


@dataclass(frozen=True)
class Curve:
    """One line: a label and its points; colour and dash follow from its position if they are not given."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int | None = None
    dash: str = "-"


@dataclass(frozen=True)
class Panel:
    """Curves over the same axes; `floor` is a dashed line that a useful result must clear."""

    curves: Sequence[Curve]
    x_label: str
    y_label: str
    floor: float | None = None
    title: str = ""
    floor_label: str = "majority guess"
    y_log: bool = False


def draw_panels(path: Path, panels: Sequence[Panel], *, title: str, columns: int) -> None:
    """Save a figure (PNG or PDF, by its ending) of the panels, row by row, with a shared legend where possible."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    shared = any({curve.label for curve in panel.curves} == set(labels) for panel in panels)
    columns, rows = min(columns, len(panels)), math.ceil(len(panels) / columns)
    height = 3.4 * rows + 0.8 if shared else 4.2 * rows + 0.3  # in inches
    figure = Figure(figsize=(4.4 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    first: dict[str, Axes] = {}  # quantity -> its first panel, whose axis later panels share
    for place, panel in zip(axes, panels, strict=False):
        if shared and first.setdefault(panel.y_label, place) is not place:
            place.sharey(first[panel.y_label])
        _draw(place, panel, labels)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    figure.suptitle(title)
    _legends(figure, list(axes[: len(panels)]), shared=shared)
    make_folder(path.parent)
    # Without a date in the file, the same curves give the same bytes.
    dated = {"CreationDate": None} if path.suffix == ".pdf" else {}
    write_atomically(path, lambda partial: figure.savefig(partial, format=path.suffix[1:], dpi=150, metadata=dated))


def _legends(figure: Figure, axes: Sequence[Axes], *, shared: bool) -> None:
    """One legend below all panels, or one below each; never on top of a curve."""
    look: dict[str, Any] = {"frameon": False, "fontsize": "small"}
    if not shared:
        for place in axes:
            place.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, **look)
        return
    handles, labels = max((place.get_legend_handles_labels() for place in axes), key=lambda found: len(found[1]))
    figure.legend(handles, labels, loc="outside lower center", ncols=4, **look)


def _draw(axes: Axes, panel: Panel, labels: Sequence[str]) -> None:
    """One panel: a line's place among all labels gives its colour, which repeats after seven, and its marker."""
    for curve in panel.curves:
        number = labels.index(curve.label)
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=COLOURS[(number if curve.colour is None else curve.colour) % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=curve.dash,
            markersize=3.5,
            markevery=max(1, len(curve.x) // MOST_MARKERS),
            linewidth=1.5,
        )
    if panel.floor is not None:
        axes.axhline(panel.floor, color="0.45", linestyle="--", linewidth=1, label=panel.floor_label, zorder=1)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    axes.locator_params(axis="x", nbins=6)  # so that five-digit numbers do not overlap
    if panel.y_log:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
