"""What a round costs its clients in seconds, joules, bits and FLOPs, from the state of the fleet and the work done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from leanfed.algorithms.base import Algorithm
from leanfed.compression.values import VALUE_TYPES
from leanfed.errors import SettingsError
from leanfed.quantities import SCHEMA, in_order
from leanfed.records import Floats, Ints, RoundPlan, Section
from leanfed.rounds.broadcast import Differences
from leanfed.rounds.engine import RoundOutcome
from leanfed.rounds.world import World
from leanfed.wireless import cost
from leanfed.wireless.fleet import Fleet, FleetSettings, FleetState, SampledFleet
from leanfed.wireless.fleet_file import read_fleet
from leanfed.wireless.masking import MaskedSum
from leanfed.wireless.payload import dense_bits, exact_bits, mask_bits, paper_bits
from leanfed.wireless.round_cost import RoundCost, Workload, round_cost

OVER_CLIENTS: Final[dict[str, Callable[[Floats], Any]]] = {"sum": np.sum, "max": np.max, "mean": np.mean}

# Keys that version 0.1.0 did not have.
SINCE: Final = {"computation", "values", "broadcast", "k_down", "values_down", "masked_sum", "mask_neighbours"}
LONGEST_S, MOST_J = 1e9, 1e12  # of one device in one round, 30 years: beyond them a link counts as dead


class RadioSettings(Section):
    """The radio and the devices, as in the paper's parameter table; values it does not give are marked as assumed."""

    fleet: FleetSettings = Field(default_factory=FleetSettings)
    """How devices are drawn each round."""
    fleet_file: str | None = None
    """Measured devices (CSV or Parquet) instead of drawn ones."""
    cycles_per_sample: float = Field(default=8e6, gt=0, le=1e18)
    """C, CPU cycles for one sample on the whole model (assumed; the paper does not say)."""
    computation: Literal["weights", "operations"] = "weights"
    """What computation is counted in, for all of it: what pruning saves, a head's further steps, the planner and the
    charges. By weights as in the paper's Eq. (12), or by operations: the multiply-adds of base and head, and for
    narrower models the work on what their layers put out as well (500 multiply-adds a value, measured)."""
    payload: Literal["exact", "paper"] = "exact"
    """The bits that latency and energy are charged for: the exact count, or the paper's S."""
    value_bits: Literal[16, 32, 64] = 32
    """F, bits of one value; it changes what is charged. What is sent changes with `values`."""
    values: Literal["float32", "float16", "bfloat16", "log8", "log4", "sign"] | None = None
    """What uploaded values travel as, in place of `value_bits`: clients round before they send, and error feedback
    remembers what rounding took. log8 and log4 are a sign and a level on a logarithmic scale, rounded at random so that
    the mean stays; sign is one bit and the mean magnitude. Masks have no values. None: not rounded."""
    downlink: Literal["neglected", "broadcast"] = "neglected"
    """The broadcast of the shared part: free as in the paper, or at 33 dBm to the worst participant."""
    broadcast: Literal["dense", "difference"] = "dense"
    """What is broadcast: the shared part in 32-bit floats, or the largest entries of its difference to what the clients
    have of it. They train and are tested on what they have; what was not sent is sent later. The first round, and any
    client that has nothing or missed too much, gets the shared part itself."""
    k_down: float = Field(default=0.1, gt=0, le=1)
    """Share of the entries that a difference holds."""
    values_down: Literal["float32", "float16", "bfloat16", "log8", "log4", "sign"] = "log8"
    """What the values of a difference travel as."""
    masked_sum: bool = False
    """Sums of masked uploads (secure aggregation), of which the server sees the total alone. A fleet's nodes mask; a
    simulation charges for longer values, keys, shares and the computation of masks, and learns what it learns without.
    Values count as whole numbers of their bits. Needs uploads whose entries are the same for all: dense ones, or
    sparsify.select = "common"."""
    mask_neighbours: int | None = Field(default=None, ge=1, le=1_000_000)
    """With masked_sum: how many others a client shares masks with (SecAgg+); None: all of the round (SecAgg)."""
    wire: bool = False
    """Send every update through the real codec and measure its bytes."""

    @model_validator(mode="before")
    @classmethod
    def _one_currency(cls, values: Any) -> Any:
        """Refuse the key of version 0.1.0, but for the whole table of a run folder: finished ones are read back."""
        if not isinstance(values, dict) or "head_step" not in values:
            return values
        rest = {name: value for name, value in values.items() if name != "head_step"}
        if rest.keys() < cls.model_fields.keys() - SINCE:
            raise ValueError(
                "head_step is gone: computation = 'weights' or 'operations' rules pruning and head steps alike"
            )
        return rest

    @model_validator(mode="after")
    def _the_codec_has_no_64_bit_values(self) -> RadioSettings:
        if self.wire and self.value_bits == 64 and self.values is None:
            raise ValueError("wire = true sends 32- or 16-bit values; set value_bits = 32 or 16")
        if self.masked_sum and (self.wire or self.values in ("log8", "log4", "sign")):
            raise ValueError(
                "masked_sum adds up whole numbers, which the codec (wire = true) and the logarithmic values log8, log4 "
                "and sign are not; set wire = false and values = 'float32', 'float16' or 'bfloat16', or leave them out"
            )
        if self.values is not None and self.value_bits not in (32, self.bits):
            raise ValueError(
                f"value_bits = {self.value_bits}, but values = '{self.values}' have {self.bits}; leave value_bits out"
            )
        return self

    @property
    def bits(self) -> int:
        """Bits of one uploaded value."""
        return self.value_bits if self.values is None else VALUE_TYPES[self.values].bits

    @property
    def float_bits(self) -> int:
        """Bits of one value that is not coded: of the model that the server sends, and of running statistics."""
        return self.value_bits if self.values is None else 32

    @property
    def wire_type(self) -> str:
        """The value type of uploads in the codec."""
        return self.values or {32: "float32", 16: "float16", 64: "float32"}[self.value_bits]

    @property
    def scale_bits(self) -> int:
        """Bits of an upload for the scale of its values."""
        return 0 if self.values is None else VALUE_TYPES[self.values].beside_bits

    @property
    def differences(self) -> Differences | None:
        """How differences are sent down; None: the shared part itself is."""
        return Differences(self.k_down, self.values_down) if self.broadcast == "difference" else None

    def open_fleet(self, clients: int, seed: int) -> Fleet:
        """The devices of a run, one per client."""
        if self.fleet.devices not in (clients, FleetSettings().devices):
            raise SettingsError(
                f"radio.fleet.devices = {self.fleet.devices}, but there are {clients} clients. Leave devices out."
            )
        settings = self.fleet.model_copy(update={"devices": clients})
        if self.fleet_file is not None:
            return read_fleet(Path(self.fleet_file), settings, clients=clients, seed=seed)
        return SampledFleet(settings, seed)


