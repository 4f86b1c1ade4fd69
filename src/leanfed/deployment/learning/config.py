"""The configuration of a run and of a node: Flower's flat key-value tables as checked records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from leanfed.deployment.masking.refusals import check_masks
from leanfed.errors import SettingsError, nearest
from leanfed.files import parse_json
from leanfed.records import Section

if TYPE_CHECKING:
    from leanfed.runs.settings import Settings

T = TypeVar("T", bound=Section)
Value = bool | int | float | str


class RunConfig(Section):
    """The run-config of a run: what `flwr run` was given. Keys are written with dashes there."""

    settings: str = ""
    """The experiment as one JSON text."""
    run_folder: str = ""
    """Where the server keeps the run; an absolute path."""
    resume: bool = False
    """Go on with the run in run_folder."""
    audit: str = ""
    """The audit log; empty: audit.jsonl in the run folder."""
    nodes: int = Field(default=0, ge=0)
    """Nodes to wait for before the first round; 0: one per client."""
    join_s: float = Field(default=300.0, gt=0)
    """How long to wait for them; then the run begins with the nodes that have joined."""
    deadline_s: float = Field(default=120.0, gt=0)
    """Seconds until a round goes on without the nodes that have not answered."""
    quorum: float = Field(default=0.5, gt=0, le=1)
    """Share of a round's participants, absent ones included, whose updates must have arrived by then."""
    close_at: float = Field(default=1.0, gt=0, le=1)
    """Share of the round's clients whose updates close it before the deadline; 1: all of them."""
    over_selection: float = Field(default=0.0, ge=0, le=4)
    """Ask this share of clients more than the settings say; the round closes when as many as they say have answered."""
    late: Literal["drop", "use"] = "drop"
    """What becomes of an update that comes after its round: forgotten on both sides, or used in the round it meets."""
    late_rounds: int = Field(default=3, ge=1)
    """How many rounds late an update may be to be used."""
    rest_rounds: int = Field(default=8, ge=0)
    """A client that missed a deadline is left out for 1, 2, 4, ... rounds, at most this many; 0: for none."""
    attempts: int = Field(default=5, ge=1)
    """How often a round without quorum is tried before the run stops."""
    offences: int = Field(default=3, ge=1)
    """Refused updates after which a node is set aside."""
    release: str | int = ""
    """Clients to take back that were set aside, by their numbers: "2" or "2,5"."""
    bindings: str = ""
    """Which node is whose key; empty: nodes are believed."""
    max_samples: int = Field(default=1_000_000, ge=1)
    """The most training samples of a node with whose owner nothing else was agreed."""
    samples_ratio: float = Field(default=10.0, ge=0)
    """Nobody counts for more than this many times the median of all clients' samples; 0: no cap."""
    norm_bound: float = Field(default=10.0, ge=0)
    """An update of more than this many times the round's median norm is refused; 0: none is."""
    divergence: float = Field(default=10.0, ge=0)
    """A round's loss of more than this many times the usual one sends the run back to an earlier state; 0: never."""
    roll_back: int = Field(default=0, ge=0)
    """With resume: go on from the state of this many rounds ago."""
    poll_s: float = Field(default=0.5, gt=0)
    """Seconds between two polls for replies."""
    probe_kb: int = Field(default=128, ge=0, le=4000)
    """Kilobytes of a message, each way, that measures a link which nothing else has told of; 0: none is sent."""
    probe_rounds: int = Field(default=5, ge=0)
    """A device that was not heard of for more than this many rounds is probed; 0: never."""
    fleet: Literal["measured", "profile"] = "measured"
    """What plans are made from: the devices' reports, or the fleet of the settings."""
    mask_range: float = Field(default=16.0, gt=0, le=1e6)
    """With radio.masked_sum: nodes cut the values of their weighted updates to it. They are summed as whole numbers of
    steps of 2 mask_range / 2^F, F the bits of a value; another range than a power of two is the next one."""
    store: str = ""
    """Where virtual nodes keep their stores."""
    data_dir: str = ""
    """Where virtual nodes find their data."""

    @property
    def released(self) -> list[int]:
        """The clients of `release`."""
        try:
            return [int(part) for part in str(self.release).split(",") if part.strip()]
        except ValueError as error:
            raise SettingsError(
                f"run-config: release is {self.release!r}, but must be client numbers, such as 2 or 2,5."
            ) from error


