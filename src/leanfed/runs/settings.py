"""The settings of an experiment: TOML in, one frozen tree out; refusals name the file, the line and the fix."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

import leanfed.algorithms  # registers the methods
import leanfed.rounds.robust  # noqa: F401  (registers rules)
from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.algorithms.contract import ServerStep, Training
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.optimizers import OPTIMIZERS
from leanfed.allocation.base import ALLOCATORS
from leanfed.errors import SettingsError, nearest
from leanfed.files import parse_json, parse_toml, read_text
from leanfed.records import Section, meanings
from leanfed.registry import Registry
from leanfed.rounds.adversary import Adversary
from leanfed.rounds.aggregation import AGGREGATIONS, Aggregation, WeightedMean, why_plain_step
from leanfed.rounds.costs import RadioSettings
from leanfed.rounds.engine import ENGINES
from leanfed.rounds.evaluation import EvaluationSettings
from leanfed.rounds.forms import AllocationSettings
from leanfed.rounds.privacy import Privacy
from leanfed.rounds.probing import TheorySettings, why_no_bound
from leanfed.rounds.ranks import RankSettings
from leanfed.rounds.selection import SELECTIONS, Participation
from leanfed.rounds.width import WidthSettings
from leanfed.runs.trackers import TrackSettings
from leanfed.simulation.choose import AUTO
from leanfed.tasks.split import Precision
from leanfed.tasks.task import TaskSettings


def _known_engine(name: str) -> str:
    """The name of an engine, or auto; refused with the nearest known one."""
    known = [AUTO, *ENGINES]
    if name not in known:
        raise ValueError(f"no engine has that name: {nearest(name, known)}")
    return name


class RunSettings(Section):
    """How a run is carried out."""

    checkpoint_every: int = Field(default=1, ge=1)
    """Rounds between checkpoints; a stop loses at most what came after the last one."""
    engine: Annotated[str, AfterValidator(_known_engine)] = AUTO
    """What computes a round; auto takes the fastest that fits."""
    device: str = Field(default="cpu", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """Where clients' models are trained and tested: cpu, cuda, cuda:1, mps, or auto for a GPU where there is one. Equal
    bits are promised on one kind of device only."""
    precision: Precision = "float32"
    """Of forward and backward passes; weights, gradients and all that is kept stay float32."""
    threads: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1, le=1_024)
    """Worker threads; the result does not depend on them."""
    stop_at_accuracy: float | None = Field(default=None, gt=0, le=1)
    """End the run at the first evaluation that reaches this accuracy; None: all rounds."""
    stop_at_seconds: float | None = Field(default=None, gt=0)
    """End the run with the round that reaches so many simulated seconds, and evaluate it; None: all rounds."""
    stop_at_joules: float | None = Field(default=None, gt=0)
    """The same for the energy of all clients."""
    stop_at_bits: float | None = Field(default=None, gt=0)
    """The same for the uploads of all clients."""
    keep_weights: bool = True
    """Write the final weights of the server and of every client; with many large heads they take gigabytes."""
    ranks: RankSettings = Field(default_factory=RankSettings)
    """How several processes of one run talk to each other."""
    track: TrackSettings = Field(default_factory=TrackSettings)
    """Trackers that hear of every round."""

    def limits(self) -> dict[str, float]:
        """What the run may spend, by column of the rounds table."""
        stops = {"latency_s": self.stop_at_seconds, "energy_j": self.stop_at_joules, "upload_bits": self.stop_at_bits}
        return {column: limit for column, limit in stops.items() if limit is not None}


WITHHELD: Final = {
    "off": "privacy.metrics = 'off': nobody is tested, and no loss, score, guess or label count is reported.",
    "noised": "privacy.metrics = 'noised': losses and accuracies are noised means of the round's participants alone.",
}
NO_LIST = ("tuple_type", "list_type")  # how pydantic says that a value is no list
NO_NUMBER = ("float_type", "int_type")  # and that it is no number
NAMED: Final[Mapping[str, Registry[Any]]] = {"algorithm": ALGORITHMS, "aggregation": AGGREGATIONS}
"""Tables whose `name` says which member of a registry they set up."""
M = TypeVar("M", bound=Section)


def _member_of(registry: Registry[type[M]], kind: type[M]) -> Callable[[Any], Any]:
    """A check that turns a table into the member of a registry that its `name` says."""

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise ValueError(f"needs a name, one of: {', '.join(sorted(registry))}")
        return registry[value["name"]].model_validate(dict(value))

    return check


class Settings(Section):
    """One experiment.

    >>> Settings(rounds=5).training.learning_rate
    0.1
    """

    name: str = Field(default="run", min_length=1)
    """What tables and pictures call the run."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """The seed of every random stream."""
    rounds: int = Field(default=100, ge=1, le=10_000_000)
    """T, the number of rounds."""
    task: TaskSettings = Field(default_factory=TaskSettings)
    """What is learned."""
    training: Training = Field(default_factory=Training)
    """How a client trains."""
    participation: Participation = Field(default_factory=Participation)
    """Who takes part."""
    allocation: AllocationSettings = Field(default_factory=AllocationSettings)
    """Who decides on keep rates and bandwidth."""
    algorithm: Annotated[SerializeAsAny[Algorithm], BeforeValidator(_member_of(ALGORITHMS, Algorithm))] = Field(
        default_factory=Flpdsp, validate_default=True
    )
    """The method and its own settings."""
    aggregation: Annotated[SerializeAsAny[Aggregation], BeforeValidator(_member_of(AGGREGATIONS, Aggregation))] = Field(
        default_factory=WeightedMean
    )
    """What the server makes of the uploads: the rule and its own settings."""
    privacy: Privacy = Field(default_factory=Privacy)
    """Differential privacy of the shared part."""
    adversary: Adversary = Field(default_factory=Adversary)
    """Dishonest clients, for experiments."""
    radio: RadioSettings = Field(default_factory=RadioSettings)
    """What rounds cost."""
    width: WidthSettings = Field(default_factory=WidthSettings)
    """How wide each client's model is."""
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    """When to evaluate."""
    theory: TheorySettings = Field(default_factory=TheorySettings)
    """Whether to measure what Theorem 1 speaks of."""
    run: RunSettings = Field(default_factory=RunSettings)
    """How the run is carried out."""

    @field_validator("algorithm")
    @classmethod
    def _as_the_rule_needs_it(cls, value: Algorithm, info: ValidationInfo) -> Algorithm:
        allocation, task = info.data.get("allocation"), info.data.get("task")  # absent where refused themselves
        if not isinstance(allocation, AllocationSettings) or not isinstance(task, TaskSettings):
            return value
        return allocation.fitted(value, task.model, task.split)

    @model_validator(mode="after")
    def _a_damped_step_needs_a_gradient(self) -> Settings:
        reason = why_plain_step(self.algorithm)
        if reason is not None and self.training.server != ServerStep():
            name = self.algorithm.model_dump()["name"]
            raise ValueError(f"training.server cannot change the step of {name!r}: {reason}; leave it out")
        return self

    @model_validator(mode="after")
    def _a_rule_fits_the_uploads(self) -> Settings:
        reason = self.aggregation.misfit(self.algorithm)
        if reason is not None:
            rule, method = (section.model_dump()["name"] for section in (self.aggregation, self.algorithm))
            other = "mean" if self.algorithm.upload_form == "mask" else "clip"
            raise ValueError(
                f"aggregation.name = {rule!r} cannot combine the uploads of {method!r}: {reason}; use {other!r}"
            )
        return self

    @model_validator(mode="after")
    def _privacy_covers_what_is_released(self) -> Settings:
        if self.privacy.unit == "none":
            return self
        poisson, plan = self.participation.selection == "poisson", self.allocation
        refusals = {
            "plans follow sample counts, so that a client's data decides who comes; set allocation.rule = 'own' and "
            "wait = 'all' (or 'fastest' or 'turns', without Poisson cohorts)": (
                plan.rule == "joint" or plan.wait == "pace"
            ),
            "who is the fastest among those drawn depends on the others, and no draw is a client's own; set "
            "allocation.wait = 'all', or another participation.rule": poisson and plan.wait in ("fastest", "turns"),
            "the statistics of shared layers would travel without noise; set task.statistics = 'private'": (
                self.task.statistics == "shared"
            ),
            "masks are no gradients to clip; choose another method": self.algorithm.upload_form == "mask",
            "only the sum of clipped uploads has a known sensitivity; set aggregation.name = 'mean'": (
                self.aggregation.single_uploads
            ),
            "the accountant 'exact' knows no sampling; set privacy.accountant = 'rdp' or 'pld'": (
                poisson and self.privacy.accountant == "exact"
            ),
        }
        _refuse("privacy.unit = 'client'", refusals)
        return self

    @model_validator(mode="after")
    def _withheld_metrics_do_not_get_out_otherwise(self) -> Settings:
        if self.privacy.metrics == "shown":
            return self
        private, plan = self.privacy.unit != "none", self.allocation
        refusals = {
            "single clients' results would be written; set evaluation.per_client = false": self.evaluation.per_client,
            "no panel is tested; leave evaluation.clients out": self.evaluation.clients is not None,
            "Theorem 1 is measured on the clients' samples; set theory.every = 0": bool(self.theory.every),
            "clients report what is planned by; set allocation.form = 'fast'": plan.measures,
            "theta is estimated on the clients' samples; state allocation.theta1 and theta2, or set form = 'fast'": (
                plan.rule == "joint" and plan.theta == "estimated"
            ),
            "attacks are judged by the honest clients' results; leave [adversary] out": self.adversary.kind != "none",
            "no accuracy is known; leave run.stop_at_accuracy out": (
                self.privacy.metrics == "off" and self.run.stop_at_accuracy is not None
            ),
            "what epochs cost tells sample counts; set training.local_steps in place of local_epochs": (
                private and self.training.local_epochs is not None
            ),
        }
        _refuse(f"privacy.metrics = '{self.privacy.metrics}'", refusals)
        return self

    @model_validator(mode="after")
    def _who_poisons_samples_has_them_alone(self) -> Settings:
        if self.adversary.kind in ("label-flip", "backdoor") and self.task.partition.kind == "drawn":
            raise ValueError(
                f"adversary.kind = {self.adversary.kind!r} changes the attackers' samples, but in a drawn partition "
                "they are others' too; choose another kind of partition"
            )
        return self

    @model_validator(mode="after")
    def _masked_sums_are_of_the_same_entries(self) -> Settings:
        if not self.radio.masked_sum:
            return self
        refusals = {
            "uploads must hold the same entries for all, but each client chooses its own; set "
            "algorithm.sparsify.select = 'common', or algorithm.k = 1": (
                self.algorithm.upload_form not in ("dense", "common")
            ),
            "the server sees no single uploads; set aggregation.name = 'mean'": self.aggregation.single_uploads,
            "a pace is planned without what masks cost; set allocation.wait = 'all', 'fastest' or 'turns'": (
                self.allocation.wait == "pace"
            ),
            "the statistics of shared layers would travel without a mask; set task.statistics = 'private'": (
                self.task.statistics == "shared"
            ),
        }
        _refuse("radio.masked_sum = true", refusals)
        return self

    @model_validator(mode="after")
    def _widths_need_a_plain_mean(self) -> Settings:
        if not self.width.shares:
            return self
        fleet = self.radio.fleet
        redrawn = self.radio.fleet_file is None and "cpu" not in fleet.hold and not fleet.slow_share
        refusals = {
            "the prices of pruning and sparsification are estimated on whole models; state allocation.theta1 and "
            "theta2, or set allocation.form = 'fast'": (
                self.allocation.rule == "joint" and self.allocation.theta == "estimated"
            ),
            "each entry is averaged over those that have it; set aggregation.name = 'mean'": (
                self.aggregation.single_uploads
            ),
            "noise is made for entries that all have; leave [privacy] out": self.privacy.unit != "none",
            "liars that change uploads do not know their widths; choose adversary.kind = 'label-flip' or 'none'": (
                self.adversary.tampers
            ),
            "masked sums are of the same entries; set radio.masked_sum = false": self.radio.masked_sum,
            "statistics of narrower models are other statistics; set task.statistics = 'private'": (
                self.task.statistics == "shared"
            ),
            "adapters have no channels; leave task.lora out": self.task.lora is not None,
            "Theorem 1 is measured on whole models; set theory.every = 0": bool(self.theory.every),
            "by = 'speed' needs clocks that stay: set radio.fleet.hold = ['cpu'], slow_share, or a fleet_file": (
                self.width.by == "speed" and redrawn
            ),
        }
        _refuse("[width]", refusals)
        return self

    @model_validator(mode="after")
    def _a_schedule_goes_on(self) -> Settings:
        rounds = [number for number, _ in self.task.split_schedule]
        if sorted(set(rounds)) != rounds:
            raise ValueError(f"task.split_schedule has the rounds {rounds}; give each once, the earliest first")
        if rounds and self.task.statistics == "shared":
            raise ValueError(
                "task.split_schedule moves layers to the clients, but not the statistics that they share; set "
                "task.statistics = 'private'"
            )
        return self

    @model_validator(mode="after")
    def _a_plan_has_no_room_for_statistics(self) -> Settings:
        if self.allocation.rule == "joint" and self.task.statistics == "shared":
            raise ValueError(
                "allocation.rule = 'joint' plans gradients only; set task.statistics = 'private', so that nothing "
                "else travels"
            )
        return self

    @classmethod
    def from_values(
        cls, values: Mapping[str, Any], source: str = "settings", text: str = "", changed: Collection[str] = ()
    ) -> Settings:
        """Check plain values; `source` and `text` let a refusal name the file and line, `changed` what --set gave."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_explain(error, values, source, text, changed)) from None
        except SettingsError as error:
            raise SettingsError(f"{source}: {error}") from None

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> Settings:
        """Read a settings file, or a run folder's settings.json; `overrides` are as on the command line."""
        path = Path(path)
        text, kind = read_text(path), "JSON" if path.suffix == ".json" else "TOML"
        try:
            values = parse_json(text) if kind == "JSON" else parse_toml(text)
        except ValueError as error:
            raise SettingsError(f"{path} is not valid {kind}: {error}. Correct that line.") from error
        if not isinstance(values, dict):
            raise SettingsError(
                f"{path} holds a JSON {type(values).__name__}, but settings are an object of keys and values, as in "
                "the settings.json of a run. Correct the file."
            )
        if not values and not overrides:
            raise SettingsError(f"{path} is empty. Write what differs from the defaults, for example: rounds = 100")
        for override in overrides:
            set_value(values, override)
        return cls.from_values(values, str(path), text, [one.partition("=")[0].strip() for one in overrides])

    def notes(self) -> tuple[str, ...]:
        """What a user should know of these settings before a run."""
        reason = why_no_bound(self.algorithm, self.training) if self.theory.every else None
        theory = () if reason is None else (f"the gradient norm is recorded without Theorem 1's bound: {reason}.",)
        return (*self.algorithm.notes(), *theory, *self._about_theta(), *self._about_privacy(), *self._ignored_limits())

    def _about_privacy(self) -> list[str]:
        """What privacy does not cover, and why nothing is gained by sampling."""
        metrics = self.privacy.metrics
        notes = [] if metrics == "shown" else [WITHHELD[metrics]]
        if self.privacy.unit == "none":
            return notes
        notes.append(
            "privacy covers the shared weights; the server itself, losses, sample counts and tests are not covered "
            "(privacy.metrics = 'off' or 'noised' sees to all but the server)."
            if metrics == "shown"
            else "privacy covers what is written but clients' own states (checkpoint, weights.safetensors) and what "
            "cohorts and devices decide (participants, costs); the server itself is not covered."
        )
        if self.allocation.rule == "joint" and self.allocation.theta == "estimated":
            notes.append("theta is estimated on the clients' samples, which privacy does not cover; or give theta1.")
        if self.participation.selection != "poisson":
            notes.append(
                "privacy is counted without sampling: only participation.rule = 'poisson' can be accounted for."
            )
        return notes

    def _about_theta(self) -> list[str]:
        """Where theta comes from, if Theorem 1 does not speak of these settings."""
        reason = why_no_bound(self.algorithm, self.training)
        if self.allocation.rule == "own" or self.allocation.theta == "given" or reason is None:
            return []
        return [f"theta is estimated by the formulas below Eq. (27), although they do not cover this run: {reason}."]

    def _ignored_limits(self) -> list[str]:
        """Limits that were set, though nothing is planned under them."""
        given, usual = self.allocation, AllocationSettings()
        free = given.rule == "own" and given.wait != "pace"
        names = ("deadline_s", "energy_budget_j", "energy_total_j") if free else ()
        changed = [name for name in names if getattr(given, name) != getattr(usual, name)]
        notes = [f"allocation.{name} has no effect with allocation.rule = 'own'." for name in changed]
        if given.measures and given.head_steps_max and getattr(self.algorithm, "head_steps", 1) != 1:
            notes.append("algorithm.head_steps has no effect: they are planned. Set allocation.head_steps_max = 0.")
        for name in ("head_steps_max", "first_within") if not given.measures else ():
            if getattr(given, name) != getattr(usual, name):
                notes.append(f"allocation.{name} has no effect without the joint plans of allocation.form = 'tuned'.")
        return notes

    def resolved(self) -> dict[str, Any]:
        """Every value, defaults included, as JSON can hold it.

        Head steps that follow from the cut are left out until it is chosen.
        """
        values = self.model_dump(mode="json")
        if self.task.chooses_cut and "head_steps" not in self.algorithm.model_fields_set:
            values["algorithm"].pop("head_steps", None)
        return values