@dataclass(frozen=True)
class RoundBill:
    """A round's cost and its three bit counts, one entry per participant."""

    cost: RoundCost
    exact_bits: Floats
    paper_bits: Floats
    coded_bits: Floats | None  # None without the codec

    def round_row(self) -> dict[str, Any]:
        """Columns of the rounds table: the clients' columns, aggregated as the schema says, and the round's own."""
        row = {name: _over_clients(name, values) for name, values in self.client_columns().items()}
        row = {name: value for name, value in row.items() if SCHEMA[name].over_clients != "none"}
        row |= {} if self.coded_bits is not None else {"coded_bits": None}
        row |= {"latency_s": float(self.cost.round_latency_s), "download_bits": float(self.cost.download_bits)}
        return {name: row[name] for name in in_order(row)}

    def client_columns(self) -> dict[str, Any]:
        """Columns of the clients table."""
        return {
            "communication_s": self.cost.communication_s,
            "computation_s": self.cost.computation_s,
            "energy_j": self.cost.energy_j,
            "upload_bits": self.cost.upload_bits,
            "exact_bits": self.exact_bits,
            "paper_bits": self.paper_bits,
            "coded_bits": [None] * len(self.exact_bits) if self.coded_bits is None else self.coded_bits,
            "flops": self.cost.flops,
        }


def _over_clients(name: str, values: Any) -> float | None:
    """A round's value of a column from its participants' values; None if one of them is, or for a maximum of none."""
    numbers, rule = np.asarray(values, dtype=float), SCHEMA[name].over_clients
    if np.isnan(numbers).any() or rule not in OVER_CLIENTS or (not numbers.size and rule != "sum"):
        return None
    return float(OVER_CLIENTS[rule](numbers))


