"""A real browser: Chromium of the system, driven by Playwright; pages may speak to nobody but this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import leanfed
from leanfed.report.page import build_report
from leanfed.runs.settings import Settings
from tests.shared import made_once

HERE = ("file:", "data:", "blob:", "about:")  # what a static page may ask for
CLIENTS = 8


@dataclass
class Watched:
    """A page and everything it complained about or asked for elsewhere."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # to anywhere but the page's own place

    def figures(self) -> list[str]:
        """The names of all figures."""
        names: list[str] = self.page.evaluate("leanfed.figures.map((figure) => figure.id)")
        return names

    def draw_all(self) -> None:
        """Draw also what is not in view."""
        self.page.evaluate("leanfed.redraw(true)")

    def choose(self, figure: str, control: str, value: str) -> None:
        """Choose one option of a figure's control."""
        box = self.page.locator(
            f"#figure-{figure} [data-control='{control}'] label", has=self.page.locator(f"[value='{value}']")
        )
        box.click()

    def traces(self, figure: str) -> list[dict[str, Any]]:
        """What a figure draws: name, type and numbers of every trace."""
        drawn: list[dict[str, Any]] = self.page.evaluate(
            """(id) => document.querySelector(`#figure-${id} .plot`).data.map((t) => ({
                 name: t.name, type: t.type || "scatter", z: t.z || null,
                 x: Array.from(t.x || []), y: Array.from(t.y || [])}))""",
            figure,
        )
        return drawn


Open = Callable[..., Watched]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the first takes a fifth less


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; skipped only where none is installed."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser is installed; on Debian: apt-get install {BROWSERS[0]}")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def watch(browser: Browser, address: str | Path, *, width: int = 1280, **context: Any) -> Watched:
    """Open an address in a fresh window and note everything it complains about or asks for elsewhere."""
    page = browser.new_context(viewport={"width": width, "height": 900}, **context).new_page()
    url = address.resolve().as_uri() if isinstance(address, Path) else address
    home = HERE if isinstance(address, Path) else (*HERE, "/".join(url.split("/")[:3]))
    page.set_default_timeout(120_000)  # a busy machine is slow, not wrong
    watched = Watched(page)
    page.on("console", lambda said: watched.errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(home) else watched.requests.append(asked.url))
    page.goto(url)
    return watched


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open addresses; at the end no page must have complained or asked for anything elsewhere."""
    opened: list[Watched] = []

    def open_address(address: str | Path, *, strict: bool = True, **options: Any) -> Watched:
        watched = watch(browser, address, **options)
        if strict:
            opened.append(watched)
        return watched

    yield open_address
    for watched in opened:
        watched.page.context.close()
        assert watched.errors == []
        assert watched.requests == []


def small_settings(name: str, seed: int, **changes: Any) -> Settings:
    """Eight clients with two digits each and six rounds: seconds of work, real data, every kind of figure."""
    values: dict[str, Any] = {
        "name": name,
        "seed": seed,
        "rounds": 6,
        "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": CLIENTS}},
        "radio": {"wire": True},
        "evaluation": {"every": 2},
    }
    return Settings.from_values({**values, **changes})


def make_runs(folder: Path) -> None:
    """The joint plan and FedPer on two seeds each, and Algorithm 2's plans once."""
    joint: dict[str, Any] = {
        "allocation": {"rule": "joint", "form": "fast"},
        "radio": {"computation": "operations"},  # so that somebody misses a deadline
    }
    safe: dict[str, Any] = {
        "allocation": {"rule": "joint", "form": "safe", "solver": "dca"},
        "rounds": 3,
        "theory": {"samples": 32},  # for theta, which takes most of this run's time
    }
    for seed in (0, 1):
        leanfed.run(small_settings("FLPDSP-OPT", seed, **joint), folder / f"joint-{seed}")
        leanfed.run(small_settings("FedPer", seed, algorithm={"name": "fedper"}), folder / f"fedper-{seed}")
    leanfed.run(small_settings("FLPDSP safe", 0, **safe), folder / "safe-0")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of real runs, which tests only read."""
    return made_once(tmp_path_factory, "browser-runs", make_runs)


@pytest.fixture(scope="session")
def static_page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The static page of those runs."""

    def make(folder: Path) -> None:
        build_report([runs], folder / "report.html", targets=(0.3, 0.9))

    return made_once(tmp_path_factory, "browser-page", make) / "report.html"


@pytest.fixture(scope="session")
def fleet_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the real server and client apps, over messages carried in memory."""
    pytest.importorskip("flwr")
    from tests.unit.deployment.fleets import Trial, settings_of
    from tests.unit.deployment.identity import as_run_one

    with as_run_one():
        trial = Trial(settings_of(rounds=4), tmp_path_factory.mktemp("fleet"))
        trial.play()
    return trial.folder
