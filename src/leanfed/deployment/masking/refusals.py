"""What a fleet's masked sums do not go together with; what no masked sum does is refused by the settings themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leanfed.deployment.masking.graph import LEAST
from leanfed.errors import SettingsError

if TYPE_CHECKING:
    from leanfed.deployment.learning.config import RunConfig
    from leanfed.runs.settings import Settings


def check_masks(settings: Settings) -> None:
    """Refuse settings whose masked sums would not be formed, or would show what they are to hide."""
    radio, clients = settings.radio, settings.task.partition.counted()
    refusals = {
        f"mask_neighbours = {radio.mask_neighbours}, and a ring needs two; set 2 or more, or leave it out": (
            radio.mask_neighbours == 1
        ),
        f"{clients} clients, and a sum of fewer than {LEAST} hides nothing; set task.partition.clients": (
            clients < LEAST
        ),
    }
    _refuse(settings, refusals)


def check_masked_run(settings: Settings, config: RunConfig) -> None:
    """Refuse a run-config that needs to see single updates."""
    refusals = {
        "the masks of a late update no longer cancel; set late = drop": config.late == "use",
    }
    _refuse(settings, refusals)


def _refuse(settings: Settings, refusals: dict[str, bool]) -> None:
    found = [why for why, holds in refusals.items() if settings.radio.masked_sum and holds]
    if found:
        raise SettingsError(f"radio.masked_sum = true: {'; '.join(found)}.")