class Accountant:
    """Charges each round of a run for what its participants did."""

    def __init__(self, settings: RadioSettings, world: World) -> None:
        self.settings = settings
        self.world = world
        self.fleet = settings.open_fleet(world.task.clients, world.task.seed)

    def out_of_reach(self, plan: RoundPlan) -> dict[int, str]:
        """Participants of a plan on even shares whose round would never end or cost without end, and why."""
        if not plan.participants:
            return {}
        samples = self.world.samples(plan.participants).astype(np.int64)
        outcome = RoundOutcome(None, samples * 0.0, samples, self.world.entries(plan))  # type: ignore[arg-type]  # needs no server
        with np.errstate(all="ignore"):
            cost = self.bill(plan, outcome).cost
        return {
            client: f"its round would take {seconds:.3g} s and {joules:.3g} J; see its gain, power, clock and bandwidth"
            for client, seconds, joules in zip(plan.participants, cost.latency_s, cost.energy_j, strict=True)
            if seconds > LONGEST_S or joules > MOST_J
        }

    def bill(self, plan: RoundPlan, outcome: RoundOutcome) -> RoundBill:
        """The costs of one round, per participant."""
        radio = self.settings
        exact, paper = upload_bits(self.world, radio, outcome.entries, plan.participants)
        share, before = planned_share(self.world, radio, plan), _prepared(self.world, radio, plan)
        before = np.divide(before, share, out=np.zeros(len(share)), where=share > 0.0)  # in this round's samples
        workload = Workload(
            upload_bits=exact if self.settings.payload == "exact" else paper,
            computed_share=share,
            samples=outcome.samples + before,
            cycles_per_sample=self.settings.cycles_per_sample,
            download_bits=broadcast_bits(self.world, radio, plan.round) if plan.participants else 0.0,
            more_cycles=masks(radio, outcome.entries).cycles(outcome.entries) if radio.masked_sum else 0.0,
        )
        state = of_participants(self.fleet.state(plan.round), plan.participants)
        cost = round_cost(state, workload, plan.share, downlink=self.settings.downlink)
        return RoundBill(cost, exact, paper, outcome.coded_bits)


def _prepared(world: World, radio: RadioSettings, plan: RoundPlan) -> Floats:
    """Samples, as steps of the whole model, that participants had before round 0; those who come later had the time.

    The joules of those who come later are counted nowhere.
    """
    found = np.zeros(len(plan.participants))
    for own, places in world.by_width(plan.participants) if plan.round == 0 else ():
        found[places] = own.algorithm.preparation() * (1.0 if own is world else step_share(own, world, radio))
    return found


@dataclass(frozen=True)
class StepWork:
    """What a client computes on a sample, as shares of a step of the whole model: base and head make 1."""

    base: float
    head: float
    further: float  # one more step of the head on features that are there already


def step_work(world: World, radio: RadioSettings) -> StepWork:
    """The shares by weights, d_B/d and d_P/d as in Eq. (12), or by multiply-adds.

    Multiply-adds are known by part where a model can be cut. Where it cannot, pruning saves by weights and a further
    step takes the whole way again.
    """
    weights = world.split.private_size / world.split.size
    if radio.computation == "weights":
        return StepWork(1.0 - weights, weights, weights)
    operations = world.head_step_share
    if operations == 1.0:
        return StepWork(1.0 - weights, weights, operations)
    return StepWork(1.0 - operations, operations, operations)


def planned_work(world: World, radio: RadioSettings, head_steps: int | None = None) -> tuple[float, float]:
    """(cycles, head_work) of a Problem, which knows sizes in weights: C in units of its own, and a head's in d_P/d.

    The base then takes C times its share, and a whole head with its further steps C times theirs. Problems are made for
    methods with one pass of the whole model.
    """
    split, more = world.split, _stepping(world.algorithm, head_steps).work(1.0).head_passes
    if radio.computation == "weights" or not (split.private_size and split.shared_size):
        return 1.0, 1.0 + more
    work = step_work(world, radio)
    cycles = work.base / (split.shared_size / split.size)
    return cycles, (work.head + more * work.further) / (split.private_size / split.size) / cycles


@dataclass(frozen=True)
class ModelSizes:
    """The models of some clients as a Problem has them, one entry each."""

    base: Floats  # values
    head: Floats
    cycles: Floats  # over those of the whole model, in units of a Problem's own
    head_work: Floats


def model_sizes(
    world: World, radio: RadioSettings, clients: tuple[int, ...], head_steps: int | None = None
) -> ModelSizes:
    """Sizes and work of these clients' models: those of the whole one, or of narrower ones where they have them."""
    found = np.empty((4, len(clients)))
    for own, places in world.by_width(clients):
        cycles, head_work = planned_work(own, radio, head_steps)
        cycles *= 1.0 if own is world else step_share(own, world, radio)
        found[:, places] = np.array([[own.split.shared_size], [own.split.private_size], [cycles], [head_work]])
    return ModelSizes(*found)