class NodeConfig(Section):
    """The node-config of a node."""

    client_id: int = Field(ge=0)
    """Which client of the settings this node is."""
    store: str = Field(min_length=1)
    """The node's own folder."""
    data_dir: str = ""
    """Where its data sets are."""
    data: Literal["dealt", "own"] = "dealt"
    """Its share of the whole data set, or all that data_dir holds."""
    identity: str = ""
    """The folder with the node's key and its authority's certificate; empty: it signs nothing in masked sums, and
    takes others' keys as the server brings them."""

    @property
    def data_root(self) -> Path | None:
        """The data folder; nothing where LEANFED_DATA decides."""
        return Path(self.data_dir) if self.data_dir else None


def run_config(values: Mapping[str, Any]) -> RunConfig:
    """The checked run-config; refusals name the key as it is written there."""
    return _checked(RunConfig, values, "run-config")


def run_config_of_node(values: Mapping[str, Any]) -> RunConfig:
    """The run-config as a node reads it: keys of a newer server are none of its business."""
    known = {key: value for key, value in values.items() if key.replace("-", "_") in RunConfig.model_fields}
    return run_config(known)


def node_config(values: Mapping[str, Any], run: RunConfig) -> NodeConfig:
    """The checked node-config; a virtual node of Flower's simulation has its number and the run's own store."""
    if "partition-id" in values:
        if not run.store:
            raise SettingsError("A simulated fleet needs a place for its nodes' state. Set run-config key 'store'.")
        number = values["partition-id"]
        values = {"client-id": number, "store": f"{run.store}/node-{number}", "data-dir": run.data_dir}
    return _checked(NodeConfig, values, "node-config")


def defaults() -> dict[str, Value]:
    """Every run-config key with its default, as the app folder must list them."""
    return {name.replace("_", "-"): value for name, value in RunConfig().model_dump().items()}


def read_settings(text: str) -> Settings:
    """The experiment from its JSON text."""
    from leanfed.runs.settings import Settings  # loads torch, which those who only name the keys do not need

    if not text:
        raise SettingsError("The run has no settings. Set run-config key 'settings', or resume = true.")
    try:
        values = parse_json(text)
    except ValueError as error:
        why = f"run-config key 'settings' is not JSON ({error}). `leanfed deploy run` writes it."
        raise SettingsError(why) from error
    if not isinstance(values, dict):
        raise SettingsError(
            f"run-config key 'settings' holds a JSON {type(values).__name__}, not an object of keys and values. "
            "`leanfed deploy run` writes it."
        )
    settings = Settings.from_values(values, "run-config key 'settings'")
    if settings.task.chooses_cut:
        raise SettingsError(
            f"task.split = {settings.task.split!r} is no layer, and a fleet's nodes must all cut alike. "
            "`leanfed deploy run` chooses before it asks them; or name the layer."
        )
    if settings.task.statistics == "shared":
        raise SettingsError("task.statistics = 'shared' is for simulations; a fleet sends updates only. Set 'private'.")
    if settings.privacy.unit != "none" or settings.adversary.kind != "none":
        raise SettingsError(
            "privacy.unit and [adversary] are for simulations: a fleet's server adds no noise, and its nodes are "
            "what they are. Leave them out; privacy.metrics = 'off' alone lets nodes report no losses and no tests."
        )
    if settings.task.split_schedule:
        raise SettingsError("task.split_schedule is for simulations: a fleet keeps its cut. Leave it out.")
    if settings.width.shares:
        raise SettingsError("[width] is for simulations: a fleet's nodes all train the whole model. Leave it out.")
    check_masks(settings)
    if settings.radio.value_bits == 64 and settings.radio.values is None:
        raise SettingsError("radio.value_bits = 64, but updates travel with 32- or 16-bit values. Set one of those.")
    return settings


def _checked(kind: type[T], values: Mapping[str, Any], source: str) -> T:
    """A record of Flower's table, keys with underscores."""
    names = {key: key.replace("-", "_") for key in values}
    for key, name in names.items():
        if name not in kind.model_fields:
            known = [field.replace("_", "-") for field in kind.model_fields]
            raise SettingsError(f"{source}: unknown key {key!r}: {nearest(key, known)}")
    try:
        return kind.model_validate({name: values[key] for key, name in names.items()})
    except ValidationError as error:
        detail = error.errors()[0]
        key = str(detail["loc"][0]).replace("_", "-")
        given = "" if detail["type"] == "missing" else f" is {detail['input']!r}, but"
        raise SettingsError(f"{source}: {key}{given} {detail['msg'][:1].lower()}{detail['msg'][1:]}.") from None
