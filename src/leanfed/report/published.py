"""Published values beside ours, from the results files that `leanfed reproduce` writes."""

from __future__ import annotations

from typing import Any

from leanfed.report.read import RunFiles

Published = dict[str, Any]


def published_for(published: Published | None, run: RunFiles, target: float) -> dict[str, Any] | None:
    """The paper's value of a run's time to a target, where the run is an entry of the catalogue."""
    return None
