"""Take the pictures of the static page in docs/pictures: python docs/screenshots.py [RUNS]

Without a folder of runs it first makes some on the embedded digits: FLPDSP-OPT and FedPer on three seeds, Algorithm 2's
plans and FedAvg once (about two minutes on two quiet cores).
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import leanfed
from leanfed.report.page import build_report

PICTURES = Path(__file__).resolve().parent / "pictures"
RESULTS = PICTURES.parents[1] / "results"  # the paper's values, for runs of the catalogue
WIDTH, PHONE = 1280, 390  # px
COLUMN, GAP = 2000, 24  # px: how long a phone's page gets before it goes on beside itself
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
    """The page from the top of one element to the bottom of another."""
    save(between(page, first, last)[0], name)


def take_phone(page: Page, name: str, first: str, last: str) -> None:
    """The same of a narrow page, which goes on in a column beside itself before a card that would be too low."""
    picture, top = between(page, first, last)
    tops = page.evaluate(
        "[...document.querySelectorAll('.card, .sliders fieldset, h2')].map((e) => e.getBoundingClientRect().y)"
    )
    scrolled = page.evaluate("scrollY")
    breaks = sorted(y + scrolled - top - 8 for y in tops if 0 < y + scrolled - top < picture.height)
    columns = math.ceil(picture.height / COLUMN)
    limit, cuts = picture.height / columns, [0.0] * (columns + 1)
    while len(cuts) > columns:  # a little longer, until the cards fit that many columns
        limit, cuts = limit + 20, [0.0]
        while picture.height - cuts[-1] > limit:
            fits = [y for y in breaks if cuts[-1] < y <= cuts[-1] + limit]
            cuts.append(fits[-1] if fits else cuts[-1] + limit)
    spans = list(zip(cuts, [*cuts[1:], float(picture.height)], strict=True))
    size = (len(spans) * (picture.width + GAP) - GAP, round(max(low - high for high, low in spans)))
    sheet = Image.new("RGB", size, "white")
    for number, (high, low) in enumerate(spans):
        sheet.paste(picture.crop((0, round(high), picture.width, round(low))), (number * (picture.width + GAP), 0))
    save(sheet, name)


def between(page: Page, first: str, last: str) -> tuple[Image.Image, float]:
    """A picture from the top of one element to the bottom of another, and where on the page it begins."""
    boxes = [page.locator(place).bounding_box() for place in (first, last)]
    assert boxes[0] is not None, first
    assert boxes[1] is not None, last
    width, top = page.viewport_size["width"], max(0.0, boxes[0]["y"] + page.evaluate("scrollY") - 12)
    bottom = boxes[1]["y"] + boxes[1]["height"] + page.evaluate("scrollY") + 12
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top}
    return Image.open(BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB"), top


def save(picture: Image.Image, name: str) -> None:
    """In at most 256 colours: a quarter of the bytes."""
    path = PICTURES / f"{name}.png"
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path)


def static_pictures(browser: Browser, runs: Path, scratch: Path) -> None:
    """The static page: comparison and depth in light, both in dark, and a phone."""
    file = scratch / "report.html"
    build_report([runs], file, results=RESULTS)
    page = open_drawn(browser, file.as_uri())
    take(page, "static-comparison", "header.top", "#compare")
    take(page, "static-depth", "#depth", "#depth")
    page.select_option("#run", label=next(t for t in page.locator("#run option").all_inner_texts() if "safe" in t))
    for steps in page.locator("#figure-solver label", has_text="steps").all():  # where Algorithm 2 planned
        steps.click()
    take(page, "static-solver", "#figure-labels", "#figure-solver")
    dark = open_drawn(browser, file.as_uri(), scheme="dark")
    take(dark, "static-dark", "header.top", "#figure-accuracy")
    take(dark, "static-depth-dark", "#depth", "#depth")
    phone = open_drawn(browser, file.as_uri(), width=PHONE)
    take_phone(phone, "static-phone", "header.top", "#depth")
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
