"""The static page: one HTML file with the data, the style and all scripts inside; it fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment
from markupsafe import Markup

from leanfed.files import make_folder, write_text
from leanfed.report.data import report_data
from leanfed.report.packing import script_json

SCRIPTS = ("core.js", "cards.js", "compare.js", "measured.js", "depth.js", "solver.js", "tables.js", "page.js")
WRAPPER = (
    '(typeof self !== "undefined" ? self : this, () => {\n',
    "return Plotly;\n}));",
)  # plotly's own


def build_report(
    paths: Sequence[Path],
    out: Path,
    *,
    targets: Sequence[float] | None = None,
    title: str | None = None,
    results: Path | None = None,
) -> dict[str, Any]:
    """Write the page of some run folders and return its data."""
    data = report_data(paths, targets=targets, title=title, results=results)
    make_folder(out.parent)
    write_text(out, render_page(data))
    return data


def render_page(data: Mapping[str, Any], *, scripts: Sequence[str] = (), live: bool = False) -> str:
    """The page as text; `scripts` are further script texts that run after the page's own."""
    template = environment().get_template("page.html")
    return template.render(
        title=data["title"],
        style=Markup(static("page.css")),
        plotly=Markup(plotly_script()),
        data=Markup(script_json(data)),
        scripts=[Markup(text) for text in (*(static(name) for name in SCRIPTS), *scripts)],
        live=live,
    )


@cache
def environment() -> Environment:
    """The templates; values that are not marked as safe are escaped."""
    folder = files("leanfed.report") / "templates"
    sources = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.is_file()}
    return Environment(loader=DictLoader(sources), autoescape=True, trim_blocks=True, lstrip_blocks=True)


@cache
def static(name: str) -> str:
    """A style sheet or script that comes with the package."""
    return (files("leanfed.report") / "static" / name).read_text(encoding="utf-8")


@cache
def plotly_script() -> str:
    """The plotting script, from the installed package."""
    return without_wrapper((files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8"))


def without_wrapper(script: str) -> str:
    """The plotting script with its notice but without the function around it, which is for other module systems.

    A browser would read all of the script once more for that function (benchmarks/report_scale.py: a large page opens
    in two thirds of the time without it). A script with another wrapper stays as it is.
    """
    notice, _, rest = script.partition("*/\n")
    opening, mark, inner = rest.partition(WRAPPER[0])
    body, end, after = inner.rpartition(WRAPPER[1])
    known = mark and end and not after.strip() and len(opening) < 300 and "module.exports = factory()" in opening
    return f"{notice}*/\n{body}" if known else script
