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


def draw_cell(path: Path, picture: CellPicture) -> None:
    """Save a PNG with k, r and l side by side, coloured by the speed of the CPU."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.2, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(PANELS))
    for place, (name, label) in zip(axes, PANELS, strict=True):
        points = _draw(place, picture, getattr(picture, name))
        place.set(xlabel=picture.place_label, ylabel=label)
        if name != "share":  # rates are drawn on their whole range, even if all are equal
            place.set_ylim(-0.04, 1.04)
    figure.colorbar(points, ax=axes, label="CPU [GHz]", pad=0.01)
    figure.suptitle(picture.title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    make_folder(path.parent)
    write_atomically(path, lambda partial: figure.savefig(partial, format="png", dpi=150))


def _draw(axes: Axes, picture: CellPicture, values: Floats) -> PathCollection:
    """One panel: a dot per client; rings around the starved, crosses for the excluded."""
    out = np.zeros(values.size, dtype=bool)
    out[list(picture.excluded)] = True
    size = 26.0 if values.size <= 500 else 6.0
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
        axes.scatter(picture.place[out], values[out], s=size, marker="x", color="0.35", label="excluded", zorder=3)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return points
