"""Published values for comparison with ours, from the results files of `leanfed reproduce`.

results/NAME/results.json holds `numbers`, each with labels (method, partition, target, quantity), the published value
and ours. A run of the catalogue is named "method, partition" (older ones "method", on that partition), by which it is
recognised.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from leanfed.errors import LeanfedError
from leanfed.files import read_json
from leanfed.quantities import costs
from leanfed.report.groups import partition_name
from leanfed.report.read import Flaw, RunFiles

LATENCY = costs()["latency_s"][1].paper
SHARE = "latency over FedPer, equal"


class Published:
    """The numbers of all results files below a folder that are times to a target."""

    def __init__(self, folder: Path | None) -> None:
        self.flaws: list[Flaw] = []
        self._entries: list[dict[str, Any]] = []
        for file in sorted(folder.glob("*/results.json")) if folder is not None and folder.is_dir() else ():
            try:
                entry = read_json(file)
            except LeanfedError as error:
                self.flaws.append(Flaw(str(file), "", str(error)))
                continue
            if isinstance(entry.get("numbers"), list):
                self._entries.append(entry)
            else:
                self.flaws.append(Flaw(str(file), "numbers", "this field is missing or no list"))

    def time_to(self, run: RunFiles, target: float) -> dict[str, Any] | None:
        """The paper's time to a target for this run and its share of FedPer's; None if it is not in the catalogue."""
        for entry in self._entries:
            if _squeezed(str(run.setting("task.dataset", "?"))) not in _squeezed(str(entry.get("title", ""))):
                continue
            numbers = [each for each in entry["numbers"] if _speaks_of(each, run, target)]
            found = {each["labels"].get("quantity"): each for each in numbers}
            seconds, share = (found.get(quantity, {}) for quantity in (LATENCY, SHARE))
            if seconds.get("published") is not None:
                return {
                    "seconds": seconds["published"],
                    "share": share.get("published"),
                    "our_share": share.get("mean"),
                    "about": str(entry.get("place") or entry.get("title") or entry.get("name")),
                }
        return None


def _speaks_of(number: Any, run: RunFiles, target: float) -> bool:
    """Whether a number is about the run and this target."""
    labels = number.get("labels") if isinstance(number, dict) else None
    if not isinstance(labels, dict):
        return False
    called = f"{labels.get('method')}, {labels.get('partition')}".lower()
    names = {run.name.lower(), f"{run.name}, {partition_name(run)}".lower()}
    return labels.get("target") == f"{100 * target:g} %" and bool(names & {called, f"{called} (quick)"})


def _squeezed(text: str) -> str:
    """Letters and digits only, in lower case: CIFAR-10 becomes cifar10."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def differences(paper: dict[str, Any], ours: float | None) -> dict[str, Any]:
    """The paper's value with our time's relative difference from it."""
    return {**paper, "difference": None if ours is None else ours / paper["seconds"] - 1.0}