def _refuse(asked: str, refusals: Mapping[str, bool]) -> None:
    """Refuse what was asked for the first reason, with its way out, that holds."""
    for reason, holds in refusals.items():
        if holds:
            raise ValueError(f"{asked}: {reason}")


def set_value(values: dict[str, Any], override: str) -> None:
    """Apply one `section.key=value`; the value is read as TOML, or taken as text."""
    key, equals, raw = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {override!r} is not of the form section.key=value. For example: --set seed=3")
    try:
        value = parse_toml(f"value = {raw}")["value"]
    except ValueError:
        value = raw
    *tables, last = key.strip().split(".")
    if not all((*tables, last)):
        raise SettingsError(f"--set {override!r} has a part without a name. For example: --set training.momentum=0.9")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise SettingsError(f"--set {override!r}: {table!r} is not a table of settings.")
    values[last] = value


def json_schema() -> dict[str, Any]:
    """JSON schema of a settings file, with every registered method, rule, allocator and selection."""
    schema = Settings.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    for key, registry in NAMED.items():
        for name in registry:
            member = registry[name].model_json_schema()
            definitions.update(member.pop("$defs", {}))
            definitions[f"{key}-{name}"] = {**member, "required": ["name"]}
        schema["properties"][key] = {
            "anyOf": [{"$ref": f"#/$defs/{key}-{name}"} for name in registry],
            "description": meanings(Settings)[key],
        }
        definitions.pop(key.capitalize(), None)
    definitions["Training"]["properties"]["optimizer"]["enum"] = list(OPTIMIZERS)
    definitions["RunSettings"]["properties"]["engine"]["enum"] = [AUTO, *ENGINES]
    definitions["AllocationSettings"]["properties"]["solver"]["enum"] = list(ALLOCATORS)
    definitions["Participation"]["properties"]["rule"]["enum"] = [*SELECTIONS, None]
    return schema


