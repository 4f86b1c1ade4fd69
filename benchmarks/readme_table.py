"""Put the tables of latency shares and of larger models into README.md from results/: run after `leanfed reproduce`."""

from __future__ import annotations

import re
from pathlib import Path

from leanfed.files import write_text
from leanfed.reproduction.results_page import larger_table, read_results, readme_table, sustained_table

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    results = read_results(ROOT / "results/mnist-cost")
    assert results is not None, "run `leanfed reproduce mnist-cost` first"
    figure = read_results(ROOT / "results/mnist-accuracy")
    assert figure is not None, "run `leanfed reproduce mnist-accuracy` first"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tables = {
        "joint": readme_table(results),
        "sustained": sustained_table(figure),
        "larger": larger_table(ROOT / "results"),
    }
    for mark, table in tables.items():
        block = f"<!-- {mark} -->\n{table}\n\n"
        text = re.sub(rf"<!-- {mark} -->\n.*?\n\n", lambda found, block=block: block, text, flags=re.DOTALL)
    write_text(ROOT / "README.md", text)


if __name__ == "__main__":
    main()
