"""A link that leaves docs/ takes its target along: RESULTS.md or a results file becomes part of the site.

Pages are then found below `repository/`, other files are copied there, and links between them are rewritten, so that
the same Markdown works on a forge, in an editor and on the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PREFIX = "repository"
ALWAYS = ("RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")  # pages of the site's menu
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(\))")


def linked(text: str, source: Path) -> Iterator[Path]:
    """The files of the repository, outside docs/, that a page links to."""
    for match in LINK.finditer(text):
        target = (source.parent / match[2]).resolve()
        if target.is_file() and target.is_relative_to(ROOT) and not target.is_relative_to(DOCS):
            yield target


def place(target: Path) -> str:
    """Where a file of the repository is on the site."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    return f"{PREFIX}/{target.relative_to(ROOT).as_posix()}"


def rewritten(text: str, source: Path, here: str) -> str:
    """A page's text with links that hold where the site has it; what does not exist is left for the build to refuse."""

    def moved(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            return match[0]
        return f"{match[1]}{relpath(place(target), Path(here).parent.as_posix())}{match[3] or ''}{match[4]}"

    return LINK.sub(moved, text)


def on_files(files: Files, *, config: Any) -> Files:
    """Add what pages link to, what that links to, and so on."""
    waiting = [Path(str(file.abs_src_path)) for file in files.documentation_pages() if file.abs_src_path]
    waiting += [ROOT / name for name in ALWAYS]
    seen = set[Path]()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        if not source.is_relative_to(DOCS):
            files.append(File.generated(config, place(source), abs_src_path=str(source)))
        if source.suffix == ".md":
            waiting += linked(source.read_text(encoding="utf-8"), source)
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links as the site needs them."""
    return rewritten(markdown, Path(page.file.abs_src_path), page.file.src_uri)