def _explain(
    error: ValidationError, values: Mapping[str, Any], source: str, text: str, changed: Collection[str] = ()
) -> str:
    """The first refusals of a settings tree, one line each.

    Where a number or a list may stand, a number is refused as a number, and a list as a list.
    """
    details = error.errors()
    kept = [each for each in details if not _said_better(each, details)]
    return "\n".join(_explain_one(detail, values, source, text, changed) for detail in kept[:3])


def _said_better(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Whether another refusal of the same value is of what was meant."""
    poor = NO_NUMBER if isinstance(detail["input"], list | tuple) else NO_LIST
    place = _location(detail)
    return detail["type"] in poor and any(
        other["type"] not in poor and _location(other)[: len(place)] == place for other in details
    )


def _location(detail: ErrorDetails) -> list[str]:
    """The keys down to a refused value; where it may have one of several types, pydantic adds the type it tried."""
    return [str(part) for part in detail["loc"] if not re.match(r"constrained-|float|int$|tuple|.*\[", str(part))]


def _explain_one(
    detail: ErrorDetails, values: Mapping[str, Any], source: str, text: str, changed: Collection[str]
) -> str:
    """Where, what, the value, what is allowed."""
    location = _location(detail)
    line = _line_of(location, text)
    key = ".".join(location) or "settings"
    where = f"{source} with --set" if key in changed else f"{source}:{line}" if line else source
    if detail["type"] == "extra_forbidden":
        return f"{where}: unknown setting {key!r}: {nearest(location[-1], _known_keys(location[:-1], values))}"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = f"must be a table of settings: write [{key}] above its keys"
    if detail["type"] in NO_LIST:
        message = "must be a list: write its values in brackets, such as [1, 2]"
    if detail["type"] in ("too_long", "too_short"):
        limits = detail["ctx"]
        most = limits.get("max_length")
        count = f"at most {most}" if most is not None else f"at least {limits['min_length']}"
        message = f"must have {count} values, not {limits['actual_length']}"
    given = "" if isinstance(detail["input"], Mapping | Section) else f" is {detail['input']!r}, but"
    end = "" if message.endswith(("?", ".")) else "."
    return f"{where}: {key}{given} {message[:1].lower()}{message[1:]}{end}"


def _known_keys(tables: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The keys of the table in which an unknown one stood."""
    current: type[Section] = Settings
    for table in tables:
        inner = current.model_fields[table].annotation
        if table in NAMED:
            inner = NAMED[table][values[table]["name"]]
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            return []
        current = inner
    return list(current.model_fields)


def _line_of(location: Sequence[str], text: str) -> int | None:
    """The line of a key in TOML text, where it stands under its table's header."""
    tables, key = list(location[:-1]), location[-1] if location else ""
    current: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]+", line):
            current = [part.strip() for part in header[1].split(".")]
            if current == list(location):
                return number
        elif (found := re.match(r"\s*([\w.-]+)\s*=", line)) and [*current, *found[1].split(".")] == [*tables, key]:
            return number
    return None
