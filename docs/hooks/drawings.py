"""Pictures and formulas that follow the site's light or dark scheme: SVG files and LaTeX become part of the page.

`![words](pictures/concepts/x.svg)` is inlined without the file's own style, whose place the site's stylesheet takes;
`$...$` and `$$...$$` become MathML, which browsers draw without any script.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
BLOCK, INLINE = re.compile(r"\$\$(.+?)\$\$", re.DOTALL), re.compile(r"(?<![\w$\\])\$([^$\n]+?)\$(?![\w$])")
STYLE = re.compile(r"\s*<style>.*?</style>|<\?xml.*?\?>|\n\s*(?=\n)", re.DOTALL)


def inlined(words: str, file: Path) -> str:
    """An SVG file as a figure with its words for screen readers; without blank lines, which end HTML."""
    svg = STYLE.sub("", file.read_text(encoding="utf-8")).strip()
    opened = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(words, quote=True)}" ', 1)
    return f'<figure class="drawing">{opened}</figure>'


def with_formulas(text: str) -> str:
    """Text outside code with its LaTeX as MathML."""
    parts = CODE.split(text)
    for number in range(0, len(parts), 2):
        block = BLOCK.sub(lambda match: f"\n\n{convert(match[1].strip(), display='block')}\n\n", parts[number])
        parts[number] = INLINE.sub(lambda match: convert(match[1]), block)
    return "".join(parts)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Inline the page's drawings; formulas only where the page says `math: true` at its top."""
    folder = Path(page.file.abs_src_path).parent

    def drawn(match: re.Match[str]) -> str:
        file = folder / match[2]
        return inlined(match[1], file) if file.is_file() else match[0]

    text = PICTURE.sub(drawn, markdown)
    return with_formulas(text) if page.meta.get("math") else text
