"""The documentation site: it builds strictly, fetches nothing, and its reference is complete."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main

import leanfed
from leanfed.cli import app
from leanfed.quantities import SCHEMA
from leanfed.results import TABLES, WRITTEN, leaves
from leanfed.runs.settings import Settings
from tests.site_build import ROOT, built_site

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "hooks"))
import drawings  # noqa: E402
import reference  # noqa: E402
import repository  # noqa: E402

sys.path.remove(str(DOCS / "hooks"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


class Fetched(HTMLParser):
    """What a browser loads by itself when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video") and values.get("src"):
            self.found.append(str(values["src"]))
        if tag == "link" and values.get("href") and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(str(values["href"]))


def test_the_site_builds_strictly_and_its_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text(encoding="utf-8"))
        assert fetched.found
        for address in fetched.found:
            assert not re.match(r"(\w+:)?//", address), f"{page.name} loads {address}"
            assert (
                address.startswith("data:") or (page.parent / address.partition("?")[0]).is_file() or page.stem == "404"
            )


def test_styles_load_nothing_from_elsewhere(site: Path) -> None:
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_settings_page_has_every_setting(site: Path) -> None:
    shown = text_of(site / "reference/settings.html")
    for key, _ in leaves(Settings().resolved()):
        assert key.rpartition(".")[2] in shown, key
    for name in ('algorithm.name = "flpdsp"', 'aggregation.name = "clip-dedupe"', "[radio.fleet]"):
        assert name in shown


def test_the_command_line_page_has_every_verb_and_option(site: Path) -> None:
    shown = text_of(site / "reference/command-line.html")
    for name, command in reference.verbs(typer.main.get_command(app), "leanfed"):
        assert name in shown
        for parameter in command.params:
            assert all(option in shown for option in parameter.opts if option.startswith("--")), name


def test_the_python_page_has_every_public_name(site: Path) -> None:
    page = (site / "reference/python-api.html").read_text(encoding="utf-8")
    for name, module in leanfed._PUBLIC.items():
        assert f'id="{module}.{name}"' in page
        assert f"leanfed.{name}" in page
    for shown in (page, (site / "reference/contracts.html").read_text(encoding="utf-8")):
        assert '<span class="gp">&gt;&gt;&gt; </span>' in shown  # examples are code,
        assert "<blockquote>" not in shown  # and no quotations


def test_the_run_folder_page_has_every_file_and_column(site: Path) -> None:
    shown = text_of(site / "run-folder.html")
    for quantity in SCHEMA.values():
        assert not quantity.tables or (quantity.name in shown and quantity.label in shown), quantity.name
    for file in WRITTEN - {"fleet.json"}:  # a fleet's own
        assert file in shown or file.startswith("manifest"), file
    assert all(f"{table}.parquet" in shown for table in TABLES)


def test_a_link_out_of_docs_takes_its_target_along(site: Path) -> None:
    assert (site / "repository/RESULTS.html").is_file()
    assert (site / "repository/results/report/planner.json").is_file()
    source, here = DOCS / "tutorials/own-method.md", "tutorials/own-method.md"
    moved = repository.rewritten("[a](../../CONTRIBUTING.md#top) [b](../python.md) [c](gone.md)", source, here)
    assert moved == "[a](../repository/CONTRIBUTING.md#top) [b](../python.md) [c](gone.md)"
    back = repository.rewritten("[a](docs/fleet.md)", ROOT / "RESULTS.md", "repository/RESULTS.md")
    assert back == "[a](../fleet.md)"


def test_limits_and_types_of_a_setting_are_told() -> None:
    key = {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "null"}], "default": None}
    assert (reference.type_of(key), reference.limits_of(key)) == ("number or none", "> 0, ≤ 1")
    assert reference.default_of(key) == "none"
    assert reference.default_of({"default": "fast"}) == '`"fast"`'
    assert reference.cell("a | <b>\n c") == "a \\| &lt;b> c"


def test_drawings_follow_the_page_and_say_what_they_show() -> None:
    sheet = (DOCS / "assets/site.css").read_text(encoding="utf-8")
    files = sorted((DOCS / "pictures/concepts").glob("*.svg"))
    assert len(files) == 6
    assert len({re.search(r"<style>.*?</style>", file.read_text(), re.DOTALL)[0] for file in files}) == 1
    for file in files:
        svg = drawings.inlined('a "b"', file)
        assert 'aria-label="a &quot;b&quot;"' in svg
        assert "<style>" not in svg
        assert "\n\n" not in svg
        for name in {name for names in re.findall(r'class="([\w -]+)"', svg) for name in names.split()} - {"drawing"}:
            assert f".drawing .{name} " in sheet, f"{file.name}: {name}"


def test_formulas_are_drawn_outside_code_only() -> None:
    page = SimpleNamespace(meta={"math": True}, file=SimpleNamespace(abs_src_path=str(DOCS / "mathematics.md")))
    text = drawings.on_page_markdown("$k_n$ costs `$5`\n\n```sh\n$HOME $x$\n```\n", page=page)
    assert text.startswith("<math")
    assert "`$5`" in text
    assert "$HOME $x$" in text


def test_the_start_page_shows_the_committed_demo() -> None:
    page = " ".join((DOCS / "start.md").read_text(encoding="utf-8").split())
    for run in json.loads((ROOT / "results/demo/comparison.json").read_text(encoding="utf-8"))["runs"]:
        numbers = (f"{run[name]:.4f}" for name in ("accuracy", "worst_decile", "majority_guess"))
        assert f"{run['name']} {run['rounds']} {' '.join(numbers)}" in page
        reached = run["sustained_time_to_accuracy"]["0.8"]
        assert reached is None or f"after {reached['latency_s']:.1f}" in page


def test_the_search_index_is_beside_the_pages(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    assert any("worst decile" in entry["text"].lower() for entry in index["docs"])
    assert (site / "search/search_index.js").is_file()