def computed_share(
    world: World, radio: RadioSettings, r: Floats, batches: Floats | float = 1.0, head_steps: int | None = None
) -> Floats:
    """What clients compute on a sample over a whole model's step, at keep rates r in a round of so many batches.

    It is the method's passes of the whole model, less what pruning saves, and its further passes of the head.
    """
    split, work, whole = world.split, step_work(world, radio), _stepping(world.algorithm, head_steps).work(batches)
    if radio.computation == "operations" and world.unit_shares(1.0) is not None:
        shares = np.array([world.unit_shares(float(rate)) for rate in np.ravel(r)]).reshape(-1, 2)
        return np.asarray(shares[:, 0] * whole.passes + shares[:, 1] * whole.head_passes)
    pruned = world.algorithm.prunable(split)
    if radio.computation == "weights" or pruned == split.size:  # all of a model has the same share in either
        kept = cost.computed_share(split.size - pruned, pruned, r)
    else:
        by_layer = bool(world.algorithm.pruned_layers(split))
        of_pruned = world.pruned_operations if by_layer else work.head if pruned else 0.0
        kept = np.asarray(1.0 - (1.0 - r) * of_pruned)
    return np.asarray(kept * whole.passes + r * whole.head_passes * work.further)


def planned_share(world: World, radio: RadioSettings, plan: RoundPlan) -> Floats:
    """What each participant of a plan computes on a sample over a whole model's step, narrower models included."""
    batches, found = world.batches(plan.participants), np.zeros(len(plan.participants))
    for own, places in world.by_width(plan.participants):
        share = computed_share(own, radio, plan.r[places], batches[places], plan.head_steps)
        found[places] = share if own is world else share * step_share(own, world, radio)
    return found


def step_share(own: World, world: World, radio: RadioSettings) -> float:
    """A step of a narrower model over a step of the whole one, by weights or by operations.

    Operations are multiply-adds, which fall with the square of the width, and the work on each output of a layer, which
    falls with the width (`VALUE_WORK`).
    """
    if radio.computation == "operations" and own.step_time and world.step_time:
        return own.step_time / world.step_time
    return own.split.size / world.split.size


def _stepping(algorithm: Algorithm, head_steps: int | None) -> Algorithm:
    """The method with as many head steps as a plan says; None: its own number."""
    return algorithm if head_steps is None else algorithm.model_copy(update={"head_steps": head_steps})


def upload_bits(
    world: World, radio: RadioSettings, entries: Ints, clients: tuple[int, ...] | None = None
) -> tuple[Floats, Floats]:
    """(exact, paper) bits of uploads of so many values, with running statistics where they are shared.

    The paper's S is for values with positions; uploads without positions have the same count in both. Positions in a
    narrower model are among its own entries, which the server knows; `clients` says whose uploads they are.
    """
    if clients is not None and world.widths is not None:
        both = np.zeros((2, len(clients)))
        for own, places in world.by_width(clients):
            both[:, places] = upload_bits(own, radio, entries[places])
        return both[0], both[1]
    form, size, beside = world.algorithm.upload_form, world.vector_size, radio.float_bits * world.statistics_size
    if radio.masked_sum:
        bits = masks(radio, entries).sent_bits(entries) + beside
        return bits, bits
    if form == "mask":
        bits = np.asarray(mask_bits(entries)) + beside
        return bits, bits
    more = beside + radio.scale_bits * (entries > 0)
    if form == "common":
        bits = dense_bits(entries, value_bits=radio.bits) + more
        return bits, bits
    exact = exact_bits(size, entries, value_bits=radio.bits) + more
    if form == "dense":
        return exact, exact
    return exact, paper_bits(size, entries / size, value_bits=radio.bits) + more


def masks(radio: RadioSettings, entries: Ints) -> MaskedSum:
    """The masked sum of a round with these uploads; who sends nothing has no part in it."""
    return MaskedSum.of(int(np.count_nonzero(entries)), radio.mask_neighbours, radio.bits)


def broadcast_bits(world: World, radio: RadioSettings, number: int) -> float:
    """Bits of a round's broadcast, which every client hears: a difference where that is shorter, but for round 0.

    Running statistics that are shared go along as they are.
    """
    beside, how = radio.float_bits * float(world.statistics_size), radio.differences
    if number and how is not None and how.pays(world.vector_size):
        return how.bits(world.vector_size) + beside
    return radio.float_bits * float(world.vector_size) + beside


def of_participants(state: FleetState, participants: tuple[int, ...]) -> FleetState:
    """The devices of the participants."""
    chosen = list(participants)
    return FleetState(
        gain=state.gain[chosen],
        power_w=state.power_w[chosen],
        cpu_hz=state.cpu_hz[chosen],
        energy_coefficient=state.energy_coefficient[chosen],
        bandwidth_hz=state.bandwidth_hz,
        noise_w_per_hz=state.noise_w_per_hz,
        curves=None if state.curves is None else state.curves.of(chosen),
    )
