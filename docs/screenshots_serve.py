"""Take the pictures of docs/serve.md: python docs/screenshots_serve.py (Chromium, about two minutes)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from screenshots import PHONE, PICTURES, take, take_phone

PATIENCE_MS = 600_000
STILL = "nav.bar, .pick, .sliders { position: static !important; max-height: none !important }"  # whole, and once
SETTINGS = """
name = "FLPDSP-OPT"
rounds = 300
[task.partition]
kind = "class"
classes_per_client = 2
clients = 20
[evaluation]
every = 2
[algorithm]
name = "flpdsp"
"""
PLANNED = """[allocation]
rule = "joint"
form = "fast"
"""


def main() -> None:
    """A finished run, one that goes on, one that was stopped; then the pages."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "opt.toml").write_text(SETTINGS + PLANNED)
        runs = Path("runs")
        (root / "fedper.toml").write_text(SETTINGS.replace("FLPDSP-OPT", "FedPer").replace("flpdsp", "fedper"))
        leanfed(root, "run", "fedper.toml", "--set", "rounds=40", "--out", runs / "fedper")
        with (
            started(root, "run", "opt.toml", "--out", runs / "flpdsp-opt") as run,
            started(root, "serve", "runs", "--port", "0", "--json") as server,
        ):
            url = json.loads(server.stdout.readline())["url"]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                live(browser, url)
                run.terminate()
                planner(browser, url)
                server.terminate()
                browser.close()


def live(browser: Browser, url: str) -> None:
    """The list and a run's page while it goes on."""
    page = open_page(browser, url)
    page.wait_for_selector("[data-run='flpdsp-opt'] [data-state=running]", timeout=PATIENCE_MS)
    page.wait_for_selector("[data-run='flpdsp-opt'] td.number:not(:text('–'))", timeout=PATIENCE_MS)
    take(page, "serve-runs", "header.top", "footer")
    page.goto(url + "run/flpdsp-opt")
    page.wait_for_selector("body[data-shown-rounds]", timeout=PATIENCE_MS)
    while int(page.get_attribute("body", "data-shown-rounds") or 0) < 40:
        page.wait_for_timeout(500)
    page.wait_for_selector("#figure-accuracy[data-state=drawn]", timeout=PATIENCE_MS)
    page.add_style_tag(content=STILL)
    page.wait_for_timeout(1000)
    take(page, "serve-live", "header.top", "#figure-accuracy")


def planner(browser: Browser, url: str) -> None:
    """The planner, light and wide, dark, and on a phone."""
    for name, width, scheme in (
        ("serve-planner", 1440, "light"),
        ("serve-planner-dark", 1440, "dark"),
        ("serve-planner-phone", PHONE, "light"),
    ):
        page = open_page(browser, url + "planner", width=width, color_scheme=scheme)
        page.wait_for_selector("body[data-state=whole]", timeout=PATIENCE_MS)
        page.evaluate("document.body.dataset.state = 'asked'")
        page.fill("#slider-energy_budget_j-number", "0.17")  # so that some are excluded
        page.wait_for_selector("body[data-state=whole]", timeout=PATIENCE_MS)
        page.evaluate("document.activeElement.blur()")
        page.add_style_tag(content=STILL)
        page.wait_for_timeout(1500)
        (take_phone if width == PHONE else take)(page, name, "header.top", "footer")


def open_page(browser: Browser, url: str, *, width: int = 1280, color_scheme: str = "light") -> Page:
    """A window of its own."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=color_scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    return page


def leanfed(place: Path, *arguments: str | Path) -> None:
    """Run a verb to its end."""
    subprocess.run(
        [sys.executable, "-m", "leanfed.cli", *map(str, arguments)],
        cwd=place,
        check=True,
    )


def started(place: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start a verb as a process."""
    command = [sys.executable, "-m", "leanfed.cli", *map(str, arguments)]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
