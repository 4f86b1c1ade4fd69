"""The comparison protocol: one settings file per partition, and the settings that each method changes in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leanfed.reproduction.catalogue import FORMS, Job, Line, Outcome, Scale
from leanfed.reproduction.judging import Labels
from leanfed.runs.compare import ComparedRun, compared
from leanfed.runs.settings import Settings

CONFIGS: Final = Path(__file__).parent.parent / "configs"
Changes = tuple[str, ...]

OWN: Final[Changes] = ("allocation.rule=own",)
MIN_MAX: Final[Changes] = (*OWN, "allocation.bandwidth=min-max")
BRIEFLY: Final[Changes] = ("theory.probes=2", "theory.samples=16")  # constants of a quick run's theory
HELD: Final[Changes] = ('radio.fleet.hold=["place", "cpu", "power"]',)
BASELINES: Final[Mapping[str, str]] = {
    "FedPer": "fedper",
    "LG-FedAvg": "lg-fedavg",
    "FedAvg-S": "fedavg-s",
    "FedAvg": "fedavg",
    "FedAvg-P": "fedavg-p",
    "FedMask": "fedmask",
}
YARDSTICK: Final = "FedPer, equal"
PUBLISHED: Final = "FLPDSP-OPT plain"  # the form that the paper's numbers of FLPDSP-OPT are set beside
# Learning rates on MNIST where they are not the 0.1 of the settings files: `fair-development` chose them.
RATES: Final[Mapping[str, float]] = dict.fromkeys(
    (
        "FLPDSP-OPT safe",
        "FLPDSP-OPT plain",
        "FLPDSP-OPT fast, damped",
        "FedPer",
        "LG-FedAvg",
        "FedAvg",
        "FedAvg-P",
        "Head-only",
        "FedPer + head steps + pace",
        "FedRep + head steps + pace",
        "LG-FedAvg, k = 0.05 + feedback + pace",
        "FedPer + head steps + pace, damped",
        "FLPDSP, k = 0.05, fastest 60 %, damped",
    ),
    0.3,
)
OPT: Final[Mapping[str, Changes]] = {f"FLPDSP-OPT {form}": (f"allocation.form={form}",) for form in reversed(FORMS)}
EQUAL: Final[Mapping[str, Changes]] = {
    f"{shown}, equal": (*OWN, f"algorithm.name={name}") for shown, name in BASELINES.items()
}
SPLIT: Final[Mapping[str, Changes]] = {
    f"{shown}, min-max": (*MIN_MAX, f"algorithm.name={name}") for shown, name in BASELINES.items()
}
METHODS: Final[Mapping[str, Changes]] = {**OPT, **EQUAL, **SPLIT}


@dataclass(frozen=True)
class Study:
    """A data set under the protocol: its partitions (settings file and changes), targets, and its quick version.

    `only` names the methods of a reduced study, without their bandwidth rule, and what each changes there; if it is
    empty, all methods run unchanged. `rates` are the learning rates of methods that do not follow the settings file.
    `drawn` has the methods in its figures.
    """

    dataset: str
    partitions: Mapping[str, tuple[str, Changes]]
    targets: Mapping[str, tuple[float, ...]]
    quick: Changes
    only: Mapping[str, Changes] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    first_seed: int = 0
    drawn: Mapping[str, Changes] = field(default_factory=lambda: {**OPT, **EQUAL})

    def of(self, methods: Mapping[str, Changes]) -> dict[str, Changes]:
        """The methods that the study runs."""
        if not self.only:
            return dict(methods)
        bare = {name: name.partition(",")[0] for name in methods}
        return {name: (*own, *self.only[bare[name]]) for name, own in methods.items() if bare[name] in self.only}

    def job(
        self,
        method: str,
        changes: Sequence[str],
        partition: str,
        seed: int,
        scale: Scale,
        **labels: str,
    ) -> Job:
        """One run; `changes` come after the partition's and before what makes it quick."""
        file, own = self.partitions[partition]
        row = rate_of(method, self.rates)
        rate = () if row is None else (f"training.learning_rate={row:g}",)
        name = f"{method}, {partition}" + (" (quick)" if scale.quick else "")
        masks = ("algorithm.pruning_steps=1",) if "algorithm.name=fedmask" in changes else ()
        quick = (*self.quick, *BRIEFLY, *masks) if scale.quick else ()
        last = [*quick, f"seed={seed}", f"name={name}", "run.threads=1"]
        settings = Settings.from_toml(CONFIGS / f"{file}.toml", [*own, *rate, *changes, *last])
        return Job({"method": method, "partition": partition, **labels}, settings)

    def jobs(
        self, methods: Mapping[str, Sequence[str]], scale: Scale, *, stop: bool = False, partitions: Iterable[str] = ()
    ) -> list[Job]:
        """Every method on every partition and seed; with `stop`, runs end when the last target is reached."""
        return [
            self.job(method, [*changes, *self._stop(partition, stop)], partition, seed, scale)
            for seed in scale.seeds
            for partition in partitions or self.partitions
            for method, changes in methods.items()
        ]

    def _stop(self, partition: str, stop: bool) -> Changes:
        return (f"run.stop_at_accuracy={max(self.targets[partition])}",) if stop else ()


