"""Take the pictures of the static page in docs/pictures: python docs/screenshots.py [RUNS]

Without a folder of runs it first makes some on the embedded digits: FLPDSP-OPT and FedPer on three seeds, Algorithm 2's
plans and FedAvg once (about two minutes on two quiet cores).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import leanfed
from leanfed.report.page import build_report

PICTURES = Path(__file__).resolve().parent / "pictures"
WIDTH, PHONE = 1280, 390  # px
PATIENCE_MS = 300_000  # a busy machine is slow, not wrong


def make_runs(folder: Path) -> Path:
    """Eight short runs with every kind of figure in them."""
    base: dict[str, Any] = {
        "rounds": 60,
        "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 20}},
        "radio": {"wire": True},
        "evaluation": {"every": 2},
    }
    joint = {"allocation": {"rule": "joint", "form": "fast"}}
    dca = {"allocation": {"rule": "joint", "form": "safe", "solver": "dca"}, "rounds": 30}
    wanted: list[tuple[str, int, dict[str, Any]]] = [("FLPDSP-OPT", seed, joint) for seed in range(3)]
    wanted += [("FedPer", seed, {"algorithm": {"name": "fedper"}}) for seed in range(3)]
    wanted += [("FLPDSP safe, Algorithm 2", 0, dca), ("FedAvg", 0, {"algorithm": {"name": "fedavg"}})]
    for name, seed, changes in wanted:
        settings = leanfed.Settings.from_values({**base, "name": name, "seed": seed, **changes})
        leanfed.run(settings, folder / f"{name.split(',')[0].lower().replace(' ', '-')}-{seed}")
    return folder


def open_drawn(browser: Browser, address: str, *, width: int = WIDTH, scheme: str = "light") -> Page:
    """A window with every figure of the page drawn."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.wait_for_selector("#figure-accuracy[data-state]")
    page.add_style_tag(content="nav.bar, .pick { position: static !important }")  # once, not over every picture
    page.evaluate("leanfed.redraw(true)")
    page.wait_for_timeout(500)
    return page


def take(page: Page, name: str, first: str, last: str) -> None:
    """The page from the top of one element to the bottom of another, in at most 256 colours."""
    boxes = [page.locator(place).bounding_box() for place in (first, last)]
    assert boxes[0] is not None, first
    assert boxes[1] is not None, last
    width, top = page.viewport_size["width"], max(0.0, boxes[0]["y"] + page.evaluate("scrollY") - 12)
    bottom = boxes[1]["y"] + boxes[1]["height"] + page.evaluate("scrollY") + 12
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": top, "width": width, "height": bottom - top})
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(path)


def static_pictures(browser: Browser, runs: Path, scratch: Path) -> None:
    """The static page: comparison and depth in light, the top in dark, and a phone."""
    file = scratch / "report.html"
    build_report([runs], file)
    page = open_drawn(browser, file.as_uri())
    take(page, "static-comparison", "header.top", "#compare")
    take(page, "static-depth", "#depth", "#depth")
    page.select_option("#run", label=next(t for t in page.locator("#run option").all_inner_texts() if "safe" in t))
    page.locator("#figure-solver label", has_text="steps").click()
    take(page, "static-solver", "#figure-labels", "#figure-solver")
    dark = open_drawn(browser, file.as_uri(), scheme="dark")
    take(dark, "static-dark", "header.top", "#figure-accuracy")
    phone = open_drawn(browser, file.as_uri(), width=PHONE)
    take(phone, "static-phone", "header.top", "#figure-accuracy")
    for opened in (page, dark, phone):
        opened.context.close()


def main(arguments: Sequence[str]) -> None:
    """Make the runs where none are named, then take all pictures."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("No browser is installed. On Debian: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        runs = Path(arguments[0]) if arguments else make_runs(Path(scratch) / "runs")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        static_pictures(browser, runs, Path(scratch))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
