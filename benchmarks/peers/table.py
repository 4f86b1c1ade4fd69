"""Read the results of run.py, and write them as a Markdown table. For the one in README.md:

python -m benchmarks.peers.table README.md    # fills the space between <!-- peers --> and <!-- /peers -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.field import BASE

from leanfed.errors import InputError
from leanfed.files import read_json, read_text, write_text

RESULTS: Final = Path(__file__).resolve().parents[2] / "results" / "peers" / "peers.json"
FORMAT: Final = 1
BUSY: Final = 0.5  # a load average before the start from which numbers are provisional
OPENING, CLOSING = "<!-- peers -->", "<!-- /peers -->"

Results = Mapping[str, Any]


def read_results(file: Path = RESULTS) -> dict[str, Any]:
    """The results; a file of another format is refused."""
    results = read_json(file)
    if results.get("format") != FORMAT:
        raise InputError(
            f"{file} has format {results.get('format')!r}, but this table reads {FORMAT}. Run benchmarks/peers/run.py."
        )
    return results


def provisional(results: Results) -> bool:
    """Whether other programs kept the machine busy when the measurement began."""
    return bool(results["load_average"]["start"][0] >= BUSY)


def peers_table(results: Results) -> str:
    """Contenders x local steps: milliseconds of a round, and how many times leanfed's; below, the conditions."""
    steps = results["settings"]["local_steps"]
    by_name: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in results["rows"]:
        by_name.setdefault(row["contender"], {})[row["local_steps"]] = row
    heads = ["one round of FedAvg", *(f"{_counted(count)}, ms | × leanfed" for count in steps)]
    lines = [f"| {' | '.join(heads)} |", f"|---{'|--:|--:' * len(steps)}|"]
    for cells in by_name.values():
        first = next(iter(cells.values()))
        lines.append(f"| {_title(first)} | {' | '.join(_cell(cells.get(count)) for count in steps)} |")
    return "\n".join([*lines, "", _conditions(results), *_reasons(results["rows"])])


def _counted(steps: int) -> str:
    return "1 local step" if steps == 1 else f"{steps} local steps"


def _title(row: Mapping[str, Any]) -> str:
    version = row["versions"].get(row["package"], row["pinned"])
    return f"{row['title']} {version}" if row["package"] != "torch" else row["title"]


def _cell(row: Mapping[str, Any] | None) -> str:
    """Two cells: three significant digits of a median, and of a ratio."""
    if row is None or row["median_s"] is None:
        return "– | –"
    return f"{_digits(1000 * row['median_s'])} | {_digits(row['ratio'])}"


def _digits(value: float | None) -> str:
    """Three significant digits, thousands with a comma."""
    return "–" if value is None else f"{float(f'{value:.3g}'):,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def _conditions(results: Results) -> str:
    settings, machine, load = results["settings"], results["machine"], results["load_average"]
    text = (
        f"LeNet-5 ({settings['weights']:,} weights), {settings['clients']} clients that all take part, batches of "
        f"{settings['batch_size']}; one core of {machine['cores']} ({machine['processor']}); median of "
        f"{settings['repeats']} turns of {settings['rounds_per_turn']} rounds; every row computes the weights of a "
        f"loop in plain PyTorch (`flpdsp`: of the reference engine) to within {settings['tolerance']:g}."
    )
    if provisional(results):
        text += f" Provisional: the machine was busy (load average {load['start'][0]:.1f} before the start)."
    return text


def _reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why contenders have no number."""
    missing = {f"{row['title']} {row['pinned']} has no number: {row['reason']}." for row in rows if row["reason"]}
    return ["", *sorted(missing)] if missing else []


def with_table(page: str, table: str) -> str:
    """A page with the table between its two marks."""
    pattern = re.compile(rf"{re.escape(OPENING)}.*?{re.escape(CLOSING)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise InputError(f"The page must have {OPENING} and {CLOSING} once, in this order. Add them where it belongs.")
    return pattern.sub(lambda found: f"{OPENING}\n{table}\n{CLOSING}", page)


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], list[float]]:
    """(contender, local steps) -> its seconds over leanfed's, turn by turn; without those that have no number."""
    base = {row["local_steps"]: row["seconds"] for row in rows if row["contender"] == BASE and row["seconds"]}
    return {
        (row["contender"], row["local_steps"]): [
            own / other for own, other in zip(row["seconds"], base[row["local_steps"]], strict=True)
        ]
        for row in rows
        if row["seconds"] and row["local_steps"] in base
    }


def main() -> None:
    table = peers_table(read_results())
    if len(sys.argv) == 1:
        print(table)
        return
    page = Path(sys.argv[1])
    write_text(page, with_table(read_text(page), table))


if __name__ == "__main__":
    main()
