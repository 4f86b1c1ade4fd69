"""A new column is one line of the schema and the place that computes it, as CONTRIBUTING shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leanfed.cli.app import app
from leanfed.quantities import SCHEMA
from leanfed.report.data import report_data
from leanfed.report.figures import write_figures
from leanfed.rounds.costs import RoundBill
from leanfed.runs.carry_out import run
from leanfed.runs.outcome import Run
from leanfed.runs.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
OLDER = ROOT / "tests" / "fixtures" / "run-0.1.0" / "finished"


@pytest.fixture
def charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run with the column of CONTRIBUTING's example."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    example = re.search(r"### A row column.*?```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    monkeypatch.setattr(RoundBill, "client_columns", RoundBill.client_columns)  # put back afterwards
    exec(example[1], {})
    try:
        values = json.loads((OLDER / "settings.json").read_text())
        yield run(Settings.from_values({**values, "name": "charged", "rounds": 4}), tmp_path / "charged")
    finally:
        del SCHEMA["co2_g"]


@pytest.mark.usefixtures("undrawn")
def test_one_line_puts_a_column_everywhere(charged: Run, tmp_path: Path) -> None:
    grams = 400 / 3.6e6 * charged.rounds["energy_j"].sum()
    assert charged.rounds["co2_g"].sum() == pytest.approx(grams)
    assert charged.clients["co2_g"].sum() == pytest.approx(grams)
    assert charged.summary["co2_g"] == pytest.approx(grams)

    shown = CliRunner().invoke(app, ["resume", str(tmp_path / "charged")]).output
    assert ["CO2", f"{grams:.4g}", "g"] in map(str.split, shown.splitlines())
    folders = [str(tmp_path / "charged"), str(OLDER), "--target", "0.4", "--picture", str(tmp_path / "a.png")]
    told = CliRunner().invoke(app, ["compare", *folders])
    assert told.exit_code == 0, told.output
    lines = told.output.split("to 40% accuracy")[1].splitlines()
    assert lines[1].endswith("CO2 [g]: sustained (first)")
    last = {line.split()[0]: line.split()[-1].strip("()") for line in lines[2:4]}
    assert float(last["charged"]) > 0
    assert last["finished"] == "-"  # an older folder lacks it

    data = report_data([tmp_path / "charged", OLDER], targets=[0.4])
    assert data["flaws"] == []
    (cost,) = [cost for cost in data["costs"] if cost["axis"] == "co2_g"]
    assert (cost["head"], cost["unit"]) == ("CO2 [g]", "g")
    means = [row["mean"]["co2_g"] for row in data["targets"][0]["rows"]]
    assert means[0] > 0
    assert means[1] is None
    assert any(band["axis"] == "co2_g" for band in data["bands"])
    names = {path.name for path in write_figures(data, tmp_path / "figures", "png")}
    assert "accuracy-co2.png" in names
    assert "CO2 [g]" in (tmp_path / "figures" / "targets.tex").read_text()
