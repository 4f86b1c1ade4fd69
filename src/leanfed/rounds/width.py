"""The widths of the clients' models: shares of the channels, given, drawn, or chosen by the speed of the devices."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from leanfed.errors import SettingsError
from leanfed.records import Floats, Section
from leanfed.streams import stream

Share = Annotated[float, Field(gt=0, le=1)]
CLOCKS: Final = 8  # rounds whose mean clock is a device's speed


class WidthSettings(Section):
    """Clients whose models have only the first channels of every layer, the head's included, and train in less time.

    What a client sends is averaged, entry by entry, over those that have the entry (HeteroFL, Diao et al. 2021).
    """

    shares: tuple[Share, ...] = ()
    """Shares of the channels, for example [0.25, 0.5, 0.75, 1.0]; left out: every client has the whole model."""
    by: Literal["draw", "speed", "client"] = "draw"
    """Who gets which. draw: as many clients for each share, drawn by the seed. speed: each the largest share with which
    a step takes its device no longer than a whole one takes the device of median clock, else the smallest. client: one
    share for each client, in order."""

    @model_validator(mode="after")
    def _someone_has_them(self) -> WidthSettings:
        if self.by != "draw" and not self.shares:
            raise ValueError(f"by = {self.by!r} needs shares to choose from, for example shares = [0.25, 0.5, 1.0]")
        return self


def drawn_widths(shares: tuple[float, ...], clients: int, seed: int) -> Floats:
    """(clients,) every share for as many clients, one more or less."""
    order = stream(seed, "width").permutation(clients)
    widths = np.empty(clients)
    widths[order] = np.resize(np.asarray(shares), clients)
    return widths


def listed_widths(shares: tuple[float, ...], clients: int) -> Floats:
    """(clients,) one share for each client."""
    if len(shares) != clients:
        raise SettingsError(
            f"width.shares lists {len(shares)} shares with width.by = 'client', but there are {clients} clients. Give "
            "one for each, or set width.by = 'draw'."
        )
    return np.asarray(shares)


def widths_by_speed(shares: tuple[float, ...], work: tuple[float, ...], clocks_hz: Floats) -> Floats:
    """(clients,) the largest share whose step takes no longer than a whole one at the median clock, else the smallest.

    `work` is each share's part of a whole step.

    >>> widths_by_speed((0.5, 1.0), (0.25, 1.0), np.array([1e8, 5e8, 1e9, 2e9, 1e9])).tolist()
    [0.5, 0.5, 1.0, 1.0, 1.0]
    """
    order = np.argsort(shares)
    ordered, needed = np.asarray(shares)[order], np.asarray(work)[order]
    fits = needed[None, :] <= (clocks_hz / np.median(clocks_hz))[:, None]
    return np.asarray(ordered[np.maximum(fits.sum(1) - 1, 0)])
