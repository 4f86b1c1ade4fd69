"""The short runs that are broken: one for every kind of state that a folder keeps."""

from __future__ import annotations

from typing import Any

ROUNDS = 6
SPREAD: dict[str, Any] = {
    "algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}},
    "participation": {"fraction": 0.8},
    "run": {"engine": "streamed", "threads": 1},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "error-feedback": {"algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}}},
    "joint-plan": {"allocation": {"rule": "joint"}},
    "tuned-plan": {"allocation": {"rule": "joint", "form": "tuned"}},
    "fedmask": {"algorithm": {"name": "fedmask", "pruning_steps": 1}, "run": {"checkpoint_every": 2, "threads": 1}},
    "momentum": {
        "algorithm": {"name": "fedper"},
        "training": {"momentum": 0.5, "batch_size": 8, "server": {"average": 0.5}},
        "participation": {"fraction": 0.5},
        "theory": {"every": 3, "probes": 1, "samples": 8},
    },
    "first-rank": SPREAD,
    "second-rank": SPREAD,
}
WATCHED = {"first-rank": 0, "second-rank": 1}  # runs of two ranks, and whose calls are failed


def settings_of(name: str) -> dict[str, Any]:
    """Six rounds of five clients with two embedded digits each."""
    return {
        "name": name,
        "rounds": ROUNDS,
        "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
        "training": {"batch_size": 8},
        "evaluation": {"every": 2},
        "run": {"threads": 1},
        **VARIANTS[name],
    }
