"""Crossings by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from leanfed.charts.costs import first_crossing
from leanfed.charts.curves import Curve, Panel, draw_panels
from leanfed.runs.compare import ComparedRun, ends_at_equal_cost


@pytest.mark.parametrize(
    ("accuracy", "rounds"),
    [([0.5, 0.7, 0.9], 25.0), ([0.8, 0.7, 0.9], 10.0), ([0.5, 0.6, 0.7], None), ([0.6, 0.8, 0.7], 20.0)],
)
def test_the_first_crossing_is_interpolated(accuracy: list[float], rounds: float | None) -> None:
    assert first_crossing([10, 20, 30], accuracy, 0.8) == (None if rounds is None else pytest.approx(rounds))


def test_a_picture_shows_every_curve_in_its_own_colour(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "picture.png"
    curves = [Curve("one", [1, 2], [0.1, 0.9]), Curve("two", [1, 2], [0.9, 0.1])]
    draw_panels(path, [Panel(curves, "x", "y", floor=0.5), Panel(curves, "x", "z")], title="t", columns=2)
    with Image.open(path) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(maxcolors=1 << 20)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours


def test_a_curve_looks_the_same_in_every_panel(tmp_path: Path) -> None:
    one, two = Curve("one", [1, 2], [0.1, 0.9]), Curve("two", [1, 2], [0.9, 0.1])
    draw_panels(tmp_path / "p.png", [Panel([one, two], "x", "y"), Panel([two], "x", "y")], title="t", columns=2)
    with Image.open(tmp_path / "p.png") as picture:
        right = picture.convert("RGB").crop((picture.width // 2, 0, picture.width, int(0.8 * picture.height)))
    colours = {colour for _, colour in right.getcolors(maxcolors=1 << 20)}
    assert (0xD5, 0x5E, 0x00) in colours  # the second colour, though it is the panel's first curve
    assert (0x00, 0x72, 0xB2) not in colours


def test_every_cost_is_taken_at_the_same_crossing() -> None:
    run = ComparedRun("a", "fedper", {"rounds": [10, 20], "latency_s": [5, 15]}, [0.6, 0.9], [1, 1], [0, 0], 0.5)
    assert run.cost_of(0.7) == pytest.approx({"rounds": 10 + 10 / 3, "latency_s": 5 + 10 / 3})
    assert run.cost_of(0.95) is None
    assert run.sustained_cost_of(0.7) == run.cost_of(0.7)


def test_a_row_tells_both_crossings() -> None:
    run = ComparedRun("a", "fedper", {"rounds": [1, 2, 3]}, [0.7, 0.9, 0.7], [1] * 3, [0] * 3, 0.5)
    row = run.row([0.8])
    assert row["time_to_accuracy"] == {"0.8": {"rounds": pytest.approx(1.5)}}
    assert row["sustained_time_to_accuracy"] == {"0.8": None}


def test_ends_are_told_at_what_the_cheapest_run_spent() -> None:
    quick = ComparedRun(
        "a", "x", {"rounds": [10, 20], "latency_s": [5, 15], "energy_j": [1, 2]}, [0.6, 0.9], [], [], 0.5
    )
    slow = ComparedRun(
        "b", "x", {"rounds": [10, 20], "latency_s": [10, 30], "energy_j": [4, 8]}, [0.5, 0.7], [], [], 0.5
    )
    ends = ends_at_equal_cost([quick, slow])
    assert ends["rounds"] == {"at": 20, "accuracy": [0.9, 0.7]}
    assert ends["latency_s"] == {"at": 15, "accuracy": [0.9, pytest.approx(0.55)]}  # a quarter of the way from 10 to 30
    assert ends["energy_j"] == {"at": 2, "accuracy": [0.9, None]}  # the slow one was first evaluated after 4 J
    assert "tflops" not in ends
    assert ends_at_equal_cost([]) == {}
