"""Figures for papers: one figure per file at the width of a column, with embedded fonts and without a title."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from leanfed.charts.palette import COLOURS, NEUTRAL, method_look
from leanfed.files import make_folder, write_atomically
from leanfed.records import Floats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

COLUMN_IN = 3.5  # width of one column of a two-column page
SHORT = 24  # characters of a label; two of them fit side by side
DASHES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xxx")
STYLE: Final[dict[Any, Any]] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "hatch.linewidth": 0.5,
}


@dataclass(frozen=True, eq=False)
class Series:
    """One line, optionally with a band around it."""

    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    look: int | None = None  # number of its colour where it is no method's; by position if it is not given
    method: str = ""  # by its registered name


@dataclass(frozen=True, eq=False)
class Map:
    """A matrix over two axes; NaN is drawn grey."""

    values: Floats  # (rows, columns)
    x: Floats
    y: Floats
    label: str


def draw_lines(
    path: Path,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    floor: float | tuple[float, float] | None = None,
    shaded: float = 0.0,
    guess: str = "majority guess",
) -> None:
    """Lines with bands; `shaded` marks the range from 0 to that x."""
    labels = [line.label for line in series] + [guess] * (floor is not None) + ["worst decile"] * bool(shaded)
    with _picture(path, rows=1, legend=labels) as axes:
        for number, line in enumerate(series):
            look, known = number if line.look is None else line.look, method_look(line.label, method=line.method)
            colour, dash = COLOURS[look % len(COLOURS)], DASHES[look % len(DASHES)]
            colour, dash = (colour, dash) if known is None else (known.colour, known.dash)
            axes[0].plot(line.x, line.y, color=colour, linestyle=dash, label=line.label)
            if line.low is not None and line.high is not None:
                axes[0].fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        if floor is not None:
            low, high = floor if isinstance(floor, tuple) else (floor, floor)
            if high > low:
                axes[0].axhspan(low, high, color="0.45", alpha=0.16, linewidth=0, zorder=0)
            axes[0].axhline((low + high) / 2, color="0.45", linestyle=(0, (4, 3)), linewidth=0.8, label=guess, zorder=1)
        if shaded:
            axes[0].axvspan(0, shaded, color=NEUTRAL[0], alpha=0.14, linewidth=0, label="worst decile")
        if all(float(x).is_integer() for line in series for x in line.x):  # rounds: no ticks between them
            axes[0].locator_params(axis="x", integer=True)
        _finish(axes[0], x_label, y_label)


def draw_bars(
    path: Path, names: Sequence[str], parts: Mapping[str, Sequence[float]], x_label: str, *, stacked: bool = False
) -> None:
    """Horizontal bars, one group per name, side by side or stacked; NaN has no bar."""
    count, places = len(parts), np.arange(len(names))
    height = 0.8 if stacked else 0.8 / count
    heads = ["\n".join(wrap(name, 20)) or name for name in names]
    lines = max(1 + head.count("\n") for head in heads) if heads else 1
    inches = 0.5 + max(len(names) * max(0.24 if stacked else 0.144 * count, 0.05 + 0.13 * lines), 0.9)
    with _picture(path, rows=1, height=inches, legend=list(parts)) as axes:
        left = np.zeros(len(names))
        for number, (label, given) in enumerate(parts.items()):
            values = np.nan_to_num(np.asarray(given, dtype=float))
            shift = 0.0 if stacked else (number - (count - 1) / 2) * height
            look: dict[str, Any] = {
                "color": NEUTRAL[number % len(NEUTRAL)],
                "hatch": HATCHES[number % len(HATCHES)],
                "edgecolor": "white",
            }
            axes[0].barh(places + shift, values, height, left=left, label=label, linewidth=0.4, **look)
            left = left + values if stacked else left
        axes[0].set_yticks(places, heads)
        axes[0].invert_yaxis()
        _finish(axes[0], x_label, "")


def draw_maps(path: Path, maps: Sequence[Map], x_label: str, y_label: str) -> None:
    """Maps below each other, each with its own colour bar."""
    with _picture(path, rows=len(maps), height=1.55 * len(maps) + 0.2) as axes:
        for place, drawn in zip(axes, maps, strict=True):
            place.set_facecolor("0.88")
            edges = (_edges(drawn.x), _edges(drawn.y))
            low, high, most = _limits(drawn.values)
            mesh = place.pcolormesh(
                *edges, np.ma.masked_invalid(drawn.values), cmap="viridis", rasterized=True, vmin=low, vmax=high
            )
            place.figure.colorbar(
                mesh, ax=place, label=drawn.label, pad=0.02, extend="max" if most > high else "neither"
            )
            place.set(ylabel=y_label)
            if np.all(drawn.x == np.round(drawn.x)) and np.all(drawn.y == np.round(drawn.y)):
                place.locator_params(integer=True)  # clients and rounds: no ticks between them
            if low == 0.0 and high == 2.0 * most:
                place.text(0.5, 0.5, f"{most:g} throughout", transform=place.transAxes, ha="center", color="white")
        axes[-1].set(xlabel=x_label)


def _limits(values: Floats) -> tuple[float, float, float]:
    """The lower and upper end of the colours, and the largest entry.

    A constant matrix is shown between 0 and twice its value; a few entries far above all others are clipped so that the
    others can still be distinguished.
    """
    known = values[np.isfinite(values)]
    if not known.size:
        return 0.0, 1.0, 1.0
    low, high, most = float(known.min()), float(np.quantile(known, 0.95)), float(known.max())
    if most - low <= 1e-6 * max(abs(most), 1e-9):
        return 0.0, 2.0 * most if most > 0.0 else 1.0, most
    return (low, high, most) if most > 3.0 * high > 3.0 * low else (low, most, most)


def _edges(centres: Floats) -> Floats:
    """Borders half-way between the centres of cells."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[:-1] + centres[1:]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])


@contextmanager
def _picture(path: Path, *, rows: int, height: float = 2.1, legend: Sequence[str] = ()) -> Iterator[list[Axes]]:
    """Empty axes below each other with room for a legend above; saves the figure in the format of the file's ending."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        columns = 2 if max(map(len, legend), default=0) <= SHORT else 1
        figure = Figure(figsize=(COLUMN_IN, height + 0.15 * math.ceil(len(legend) / columns)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
        yield axes
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
        make_folder(path.parent)
        undated: dict[str, Any] = {"CreationDate": None} if path.suffix == ".pdf" else {}
        kind = path.suffix[1:]
        write_atomically(path, lambda partial: figure.savefig(partial, format=kind, dpi=300, metadata=undated))


def _finish(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
