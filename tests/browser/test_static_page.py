"""The static page in a real browser: every figure drawn, every toggle felt, nothing fetched, nothing executed."""

from __future__ import annotations

from pathlib import Path

from tests.browser.conftest import Open


def test_every_figure_is_drawn_with_data_in_it(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.draw_all()
    names = watched.figures()
    assert {"accuracy", "bits", "clients", "time", "heat", "cell", "energy", "labels", "solver"} <= set(names)
    runs = watched.page.locator("#run option").count()
    assert runs == 5
    for run in range(runs):
        watched.page.select_option("#run", str(run))
        for name in names:
            if name == "solver" and "FedPer" in watched.page.locator("#run option").nth(run).inner_text():
                assert "nothing to solve" in watched.page.locator("#figure-solver .none").inner_text()
                continue
            traces = watched.traces(name)
            assert traces, name
            for trace in traces:
                numbers = trace["y"] if trace["z"] is None else [value for row in trace["z"] for value in row]
                assert any(value is not None for value in numbers), (name, trace["name"])
            assert watched.page.locator(f"#figure-{name} h3").inner_text()
