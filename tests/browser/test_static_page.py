"""The static page in a real browser: every figure drawn, every toggle felt, nothing fetched, nothing executed."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from PIL import Image
from playwright.sync_api import Browser

from leanfed.report.page import build_report
from tests.browser.conftest import CLIENTS, Open, Watched, watch
from tests.unit.report.folders import write_run

FIGURES = {"accuracy", "bits", "clients", "time", "heat", "cell", "energy", "labels", "solver"}
MARKUP = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script><b>bold</b>&amp;'


def saved(watched: Watched, figure: str, kind: str) -> bytes:
    with watched.page.expect_download() as waiting:
        watched.page.locator(f"#figure-{figure} [data-save='{kind}']").click()
    return Path(waiting.value.path()).read_bytes()


def test_every_figure_is_drawn_with_data_in_it(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.draw_all()
    assert set(watched.figures()) == FIGURES | {"measured"}
    assert watched.page.locator("#figure-measured").is_hidden()  # of real fleets only
    labels = watched.page.locator("#run option").all_inner_texts()
    assert len(labels) == 5
    for number, label in enumerate(labels):
        watched.page.select_option("#run", str(number))
        for name in FIGURES:
            if name == "solver" and "FedPer" in label:
                assert "nothing to solve" in watched.page.locator("#figure-solver .none").inner_text()
                continue
            for trace in watched.traces(name):
                numbers = trace["y"] if trace["z"] is None else [value for row in trace["z"] for value in row]
                assert any(value is not None for value in numbers), (label, name, trace["name"])
            assert watched.page.locator(f"#figure-{name} .plot svg.main-svg").count() > 0
            assert watched.page.locator(f"#figure-{name} h3").inner_text()


def test_figures_off_the_screen_are_drawn_when_they_come_near(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.page.wait_for_selector("#figure-accuracy[data-state='drawn']")
    assert watched.page.locator("#figure-solver[data-state]").count() == 0
    watched.page.locator("#figure-solver").scroll_into_view_if_needed()
    watched.page.wait_for_selector("#figure-solver[data-state]")


@pytest.fixture(scope="module")
def joint_page(browser: Browser, static_page: Path) -> Iterator[Watched]:
    """One window for all toggles: each of them changes what the others left."""
    watched = watch(browser, static_page)
    watched.draw_all()
    yield watched
    watched.page.context.close()
    assert watched.errors == watched.requests == []


@pytest.mark.parametrize(
    ("figure", "control", "value"),
    [
        *(("accuracy", "x", axis) for axis in ("energy_j", "gigabits", "rounds")),
        *(("accuracy", "y", metric) for metric in ("loss", "worst_decile")),
        ("accuracy", "seeds", "each"),
        ("bits", "per", "run"),
        *(("time", "view", view) for view in ("sum", "share")),
        *(("heat", "rate", rate) for rate in ("r", "share", "k")),
        *(("cell", "colour", colour) for colour in ("r", "share", "accuracy")),
        ("energy", "view", "dearest"),
        ("labels", "view", "count"),
        *(("solver", "view", view) for view in ("options", "taking", "cost")),
    ],
)
def test_a_toggle_changes_its_figure(joint_page: Watched, figure: str, control: str, value: str) -> None:
    def drawn() -> str:
        layout = "document.querySelector(`#figure-${id} .plot`).layout"
        axes = joint_page.page.evaluate(f"(id) => [{layout}.xaxis.title.text, {layout}.yaxis.title.text]", figure)
        colours = "(id) => document.querySelector(`#figure-${id} .plot`).data.map((t) => t.marker && t.marker.color)"
        return json.dumps([joint_page.traces(figure), axes, joint_page.page.evaluate(colours, figure)])

    others = joint_page.page.locator(f"#figure-{figure} [data-control='{control}'] input:not([value='{value}'])")
    joint_page.choose(figure, control, others.first.get_attribute("value") or "")  # it may begin with this one
    before = drawn()
    joint_page.choose(figure, control, value)
    assert drawn() != before
    box = joint_page.page.locator(f"#figure-{figure} [data-control='{control}'] [value='{value}']")
    assert box.is_checked()


def test_a_keyboard_goes_through_the_choices_of_a_figure(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.page.wait_for_selector("#figure-accuracy[data-state='drawn']")
    watched.page.focus("#figure-accuracy [value='latency_s']")
    titles = []
    for _ in range(3):
        watched.page.keyboard.press("ArrowRight")
        titles.append(watched.page.locator("#figure-accuracy h3").inner_text().split(":")[0])
    assert titles == [f"Accuracy against {axis}" for axis in ("joules", "bits", "rounds")]


def test_the_slider_of_the_cell_moves_through_the_rounds(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.draw_all()
    slider = watched.page.locator("#figure-cell input[type=range]")
    before = watched.traces("cell")
    slider.fill("0")
    assert "Round 1:" in watched.page.locator("#figure-cell .lead").inner_text()
    assert watched.traces("cell") != before


def test_a_method_can_be_hidden_and_shown(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.draw_all()
    names = {trace["name"] for trace in watched.traces("accuracy")}
    assert "FedPer" in names
    watched.page.locator("#filter label", has_text="FedPer").click()
    assert "FedPer" not in {trace["name"] for trace in watched.traces("accuracy")}
    assert "FedPer" not in watched.page.locator("#targets").inner_text()
    for label in watched.page.locator("#filter label").all():
        if label.locator("input").is_checked():
            label.click()
    assert "All methods are hidden" in watched.page.locator("#figure-accuracy .none").inner_text()
    watched.page.locator("#filter label", has_text="FedPer").click()
    assert {trace["name"] for trace in watched.traces("clients")} == {"FedPer"}


def test_every_figure_can_be_saved_as_picture_and_as_data(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.draw_all()
    for number, figure in enumerate(sorted(FIGURES), start=1):
        if number % 4 == 0:  # Chromium drops the eleventh download of a page that asks for them in quick succession
            watched = open_page(static_page)
            watched.draw_all()
        rows = list(csv.reader(io.StringIO(saved(watched, figure, "csv").decode())))
        told = json.loads(saved(watched, figure, "json"))
        assert told["columns"] == rows[0]
        assert len(told["rows"]) == len(rows) - 1 > 0
        assert all(len(row) == len(rows[0]) for row in rows)
    for figure, size in (("accuracy", (2200, 1160)), ("cell", (1800, 1520))):
        with Image.open(io.BytesIO(saved(watched, figure, "png"))) as picture:
            assert picture.width == size[0]
            assert picture.height > size[1]  # the title stands above the plot
            assert len(picture.convert("RGB").getcolors(maxcolors=1 << 22) or []) > 20


def test_the_numbers_of_a_figure_are_those_of_the_folder(runs: Path, static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page)
    watched.page.select_option("#run", label="FLPDSP-OPT, seed 1")
    watched.draw_all()
    clients = pl.read_parquet(runs / "joint-1/clients.parquet")
    watched.choose("heat", "rate", "k")
    rows = json.loads(saved(watched, "heat", "json"))["rows"]
    assert len(rows) == clients.height
    shown = {(int(client), int(number)): k for client, number, k in rows}
    for row in clients.iter_rows(named=True):
        assert shown[row["client"], row["round"] + 1] == pytest.approx(row["k"], rel=1e-4)
    spent = json.loads(saved(watched, "energy", "json"))["rows"]
    assert sum(row[2] for row in spent) == pytest.approx(clients["energy_j"].sum(), rel=1e-5)
    assert len(spent) == CLIENTS


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_reader_and_the_button(static_page: Path, open_page: Open, scheme: str) -> None:
    watched = open_page(static_page, color_scheme=scheme)
    watched.page.wait_for_selector(
        "#figure-accuracy[data-state='drawn']"
    )  # it is drawn when the browser says it is near
    ink = "getComputedStyle(document.body).backgroundColor"
    first = watched.page.evaluate(ink)
    assert (sum(int(part) for part in first[4:-1].split(",")) < 384) is (scheme == "dark")
    watched.page.locator("#theme").click()  # light
    light = watched.page.evaluate(ink)
    watched.page.locator("#theme").click()  # dark
    assert watched.page.evaluate(ink) != light
    font = watched.page.evaluate("document.querySelector('#figure-accuracy .plot').layout.font.color")
    assert font == watched.page.evaluate("leanfed.theme().text")


def test_a_phone_needs_no_sideways_scrolling(static_page: Path, open_page: Open) -> None:
    watched = open_page(static_page, width=375)
    watched.draw_all()
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 375
    for figure in FIGURES:
        box = watched.page.locator(f"#figure-{figure}").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 375


def test_markup_in_names_and_settings_is_shown_as_text(runs: Path, tmp_path: Path, open_page: Open) -> None:
    folder = tmp_path / "runs" / "joint<img src=x onerror=alert(1)>"
    shutil.copytree(runs / "joint-0", folder)
    settings = json.loads((folder / "settings.json").read_text())
    settings |= {"name": MARKUP}
    settings["task"]["dataset"] = MARKUP
    (folder / "settings.json").write_text(json.dumps(settings))
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "command": MARKUP, "commit": MARKUP}))
    world = json.loads((folder / "world.json").read_text())
    world["sources"]["seed"] = {"source": MARKUP, "meaning": MARKUP}
    (folder / "world.json").write_text(json.dumps(world))
    events = (folder / "events.jsonl").read_text()
    assert "the round's" in events  # why a client sits out
    (folder / "events.jsonl").write_text(events.replace("the round's", json.dumps(MARKUP)[1:-1]))
    build_report([tmp_path / "runs"], tmp_path / "page.html", title=None)
    watched = open_page(tmp_path / "page.html")
    watched.draw_all()
    page = watched.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    for place in ("#title", "#settings", "#again", "#summary", "#run"):
        assert MARKUP in page.locator(place).text_content(), place
    legend = page.locator("#figure-accuracy .legendtext").first
    assert legend.text_content() == MARKUP
    assert legend.locator("b").count() == 0
    assert page.locator("#command").text_content() == MARKUP


def test_a_chosen_cut_is_shown_beside_the_others(tmp_path: Path, open_page: Open) -> None:
    cut = {
        "layer": "conv2",
        "shared": 2572,
        "private": 59134,
        "seconds": 0.5,
        "joules": 1.8,
        "gain": None,
        "refused": None,
    }
    table = {
        "chosen": "conv2",
        "why": "by cost, from conv3",
        "cuts": [cut, {**cut, "layer": "fc1", "refused": "no units"}],
    }
    folder = write_run(tmp_path / "auto")
    (folder / "cuts.json").write_text(json.dumps(table))
    build_report([folder], tmp_path / "page.html")
    shown = open_page(tmp_path / "page.html").page.locator("#settings [aria-label='Table: cuts'] tbody tr")
    cells = [row.locator("td").all_inner_texts() for row in shown.all()]
    assert cells[0] == ["conv2", "2,572", "59,134", "0.5", "1.8", "–", "chosen"]
    assert cells[1][-1] == "no units"


def test_a_real_fleets_page_shows_prediction_and_measurement(
    fleet_run: Path, runs: Path, tmp_path: Path, open_page: Open
) -> None:
    build_report([fleet_run, runs / "joint-0"], tmp_path / "page.html")
    watched = open_page(tmp_path / "page.html")
    watched.draw_all()
    places = {text.split(",")[0]: n for n, text in enumerate(watched.page.locator("#run option").all_inner_texts())}
    watched.page.select_option("#run", str(places["FLPDSP-OPT"]))
    assert watched.page.locator("#figure-measured").is_hidden()  # a simulated run measures nothing
    watched.page.select_option("#run", str(places["fleet"]))
    assert watched.page.locator("#figure-measured").is_visible()
    rounds, clients = (pl.read_parquet(fleet_run / f"{name}.parquet") for name in ("rounds", "clients"))
    shown = {trace["name"]: trace["y"] for trace in watched.traces("measured")}
    assert shown["predicted"] == pytest.approx(rounds["latency_s"].to_list(), rel=1e-5)
    assert shown["measured"] == pytest.approx(rounds["elapsed_s"].to_list(), rel=1e-5)
    watched.choose("measured", "view", "bytes")
    shown = {trace["name"]: trace["y"] for trace in watched.traces("measured")}
    coded = clients.group_by("round", maintain_order=True).agg(pl.col("frame_bytes").sum())["frame_bytes"] / 1e3
    assert shown["coded updates"] == pytest.approx(coded.to_list(), rel=1e-5)
    assert shown["whole answers as sent"] == pytest.approx((rounds["message_bytes"] / 1e3).to_list(), rel=1e-5)
    assert all(a < b for a, b in zip(shown["coded updates"], shown["whole answers as sent"], strict=True))
    watched.choose("measured", "view", "stages")
    assert {trace["name"] for trace in watched.traces("measured")} >= {"training", "upload"}
    told = json.loads(saved(watched, "measured", "json"))
    assert len(told["rows"]) == rounds.height
