"""Take the pictures of docs/serve.md: python docs/screenshots_serve.py (Chromium, about two minutes)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

OUT = Path(__file__).resolve().parent / "pictures"
PATIENCE_MS = 600_000
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
    OUT.mkdir(exist_ok=True)
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
        for path in OUT.glob("serve-*.png"):
            shrink(path)


def live(browser: Browser, url: str) -> None:
    """The list and a run's page while it goes on."""
    page = open_page(browser, url)
    page.wait_for_selector("[data-run='flpdsp-opt'] [data-state=running]", timeout=PATIENCE_MS)
    page.wait_for_selector("[data-run='flpdsp-opt'] td.number:not(:text('–'))", timeout=PATIENCE_MS)
    page.screenshot(path=OUT / "serve-runs.png", clip={"x": 0, "y": 0, "width": 1280, "height": 420})
    page.goto(url + "run/flpdsp-opt")
    page.wait_for_selector("#figure-accuracy[data-state=drawn]", timeout=PATIENCE_MS)
    page.wait_for_timeout(8000)
    page.evaluate("leanfed.redraw(true)")
    page.wait_for_timeout(2000)
    page.set_viewport_size({"width": 1280, "height": 1100})
    page.wait_for_timeout(1000)
    page.screenshot(path=OUT / "serve-live.png")


def planner(browser: Browser, url: str) -> None:
    """The planner, light and wide, dark, and on a phone."""
    for name, width, scheme in (
        ("serve-planner", 1440, "light"),
        ("serve-planner-dark", 1440, "dark"),
        ("serve-planner-phone", 390, "light"),
    ):
        page = open_page(browser, url + "planner", width=width, color_scheme=scheme)
        page.wait_for_selector("body[data-state=whole]", timeout=PATIENCE_MS)
        page.fill("#slider-energy_budget_j-number", "0.17")  # so that some are excluded
        page.wait_for_selector("body[data-state=asking]", state="detached", timeout=PATIENCE_MS)
        page.wait_for_selector("body[data-state=whole]", timeout=PATIENCE_MS)
        page.wait_for_timeout(1500)
        page.screenshot(path=OUT / f"{name}.png", full_page=True)


def shrink(path: Path) -> None:
    """At most 256 colours: a quarter of the bytes."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


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
