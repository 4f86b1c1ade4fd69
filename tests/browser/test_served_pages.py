"""The served pages in a real browser: a live run advances, the planner answers, bad files and tokens are told."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Open
from tests.integration.conftest import SETTINGS
from tests.integration.test_serve import process, served

PATIENCE_MS = 240_000  # a busy machine is slow, not wrong
MARKUP = '<img src=x onerror="window.hurt=1"><b>bold</b>'
FIGURES = ("allocation", "rules", "participation", "bandwidth", "worth")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to serve."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    """A real server on a free port."""
    with served(place) as told:
        yield told["url"]


def settled(page: Page) -> None:
    page.wait_for_selector("body[data-state=whole]", timeout=PATIENCE_MS)


def slide(page: Page, key: str, steps: int) -> None:
    """Move a slider with the keyboard, as anyone can."""
    page.focus(f"#slider-{key}")
    for _ in range(abs(steps)):
        page.keyboard.press("PageUp" if steps > 0 else "PageDown")


def test_the_planner_answers_a_slider(url: str, open_page: Open) -> None:
    watched = open_page(url + "planner")
    page = watched.page
    settled(page)
    first = {name: watched.traces(name) for name in FIGURES}
    for name, traces in first.items():
        assert page.locator(f"#figure-{name}").get_attribute("data-state") == "drawn", name
        assert any(value is not None for trace in traces for value in trace["y"]), name
    drawn = [len(trace["x"]) for trace in first["allocation"] if trace["name"] == "takes part"]
    assert sum(drawn) >= 3 * max(drawn)  # the shares, and how many devices have which k and r
    slide(page, "bandwidth_hz", -3)
    page.wait_for_selector("#command:has-text('bandwidth_hz=')", timeout=PATIENCE_MS)
    settled(page)
    assert float(page.input_value("#slider-bandwidth_hz-number")) < 10
    assert watched.traces("allocation") != first["allocation"]
    assert watched.traces("worth") != first["worth"]
    assert int(page.get_attribute("body", "data-redraw-ms") or 0) > 0
    assert page.locator("#absent li").count() > 0


def test_a_dragged_slider_asks_for_no_more_than_it_shows(url: str, open_page: Open) -> None:
    page = open_page(url + "planner").page
    settled(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(url)))
    page.evaluate(
        """() => {
          const slider = document.getElementById("slider-bandwidth_hz");
          document.body.dataset.state = "moving";
          for (let place = 500; place < 530; place += 1) {
            slider.value = place;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          }
        }"""
    )
    settled(page)
    # Thirty moves, two plans: the first at once, the newest when its answer is there; curves for the newest only.
    assert asked == ["api/plan", "api/plan", "api/curves"]
    shown = float(page.locator("#command").inner_text().split("bandwidth_hz=")[1].split()[0])
    assert shown == pytest.approx(1e6 * float(page.input_value("#slider-bandwidth_hz-number")))


def test_the_exports_are_what_the_command_gives(url: str, open_page: Open, tmp_path: Path) -> None:
    page = open_page(url + "planner").page
    settled(page)
    page.fill("#slider-clients-number", "12")
    page.fill("#slider-radius_m-number", "333")
    page.wait_for_selector("#command:has-text('--radius-m 333')", timeout=PATIENCE_MS)
    settled(page)
    saved = {}
    for button in ("save-plan", "save-problem"):
        with page.expect_download() as download:
            page.click(f"#{button}")
        download.value.save_as(tmp_path / download.value.suggested_filename)
        saved[button] = download.value.suggested_filename
    assert saved == {"save-plan": "plan.json", "save-problem": "problem.json"}
    plan = json.loads((tmp_path / "plan.json").read_text())
    words = shlex.split(page.inner_text("#command"))
    for arguments in (words[1:], ["plan", "problem.json", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "leanfed.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        assert {**json.loads(done.stdout), "seconds": 0} == {**plan, "seconds": 0}


def test_a_fleet_file_is_planned_and_a_bad_one_is_told(url: str, open_page: Open) -> None:
    page = open_page(url + "planner").page
    settled(page)
    head = "device,distance_m,power_dbm,cpu_ghz,bandwidth_mhz\n"
    rows = "".join(f"node {n},{30 + 20 * n},22,{1 + n % 3},1.5\n" for n in range(9))

    def give(name: str, text: str) -> None:
        page.set_input_files("#fleet", {"name": name, "mimeType": "text/csv", "buffer": text.encode()})

    give("fleet.csv", head + rows.replace(",22,", ",loud,", 1))
    page.wait_for_selector(
        "#trouble:has-text(\"fleet.csv row 1: power_dbm is 'loud', not a number\")",
        timeout=PATIENCE_MS,
    )
    # Markup in a name or a field is text.
    give(
        f"{MARKUP}.csv",
        head + rows + f'"{MARKUP.replace(chr(34), chr(34) * 2)}",400,20,0.05,1.5\n',
    )
    page.wait_for_selector("#fleet-name:has-text('10 devices')", timeout=PATIENCE_MS)
    page.wait_for_selector("#command:has-text('--clients 10')", timeout=PATIENCE_MS)
    settled(page)
    assert page.is_hidden("#trouble")
    assert page.input_value("#slider-bandwidth_hz-number") == "1.5"
    assert page.is_disabled("#slider-radius_m")
    assert MARKUP in page.inner_text("#absent")
    page.click("#everyone summary")
    page.wait_for_selector("#everyone td", timeout=PATIENCE_MS)  # the table is made when the box says that it opened
    assert MARKUP in page.inner_text("#everyone")
    assert page.locator("img, b").count() == 0
    assert page.evaluate("window.hurt") is None
    page.click("#drawn")
    page.wait_for_selector("#command:has-text('--fleet paper')", timeout=PATIENCE_MS)


def test_impossible_limits_are_told_on_the_page(url: str, open_page: Open) -> None:
    page = open_page(url + "planner", width=390).page
    settled(page)
    page.fill("#slider-deadline_s-number", "0.01")
    page.wait_for_selector("#verdict:has-text('nobody can take part')", timeout=PATIENCE_MS)
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # nothing hangs over on a phone
    page.check("#slider-deadline_s-unlimited")
    page.wait_for_selector("#verdict:has-text('Solved')", timeout=PATIENCE_MS)


def test_a_live_run_advances_on_its_page_and_can_be_stopped(url: str, place: Path, open_page: Open) -> None:
    settings = place / "long.toml"
    settings.write_text(SETTINGS.replace('name = "small"', f"name = '{MARKUP}'").replace("rounds = 6", "rounds = 3000"))
    listed = open_page(url).page
    with process(
        "run",
        settings,
        "--out",
        place / "live",
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as run:
        listed.wait_for_selector("[data-run=live] [data-state=running]", timeout=PATIENCE_MS)
        assert MARKUP in listed.inner_text("[data-run=live]")
        listed.click("[data-run=live] a")
        listed.wait_for_selector("#figure-accuracy[data-state=drawn]", timeout=PATIENCE_MS)
        before = int(listed.get_attribute("body", "data-shown-rounds") or 0)
        listed.wait_for_selector(f"body:not([data-shown-rounds='{before}'])", timeout=PATIENCE_MS)
        assert int(listed.get_attribute("body", "data-shown-rounds") or 0) > before
        assert MARKUP in listed.inner_text("h1")
        assert listed.locator("img, b").count() == 0
        listed.click("[data-action=stop]")
        listed.wait_for_selector("[data-state=stopped]", timeout=PATIENCE_MS)
        listed.wait_for_selector("[data-action=resume]", timeout=PATIENCE_MS)
        run.wait(timeout=PATIENCE_MS / 1000)
    assert listed.evaluate("window.hurt") is None


def test_the_token_is_asked_for(place: Path, open_page: Open) -> None:
    with served(place, "--token") as told:
        bare, _, token = told["url"].partition("?token=")
        page = open_page(bare + "planner", strict=False).page  # the browser logs the refusal
        assert "needs its token" in page.inner_text("h1")
        page.fill("[name=token]", "wrong")
        with page.expect_navigation():  # else the next words may go into the page that is being left
            page.click("button")
        assert "needs its token" in page.inner_text("h1")
        page.fill("[name=token]", token)
        page.click("button")
        page.wait_for_selector("#runs", timeout=PATIENCE_MS)
        assert token not in page.url
        linked = open_page(told["url"]).page
        linked.wait_for_selector("#runs", timeout=PATIENCE_MS)
        assert token not in linked.url
        linked.goto("about:blank")  # before the server ends, which an open page would report
