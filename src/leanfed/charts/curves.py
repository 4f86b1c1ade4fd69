"""Curves of several runs in one figure, one panel per pair of quantities."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leanfed.charts.palette import COLOURS, method_look, shade
from leanfed.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
MOST_MARKERS = 8  # on a curve; more would hide the line
LETTERS = 48  # of a title that fit above a panel
SQUASHED = 20.0  # an axis along which one curve ends so many times later than another is logarithmic


@dataclass(frozen=True)
class Curve:
    """One line, with a band around it where `low` and `high` are given.

    A label that names a method has that method's colour; for others it is the one given, else by position.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int | None = None
    dash: str = "-"
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """Curves over the same axes; `floor` is what a useful result must clear: a dashed line, or a range over seeds."""

    curves: Sequence[Curve]
    x_label: str
    y_label: str
    floor: float | tuple[float, float] | None = None
    title: str = ""
    floor_label: str = "majority guess"
    y_log: bool = False

    @property
    def x_log(self) -> bool:
        """Whether a curve ends so early that a linear axis would squash it to a line."""
        ends = [max(curve.x) for curve in self.curves if len(curve.x)]
        return bool(ends) and min(ends) > 0 and max(ends) > SQUASHED * min(ends) and self.least_x > 0

    @property
    def least_x(self) -> float:
        """Where the first curve begins."""
        return min((min(curve.x) for curve in self.curves if len(curve.x)), default=0.0)


def draw_panels(path: Path, panels: Sequence[Panel], *, title: str, columns: int) -> None:
    """Save a figure (PNG or PDF, by its ending) of the panels, row by row, with a shared legend where possible."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    shared = any({curve.label for curve in panel.curves} == set(labels) for panel in panels)
    columns, rows = min(columns, len(panels)), math.ceil(len(panels) / min(columns, len(panels)))
    height = 3.4 * rows + 0.8 if shared else 4.2 * rows + 0.3  # in inches
    figure = Figure(figsize=(4.4 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    first: dict[str, Axes] = {}  # quantity -> its first panel, whose axis later panels share
    for place, panel in zip(axes, panels, strict=False):
        if first.setdefault(f"y {panel.y_label}", place) is not place:
            place.sharey(first[f"y {panel.y_label}"])
        if first.setdefault(f"x {panel.x_label}", place) is not place:
            place.sharex(first[f"x {panel.x_label}"])
        _draw(place, panel, labels, x_log=_log_together([one for one in panels if one.x_label == panel.x_label]))
    for place in axes[len(panels) :]:
        place.set_axis_off()
    figure.suptitle(textwrap.fill(title, LETTERS * columns))
    _legends(figure, list(axes[: len(panels)]), list(axes[len(panels) :]), shared=shared, columns=columns)
    make_folder(path.parent)
    # Without a date in the file, the same curves give the same bytes.
    dated = {"CreationDate": None} if path.suffix == ".pdf" else {}
    write_atomically(path, lambda partial: figure.savefig(partial, format=path.suffix[1:], dpi=150, metadata=dated))


def _legends(figure: Figure, axes: Sequence[Axes], empty: Sequence[Axes], *, shared: bool, columns: int) -> None:
    """One legend in a place without a panel, else below all panels; or one below each. Never on top of a curve."""
    look: dict[str, Any] = {"frameon": False, "fontsize": "small"}
    if not shared:
        for place in axes:
            place.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, **look)
        return
    handles, labels = max((place.get_legend_handles_labels() for place in axes), key=lambda found: len(found[1]))
    if empty:
        empty[0].legend(handles, labels, loc="center", **look)
    else:
        figure.legend(handles, labels, loc="outside lower center", ncols=4 if columns > 1 else 1, **look)


def _log_together(panels: Sequence[Panel]) -> bool:
    """Whether panels that share their x axis have a logarithmic one: one of them asks for it, and all can have it."""
    return any(panel.x_log for panel in panels) and all(panel.least_x > 0 for panel in panels)


def _draw(axes: Axes, panel: Panel, labels: Sequence[str], *, x_log: bool) -> None:
    """One panel: a method has its colour, another line that of its place among all labels; markers by place too."""
    looks = [method_look(curve.label) for curve in panel.curves]
    for place, (curve, known) in enumerate(zip(panel.curves, looks, strict=True)):
        number = labels.index(curve.label)
        by_place = COLOURS[(number if curve.colour is None else curve.colour) % len(COLOURS)]
        colour = by_place if known is None else shade(known.colour, looks[:place].count(known), looks.count(known))
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            linestyle=curve.dash if known is None else known.dash,
            markersize=3.5,
            markevery=max(1, len(curve.x) // MOST_MARKERS),
            linewidth=1.8 if known is not None and known.dash == "-" else 1.3,
        )
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    _floor(axes, panel)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    if x_log:
        axes.set_xscale("log")
        _plain_ticks(axes, "x")
    else:
        axes.locator_params(axis="x", nbins=6)  # so that five-digit numbers do not overlap
        if panel.least_x >= 0:
            axes.set_xlim(left=0)
    if panel.y_log:
        axes.set_yscale("log")
        _plain_ticks(axes, "y")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _floor(axes: Axes, panel: Panel) -> None:
    """The dashed line of the best constant guess; a band where it differs between seeds or partitions."""
    if panel.floor is None:
        return
    low, high = panel.floor if isinstance(panel.floor, tuple) else (panel.floor, panel.floor)
    if high > low:
        axes.axhspan(low, high, color="0.45", alpha=0.16, linewidth=0, zorder=0)
    axes.axhline((low + high) / 2, color="0.45", linestyle=(0, (4, 3)), linewidth=1, label=panel.floor_label, zorder=1)


def _plain_ticks(axes: Axes, which: Literal["x", "y"]) -> None:
    """Ticks of a logarithmic axis as plain numbers (0.2, 0.5, 1), never as 6 x 10^-1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    digits = (1.0,) if high > 1e3 * low else (1.0, 2.0, 5.0) if high > 5 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
