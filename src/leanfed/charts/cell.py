"""A figure of one plan: each client's k, r and bandwidth share over its distance or gain, coloured by CPU speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leanfed.files import make_folder, write_atomically
from leanfed.records import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection

PANELS = (
    ("k", "keep rate of the base gradient k"),
    ("r", "keep rate of the head r"),
    ("share", "share of the band [%]"),
)


STRIP = 0.16  # height of the strip below zero in which those left out stand, over that of the panel's values
MOST_NAMES = 12  # devices whose names fit beside their dots


@dataclass(frozen=True, eq=False)
class CellPicture:
    """One entry per client, and the positions of the clients that are excluded or starved."""

    place: Floats  # distance in m, or the channel's gain in dB
    place_label: str
    k: Floats
    r: Floats
    share: Floats  # of the band, in percent
    cpu_ghz: Floats
    excluded: Sequence[int]
    starved: Sequence[int]
    title: str
    left_out: str = "excluded"
    names: Sequence[str] = ()


def draw_cell(path: Path, picture: CellPicture) -> None:
    """Save a PNG with k, r and l side by side, coloured by the speed of the CPU."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.2, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(PANELS))
    for place, (name, label) in zip(axes, PANELS, strict=True):
        points = _draw(place, picture, getattr(picture, name), rate=name != "share")
        place.set(xlabel=picture.place_label, ylabel=label)
    figure.colorbar(points, ax=axes, label="CPU [GHz]", pad=0.01)
    figure.suptitle(picture.title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    make_folder(path.parent)
    write_atomically(path, lambda partial: figure.savefig(partial, format="png", dpi=150))


def _top(values: Floats, *, rate: bool) -> float:
    """The upper end of a panel: 1 for rates that use their range, else a little above the largest value."""
    most = float(values.max(initial=0.0))
    if rate and most > 0.25:
        return 1.04
    return 1.15 * most if most > 0.0 else 1.0


def _draw(axes: Axes, picture: CellPicture, values: Floats, *, rate: bool) -> PathCollection:
    """One panel: a dot per client, rings around the starved; those left out stand in a strip of their own."""
    out = np.zeros(values.size, dtype=bool)
    out[list(picture.excluded)] = True
    size = 26.0 if values.size <= 500 else 6.0
    top = _top(values[~out], rate=rate)
    points = axes.scatter(
        picture.place[~out],
        values[~out],
        s=size,
        c=picture.cpu_ghz[~out],
        vmin=float(picture.cpu_ghz.min()),
        vmax=float(picture.cpu_ghz.max()),
        cmap="viridis",
        label="takes part",
        zorder=2,
    )
    if picture.starved:
        chosen = list(picture.starved)
        rings = axes.scatter(picture.place[chosen], values[chosen], s=3 * size, label="starved", zorder=3)
        rings.set(facecolor="none", edgecolor="#D55E00", linewidth=1.2)
    if out.any():
        axes.axhspan(-STRIP * top, -0.05 * top, color="0.92", linewidth=0, zorder=0)
        low = np.full(int(out.sum()), -0.105 * top)  # no value: they stand below the axis, not at zero
        axes.scatter(picture.place[out], low, s=size, marker="x", color="0.35", label=picture.left_out, zorder=3)
    axes.set_ylim(-STRIP * top if out.any() else -0.04 * top, top)
    axes.set_yticks([tick for tick in axes.get_yticks() if -1e-9 * top <= tick <= top])
    if picture.names and len(picture.names) <= MOST_NAMES:
        for name, x, y in zip(picture.names, picture.place, np.where(out, -0.105 * top, values), strict=True):
            axes.annotate(name, (x, y), xytext=(4, 5), textcoords="offset points", fontsize=6.5, color="0.25")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return points
