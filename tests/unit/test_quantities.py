"""The schema of rows: whole, unique, and what it says of a new column by default."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

from leanfed.allocation import solution
from leanfed.cli import display
from leanfed.quantities import COLUMNS, SCHEMA, Cost, Quantity, add, costs, spent, summarised, type_of
from leanfed.records import STARVED_BELOW
from leanfed.report.page import SCRIPTS, static
from leanfed.results import TABLES, joined, read_rows, rows_to_arrays, typed


def test_every_column_has_one_line_and_known_tables() -> None:
    assert len(COLUMNS) == len({quantity.name for quantity in COLUMNS})
    assert {table for quantity in COLUMNS for table in quantity.tables} == set(TABLES)
    with pytest.raises(ValueError, match="'round' is there already"):
        add(SCHEMA["round"])
    with pytest.raises(ValueError, match="'co2_g' has no line"):
        type_of("co2_g")


def test_rounds_lead_tables_and_end_the_choices_of_curves() -> None:
    assert list(costs()) == ["rounds", "latency_s", "energy_j", "gigabits", "tflops"]
    assert list(costs(plotted=True)) == ["latency_s", "energy_j", "gigabits", "rounds"]
    assert list(spent()) == [quantity.name for quantity in summarised("sum")]


def test_the_texts_of_a_cost_follow_from_label_and_unit() -> None:
    cost = Quantity("co2_g", ("rounds",), float, "g", "CO2", over_rounds="sum", cost=Cost(scale=1e3, unit="kg")).cost
    assert cost is not None
    assert (cost.axis, cost.head, cost.title) == ("co2_g", "CO2 [kg]", "CO2 of all clients [kg]")
    assert (cost.brief, cost.said, cost.paper) == ("kg", "kg", "")


def test_the_pages_scripts_name_no_cost() -> None:
    text = "".join(static(name) for name in SCRIPTS if name in ("compare.js", "tables.js"))
    for _, cost in list(costs().values())[1:]:
        assert cost.head not in text
        assert cost.title not in text


def test_rows_of_two_versions_fit_together(tmp_path: Path) -> None:
    older = pl.DataFrame({"round": [0, 1], "energy_j": [1.0, None]})
    newer = older.with_columns(pl.col("round") + 2, participants=pl.Series([3, 4]), flops=pl.Series([5.0, None]))
    for name, table in (("a", older), ("b", newer)):
        save_file(rows_to_arrays({"rounds": table}), tmp_path / name)
    table = read_rows([tmp_path / "a", tmp_path / "b"], "rounds")
    assert table["round"].to_list() == [0, 1, 2, 3]
    assert table["participants"].to_list() == [None, None, 3, 4]
    assert table["flops"].to_list() == [None, None, 5.0, None]
    # Written once more, as a checkpoint does with many files, whole numbers with gaps stay whole numbers.
    save_file(rows_to_arrays({"rounds": table}), tmp_path / "c")
    assert read_rows([tmp_path / "c"], "rounds").equals(table)
    assert table.schema["participants"] == pl.Int64
    assert read_rows([], "rounds").is_empty()


def test_a_column_of_a_newer_version_is_left_as_it_is() -> None:
    unknown = pl.DataFrame({"round": np.array([0.0]), "of the future": ["text"]})
    assert typed(unknown).schema == {"round": pl.Int64, "of the future": pl.String}
    assert joined([unknown.clear(), pl.DataFrame()]).columns == unknown.columns


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_in_a_pipe_is_never_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = io.StringIO()
    monkeypatch.setattr(display, "screen", Console(file=text, force_terminal=False, width=width))
    long = "/a/very/long/folder/" + "x" * 300
    table = Table("name", "where it is")
    table.add_column("sum", no_wrap=True)
    table.add_row("words that would be wrapped " * 5, long, "1")
    display.show_table(table)
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert long in lines[1]
    assert "…" not in text.getvalue()


def test_a_client_starves_at_the_same_rate_on_the_page_as_in_the_solver() -> None:
    assert STARVED_BELOW == solution.STARVED_BELOW
