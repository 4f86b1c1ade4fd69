"""The documentation site in a browser, opened as files: light, dark and on a phone; nothing leaves the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Open
from tests.site_build import built_site

PAGES = ("index.html", "concepts.html", "reference/settings.html")
PHONE = 390  # px


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


def test_pages_open_light_dark_and_on_a_phone_without_a_request(open_page: Open, site: Path) -> None:
    for name in PAGES:
        papers = set()
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", PHONE)):
            page = open_page(site / name, width=width, color_scheme=scheme).page
            page.wait_for_selector("article h1")
            wanted = "slate" if scheme == "dark" else "default"
            assert page.get_attribute("body", "data-md-color-scheme") == wanted
            papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            # Tables and drawings scroll inside themselves; the page is no wider than the window.
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert len(papers) == 2


def test_a_word_is_found_from_files_alone(open_page: Open, site: Path) -> None:
    page = open_page(site / "index.html").page
    page.fill("input[name=query]", "worst decile")
    page.wait_for_selector(".md-search-result__link")
    titles = page.locator(".md-search-result__link").all_inner_texts()
    assert any("worst decile" in title.lower() for title in titles)


def test_drawings_change_with_the_scheme_and_formulas_are_drawn(open_page: Open, site: Path) -> None:
    inks = set()
    for scheme in ("light", "dark"):
        page = open_page(site / "concepts.html", color_scheme=scheme).page
        inks.add(page.evaluate("getComputedStyle(document.querySelector('.drawing text')).fill"))
        assert page.locator(".drawing svg").count() == 6
    assert len(inks) == 2
    page = open_page(site / "mathematics.html").page
    assert page.locator("math").count() > 20
    assert page.evaluate("document.querySelector('math[display=block]').getBoundingClientRect().height") > 15
