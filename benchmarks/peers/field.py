"""The contenders, by name: who they are, what they are installed from, and how they are started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIREMENTS: Final = Path(__file__).parent / "requirements"
BASE: Final = "leanfed"  # the contender to which ratios are taken


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    title: str
    package: str  # whose version the row states
    module: str  # in contenders/
    installed: bool = True  # in an environment of its own, from requirements/NAME.txt; else where the driver runs
    method: str = "fedavg"

    @property
    def requirements(self) -> Path:
        """Pinned versions."""
        return REQUIREMENTS / f"{self.name}.txt"


FIELD: Final = (
    Contender(BASE, "leanfed, `fedavg`", "leanfed", "leanfed_run", installed=False),
    Contender("leanfed-flpdsp", "leanfed, `flpdsp`", "leanfed", "leanfed_run", installed=False, method="flpdsp"),
    Contender("plain", "a loop in plain PyTorch", "torch", "plain", installed=False),
    Contender("pfl", "pfl-research", "pfl", "pfl_research"),
    Contender("fedjax", "FedJAX", "fedjax", "fed_jax"),
    Contender("fedlab", "FedLab", "fedlab", "fed_lab"),
    Contender("flwr", "Flower", "flwr", "flower"),
)
