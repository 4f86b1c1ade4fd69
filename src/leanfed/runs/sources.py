"""Where every setting of a run comes from: the paper, an estimate, an assumption, or a choice made for the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from leanfed.records import Section, meanings
from leanfed.results import leaves
from leanfed.runs.settings import Settings

# What the paper says (its parameter table, its keep rates at 10 MHz, Algorithm 1, Eq. (27)).
PAPER: Final[dict[str, tuple[Any, ...]]] = {
    "rounds": (100,),
    "task.partition.clients": (100,),
    "task.partition.alpha": (0.1,),
    "task.partition.capped": (True,),
    "task.partition.classes_per_client": (2,),
    "training.batch_size": (32,),
    "training.local_steps": (1,),
    "algorithm.head_steps": (1,),
    "training.learning_rate": (0.01,),
    "training.learning_rate_decay": (1.0,),
    "participation.fraction": (1.0,),
    "algorithm.k": (0.74,),
    "algorithm.r": (0.82,),
    "allocation.bandwidth": ("equal",),
    "allocation.form": ("plain",),
    "allocation.solver": ("dca",),
    "allocation.k_min": (0.0,),
    "allocation.k_max": (1.0,),
    "allocation.r_min": (0.0,),
    "allocation.within_rounds": (0,),
    "radio.payload": ("paper",),
    "radio.computation": ("weights",),
    "radio.value_bits": (32,),
    "radio.downlink": ("neglected",),
    "radio.fleet.radius_m": (200.0,),
    "radio.fleet.path_loss_at_1km_db": (128.1,),
    "radio.fleet.path_loss_per_decade_db": (37.6,),
    "radio.fleet.rayleigh": (False,),
    "radio.fleet.shadowing_db": (0.0,),
    "radio.fleet.cpu_hz": ([0.5e9, 3.0e9],),
    "radio.fleet.power_dbm": ([20.0, 28.0],),
    "radio.fleet.noise_dbm_per_hz": (-174.0,),
    "radio.fleet.bandwidth_hz": (10e6, 30e6, 50e6, [10e6, 50e6], [20e6, 40e6]),
    "radio.fleet.hold": ([],),
}

# What it leaves open, or what does not reach its accuracies: our value and where that comes from.
OURS: Final[dict[str, tuple[Any, str]]] = {
    "training.learning_rate": (0.1, "assumed"),
    "algorithm.head_steps": (5, "estimated"),
    "radio.cycles_per_sample": (8e6, "assumed"),
    "radio.fleet.nearest_m": (1.0, "assumed"),
    "radio.fleet.energy_coefficient": (1e-28, "assumed"),
    "allocation.deadline_s": (0.8, "assumed"),
    "allocation.energy_budget_j": (0.3, "assumed"),
    "allocation.theta1": (0.1, "estimated"),
    "allocation.theta2": (1.0, "estimated"),
    "allocation.k_min": (0.01, "assumed"),
    "allocation.k_max": (0.05, "estimated"),
    "allocation.r_min": (0.5, "assumed"),
    "allocation.within_rounds": (10, "estimated"),
    "allocation.settle": (1 / 3, "estimated"),
}


def sources(settings: Settings) -> dict[str, dict[str, str]]:
    """`section.key` -> its source (paper, estimated, assumed, chosen, default) and what the setting means."""
    values = dict(leaves(settings.resolved()))
    meanings, untouched = dict(_meanings(settings)), set(_untouched(settings))
    found = {key: source_of(key, values[key]) for key in values}
    return {
        key: {
            "source": "default" if source == "chosen" and key in untouched else source,
            "meaning": meanings.get(key, ""),
        }
        for key, source in found.items()
    }


def _untouched(section: Section, prefix: str = "") -> Iterator[str]:
    """The keys of settings that have the value they have when nothing is said."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _untouched(value, f"{prefix}{name}.")
        elif not field.is_required() and value == field.get_default(call_default_factory=True):
            yield f"{prefix}{name}"


def source_of(key: str, value: Any) -> str:
    """The source of one value.

    >>> source_of("training.batch_size", 32), source_of("allocation.k_max", 0.05), source_of("rounds", 7)
    ('paper', 'estimated', 'chosen')
    """
    if value in PAPER.get(key, ()):
        return "paper"
    ours, source = OURS.get(key, (None, "chosen"))
    return source if value == ours else "chosen"


def _meanings(section: Section, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting's docstring under its full key."""
    known = meanings(type(section))
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _meanings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", " ".join(known.get(name, "").split())
