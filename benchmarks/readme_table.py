"""Put the table of latency shares into README.md from results/mnist-cost: run after `leanfed reproduce mnist-cost`."""

from __future__ import annotations

import re
from pathlib import Path

from leanfed.experiments.page import read_results, readme_table
from leanfed.files import write_text

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    results = read_results(ROOT / "results/mnist-cost")
    assert results is not None, "run `leanfed reproduce mnist-cost` first"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = f"<!-- joint -->\n{readme_table(results)}\n\n"
    write_text(ROOT / "README.md", re.sub(r"<!-- joint -->\n.*?\n\n", lambda found: block, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
