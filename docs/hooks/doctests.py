"""Examples in docstrings are shown as code: the reader of docstrings would take `>>>` for three quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring with its examples between fences."""
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


class Doctests(griffe.Extension):
    """Changes docstrings as they are read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Put the examples of one object between fences."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
