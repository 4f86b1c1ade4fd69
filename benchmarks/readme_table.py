"""Put the headline into README.md from results/: run after `leanfed reproduce fair`."""

from __future__ import annotations

import re
from pathlib import Path

from leanfed.files import write_text
from leanfed.reproduction.headline import headline_table
from leanfed.reproduction.results_page import read_results

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    results = read_results(ROOT / "results/fair")
    assert results is not None, "run `leanfed reproduce fair` first"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = f"<!-- headline -->\n{headline_table(results, short=True)}\n\n"
    write_text(ROOT / "README.md", re.sub(r"<!-- headline -->\n.*?\n\n", lambda found: block, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
