"""A run started from the form, refusals beside their fields, chosen runs compared; and axe-core on every page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.axe import grave_faults
from tests.browser.conftest import Open, watch
from tests.integration.test_serve import served

pytestmark = pytest.mark.waits
PATIENCE_MS = 120_000  # a busy machine is slow, not wrong


def test_a_run_is_started_from_the_form_and_compared(runs: Path, tmp_path: Path, open_page: Open) -> None:
    runs = Path(shutil.copytree(runs, tmp_path / "runs"))
    with served(runs) as told:
        page = open_page(told["url"] + "new", width=412).page
        page.get_by_label("Name of the run").fill("from-the-page")
        page.get_by_label("Method").select_option("fedper")
        page.get_by_label("Clients").fill("-4")
        page.get_by_label("Rounds").fill("2")
        page.get_by_label("Partition").select_option("iid")
        page.get_by_role("button", name="Start the run").click()
        beside = page.locator('[data-key="task.partition.clients"] .refused')
        expect(beside).to_contain_text("greater than or equal to 0", timeout=PATIENCE_MS)
        assert not (runs / "from-the-page").exists()
        page.get_by_label("Clients").fill("4")
        page.get_by_label("Any further setting").select_option("training.batch_size")
        page.get_by_label("training.batch_size").fill("16")
        assert page.evaluate("document.documentElement.scrollWidth") <= 412
        page.get_by_role("button", name="Start the run").click()
        page.wait_for_url("**/")
        expect(page.locator('[data-run="from-the-page"]')).to_contain_text("finished", timeout=PATIENCE_MS)
        settings = (runs / "from-the-page" / "settings.json").read_text()
        assert '"batch_size": 16' in settings
        page.get_by_label("Compare from-the-page").check()
        page.get_by_label("Compare fedper-0").check()
        page.get_by_role("button", name="Compare the chosen runs").click()
        page.wait_for_selector("#figure-accuracy[data-state=drawn]")
        expect(page.locator("#title")).to_have_text("2 methods on MNIST-5k", timeout=PATIENCE_MS)


def test_no_page_has_a_serious_accessibility_fault(runs: Path, static_page: Path, browser: Browser) -> None:
    faults: list[str] = []
    with served(runs) as told:
        for address, ready in (
            (static_page, "#figure-accuracy[data-state=drawn]"),
            (told["url"], "[data-run]"),
            (told["url"] + "new", "#start"),
            (told["url"] + "planner", "body[data-state=whole]"),
            (told["url"] + "run/fedper-0", "#figure-accuracy[data-state=drawn]"),
        ):
            for scheme in ("light", "dark"):
                page = watch(browser, address, bypass_csp=True, color_scheme=scheme).page
                page.wait_for_selector(ready)
                faults += [f"{address} ({scheme}): {fault}" for fault in grave_faults(page)]
                page.context.close()
    assert not faults, "\n".join(faults)
