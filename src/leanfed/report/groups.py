"""Groups of runs that differ only in their seed, each with a distinct name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from leanfed.report.read import RunFiles
from leanfed.results import leaves

NOT_THE_EXPERIMENT = ("name", "seed", "run")  # what may differ between runs of one experiment
METHOD_NAMES = {
    "flpdsp": "FLPDSP",
    "fedper": "FedPer",
    "lg-fedavg": "LG-FedAvg",
    "fedavg": "FedAvg",
    "fedavg-s": "FedAvg-S",
    "fedavg-p": "FedAvg-P",
    "fedmask": "FedMask",
}
DATASET_NAMES = {"mnist": "MNIST", "mnist-5k": "MNIST-5k", "cifar10": "CIFAR-10", "svhn": "SVHN", "mrpc": "MRPC"}


def method_name(algorithm: str, rule: object = "own", form: object = "fast") -> str:
    """The usual spelling of a method's name, with its form where its rounds are planned.

    >>> method_name("flpdsp", "joint", "safe"), method_name("fedper")
    ('FLPDSP-OPT safe', 'FedPer')
    """
    planned = algorithm == "flpdsp" and rule == "joint"
    return f"FLPDSP-OPT {form}" if planned else METHOD_NAMES.get(algorithm, algorithm)


@dataclass(frozen=True)
class Group:
    """Runs of one experiment, by their positions in the list of runs."""

    label: str
    members: tuple[int, ...]


def dataset_name(name: Any) -> str | None:
    """The usual spelling of a data set's name; a user's own data sets keep their names."""
    return None if name is None else DATASET_NAMES.get(str(name), str(name))


def partition_name(run: RunFiles) -> str:
    """Class-2, alpha 0.1, IID, quantity 0.5 or by user."""
    kind = run.setting("task.partition.kind", None)
    if kind == "class":
        return f"Class-{run.setting('task.partition.classes_per_client', '?')}"
    if kind in ("dirichlet", "quantity"):
        return f"{'alpha' if kind == 'dirichlet' else kind} {run.setting('task.partition.alpha', '?')}"
    return {"iid": "IID", "column": "by user", None: "unknown"}.get(kind, str(kind))


def group_runs(runs: Sequence[RunFiles]) -> list[Group]:
    """The groups in the order of their first runs."""
    places: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        places.setdefault(_experiment(run), []).append(place)
    members = list(places.values())
    labels = [_common_name([runs[place] for place in group]) for group in members]
    firsts = [runs[group[0]] for group in members]
    return [Group(label, tuple(group)) for label, group in zip(_distinct(labels, firsts), members, strict=True)]


def _experiment(run: RunFiles) -> str:
    """A key shared by all seeds of an experiment; a run without settings has its own."""
    if not run.settings:
        return str(run.path)
    return json.dumps({k: v for k, v in run.settings.items() if k not in NOT_THE_EXPERIMENT}, sort_keys=True)


def _common_name(runs: Sequence[RunFiles]) -> str:
    """The common name of the runs, else the common prefix of their names, else the method's name."""
    names = [run.name for run in runs]
    if len(set(names)) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = "".join(letters[0] for letters in same).strip(" -_.,:/").removesuffix("seed").strip(" -_.,:/")
    algorithm = str(runs[0].setting("algorithm.name", names[0]))
    return shared if len(shared) > 1 else METHOD_NAMES.get(algorithm, algorithm)


def _distinct(labels: list[str], runs: Sequence[RunFiles]) -> list[str]:
    """Distinct labels: if a name occurs twice, the settings that differ are added."""
    flat = [dict(leaves(run.settings)) for run in runs]
    distinct = list(labels)
    for label in {label for label in labels if labels.count(label) > 1}:
        same = [place for place, other in enumerate(labels) if other == label]
        keys = [key for key in flat[same[0]] if key.split(".")[0] not in NOT_THE_EXPERIMENT]
        differ = [key for key in keys if len({json.dumps(flat[place].get(key)) for place in same}) > 1]
        if "algorithm.name" in differ:
            differ = ["algorithm.name", *(key for key in differ if not key.startswith("algorithm."))]
        for number, place in enumerate(same, start=1):
            distinct[place] = f"{label} ({_some(flat[place], differ) or runs[place].path.name or number})"
    return [f"{label}, {runs[n].path.name}" if distinct.count(label) > 1 else label for n, label in enumerate(distinct)]


def _some(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """At most three settings as text."""
    shown = []
    for key in keys[:3]:
        value = values.get(key)
        text = METHOD_NAMES.get(str(value), str(value)) if key == "algorithm.name" else str(value)
        shown.append(text if key == "algorithm.name" else f"{key.rpartition('.')[2].replace('_', ' ')} {text}")
    return ", ".join(shown)
