"""The counts of the long searches, kept in results/chaos/counts.json: one section a search, with its command."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from leanfed import __version__
from leanfed.files import read_json, write_json

COUNTS = Path(__file__).parents[2] / "results" / "chaos" / "counts.json"


def record(section: str, command: str, counts: dict[str, Any], file: Path = COUNTS) -> None:
    """Put a search's counts in the place of its last ones, and print them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    known = read_json(file) if file.is_file() else {}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    write_json(file, {**known, section: {"command": command, "version": __version__, "date": today, **counts}})
    print(section, json.dumps(counts, indent=2), flush=True)
