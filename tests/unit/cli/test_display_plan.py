"""What a planner's reader sees."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from leanfed.allocation.bench import paper_problem
from leanfed.allocation.cells import Cell
from leanfed.allocation.plan import plan
from leanfed.allocation.problem import Problem
from leanfed.cli import display, display_plan


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    console = Console(width=80, file=text)
    monkeypatch.setattr(display, "screen", console)
    monkeypatch.setattr(display_plan, "screen", console)
    return text


def shown(problem: Problem, page: io.StringIO, *, everyone: bool = False) -> str:
    display_plan.show_plan(Cell(problem), plan(problem), "plain", everyone=everyone)
    return page.getvalue()


def test_a_plan_names_limits_and_absent_clients(page: io.StringIO) -> None:
    text = shown(paper_problem(4, 0, bandwidth_hz=2e5).with_(cpu_hz=[1e7, 1e9, 1e9, 1e9]), page)
    assert "3 of 4 take part" in text
    assert "client 0: a deadline of 0.8 s is below the 21.03 s that its base layers take" in text
    assert "excluded 1" in next(line for line in text.splitlines() if line.startswith("held by: "))


def test_the_price_is_given_per_share_and_per_megahertz(page: io.StringIO) -> None:
    problem = paper_problem(20, 0, bandwidth_hz=2e6)
    price = plan(problem).price
    assert f"price of bandwidth: {price:.4g} per share, {price / 2:.4g} per MHz" in shown(problem, page)


def test_enough_bandwidth_has_no_price(page: io.StringIO) -> None:
    assert "0 per share, 0 per MHz (there is enough)" in shown(paper_problem(3, 0), page)


def test_links_of_their_own_have_rates_and_no_price(page: io.StringIO) -> None:
    problem = Problem.of(
        weights=[0.5, 0.5],
        link_bit_per_s=[1e6, 2e7],
        fixed_s=0.5,
        sample_s=0.002,
        power_w=0.2,
        batch_size=32,
        deadline_s=1.0,
        energy_budget_j=None,
        base_size=50_692,
        head_size=11_014,
        value_bits=32,
        theta1=0.1,
        theta2=1.0,
    )
    text = shown(problem, page)
    assert "each on its own link" in text
    assert "20000.00" in text  # kbit/s, where a share of a band would have kHz
    assert "kHz" not in text
    assert "price of bandwidth" not in text


def test_a_long_fleet_is_cut_in_the_middle_unless_all_is_asked_for(page: io.StringIO) -> None:
    problem = paper_problem(41, 0)
    rows = [line.split()[0] for line in shown(problem, page).splitlines() if line.split()]
    assert "..." in rows
    assert {"9", "31"} <= set(rows)
    assert "20" not in rows
    text = shown(problem, page, everyone=True).split("--all shows every device")[1]
    assert "..." not in text
    assert any(line.split()[:1] == ["20"] for line in text.splitlines())


def test_tables_fit_eighty_columns(page: io.StringIO) -> None:
    problem = paper_problem(30, 0, bandwidth_hz=1e6).with_(energy_budget_j=0.1)
    table = display_plan.plan_table(Cell(problem), plan(problem), "plain")
    Console(width=80, file=page).print(table)
    assert "…" not in page.getvalue()


def test_what_could_not_be_measured_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    display_plan.show_row({"seconds": 1.5, "peak_extra_mib": float("nan")}, "", as_json=True)
    assert capsys.readouterr().out == '{"seconds": 1.5, "peak_extra_mib": null}\n'
