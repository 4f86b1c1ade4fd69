"""What all parties of a run's masked sums have agreed on beforehand, by its settings and its run-config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leanfed.compression.ring import Grid

if TYPE_CHECKING:
    from leanfed.deployment.learning.config import RunConfig
    from leanfed.runs.settings import Settings


@dataclass(frozen=True)
class Rules:
    """Server and nodes each make them from the same texts."""

    seed: int
    neighbours: int | None
    grid: Grid
    settings: str  # the text of the run-config

    @classmethod
    def of(cls, settings: Settings, config: RunConfig) -> Rules | None:
        """None where updates are not masked."""
        if not settings.radio.masked_sum:
            return None
        grid = Grid.of(settings.radio.bits, config.mask_range)
        return cls(settings.seed, settings.radio.mask_neighbours, grid, config.settings)
