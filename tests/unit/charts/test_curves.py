"""Figures of several panels over shared axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from leanfed.charts.curves import Curve, Panel, draw_panels

SHORT = Panel([Curve("a", [0.1, 1.0], [0.5, 0.9]), Curve("b", [0.1, 900.0], [0.5, 0.8])], "seconds", "accuracy")
LONG = Panel([Curve("a", [1.0, 800.0], [0.5, 0.9]), Curve("b", [1.0, 900.0], [0.5, 0.8])], "seconds", "accuracy")
FROM_ZERO = Panel([Curve("a", [0.0, 800.0], [0.5, 0.9])], "seconds", "accuracy")


@pytest.mark.parametrize("panels", [[SHORT, LONG], [LONG, SHORT], [SHORT, FROM_ZERO], [FROM_ZERO, SHORT]])
def test_panels_of_which_one_alone_asks_for_a_logarithmic_axis_share_it(panels: list[Panel], tmp_path: Path) -> None:
    assert SHORT.x_log
    assert not LONG.x_log
    draw_panels(tmp_path / "figure.png", panels, title="", columns=2)
    assert (tmp_path / "figure.png").stat().st_size > 0
