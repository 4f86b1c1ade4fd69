"""The demonstration: FLPDSP-OPT against FedPer and FedAvg on digits that come with the installation."""

from __future__ import annotations

from pathlib import Path

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.fedavg import FedAvg
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.rounds.evaluation import EvaluationSettings
from leanfed.rounds.forms import AllocationSettings
from leanfed.runs.settings import Settings
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.task import TaskSettings

JOINT = AllocationSettings(rule="joint", form="fast")
METHODS: dict[str, tuple[Algorithm, AllocationSettings]] = {
    "FLPDSP-OPT": (Flpdsp(), JOINT),
    "FedPer": (FedPer(), AllocationSettings()),
    "FedAvg": (FedAvg(), AllocationSettings()),
}


def demo_settings(seed: int, rounds: int) -> list[Settings]:
    """20 clients with two digits each; the same data, initial weights and devices for every method."""
    partition = PartitionSettings(kind="class", classes_per_client=2, clients=20)
    return [
        Settings(
            name=name,
            seed=seed,
            rounds=rounds,
            task=TaskSettings(dataset="mnist-5k", partition=partition),
            algorithm=algorithm,
            allocation=allocation,
            evaluation=EvaluationSettings(every=5),
        )
        for name, (algorithm, allocation) in METHODS.items()
    ]


def free_folder(wanted: Path) -> Path:
    """The wanted folder, or the first numbered neighbour that does not exist."""
    number, path = 1, wanted
    while path.exists():
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