def rate_of(method: str, rates: Mapping[str, float]) -> float | None:
    """A method's own learning rate: that of its name, or of the longest beginning of it up to a comma.

    >>> rates = {"FedPer": 0.3, "FLPDSP-OPT fast, damped": 0.03}
    >>> rate_of("FedPer, equal, held", rates), rate_of("FLPDSP-OPT fast, damped", rates)
    (0.3, 0.03)
    >>> rate_of("FLPDSP-OPT fast", rates), rate_of("FedPer + head steps", rates)
    (None, None)
    """
    words = method.split(", ")
    names = (", ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((rates[name] for name in names if name in rates), None)


def longer(rounds: int, decay: float) -> Changes:
    """More and shorter rounds in the same simulated time; the learning rate decays more slowly to the same value."""
    return (f"rounds={rounds}", f"training.learning_rate_decay={decay}", f"run.checkpoint_every={rounds}")


def curve_of(outcome: Outcome) -> ComparedRun:
    """The evaluated rounds of a finished job."""
    settings = outcome.run.settings
    return compared(settings.name, str(settings.algorithm.model_dump()["name"]), outcome.run.rounds)


def line_of(outcome: Outcome, values: Sequence[float], panel: str) -> Line:
    """A curve over simulated seconds, under its method's name."""
    label = outcome.job.labels["method"].removesuffix(", equal")
    return Line(panel, label, curve_of(outcome).spent["latency_s"], values)


def seconds_to(curve: ComparedRun, targets: Iterable[float]) -> dict[str, float | None]:
    """Simulated seconds to each target, by the sustained and by the first crossing; None where it is not reached."""
    found: dict[str, float | None] = {}
    for target in targets:
        for words, cost in ((", sustained", curve.sustained_cost_of(target)), ("", curve.cost_of(target))):
            found[f"seconds to {percent(target)}{words}"] = (cost or {}).get("latency_s")
    return found


def at_time(spent: Sequence[float], values: Sequence[float], moment: float) -> float:
    """A curve's value at a moment by linear interpolation; before its first point and after its last, that point's."""
    import numpy as np

    return float(np.interp(moment, spent, values))


def with_quantity(labels: Labels, quantity: str, **more: str) -> dict[str, str]:
    """Labels of one quantity of a job."""
    return {**labels, "quantity": quantity, **more}


def percent(target: float) -> str:
    """A target accuracy as shown in tables.

    >>> percent(0.8)
    '80 %'
    """
    return f"{100 * target:g} %"


MNIST: Final = Study(
    dataset="MNIST",
    partitions={
        "Class-4": ("joint_class2", ("task.partition.classes_per_client=4",)),
        "Class-2": ("joint_class2", ()),
        "alpha 0.5": ("joint_alpha01", ("task.partition.alpha=0.5",)),
        "alpha 0.1": ("joint_alpha01", ()),
    },
    targets=dict.fromkeys(("Class-4", "Class-2", "alpha 0.5", "alpha 0.1"), (0.8, 0.9)),
    rates=RATES,
    first_seed=20,
    # A fifth of the clients on a fifth of the band, on the embedded digits.
    quick=("task.dataset=mnist-5k", "task.partition.clients=20", "radio.fleet.bandwidth_hz=2e6", "rounds=10"),
)
