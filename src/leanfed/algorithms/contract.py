"""Inputs and outputs of a method: records with a leading client axis, which has length one on a device.

The C clients of a cohort have the same order everywhere: row n of every tensor and array is `Cohort.clients[n]`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, Protocol

from pydantic import AfterValidator, Field, model_validator
from torch import Tensor

from leanfed.algorithms.optimizers import Constants, known_optimizer
from leanfed.compression.picks import Picks
from leanfed.quantities import KEPT
from leanfed.records import Floats, Ints, Section
from leanfed.tasks.batch import Batch
from leanfed.tasks.nest import Nest
from leanfed.tasks.split import Split
from leanfed.tasks.units import Units

if TYPE_CHECKING:
    from leanfed.algorithms.uploads import Uploads

PRIVATE = "private"  # name in a client's state
# What clients say of their progress beside an upload, 48 bytes: shares of the squared norm of the vector that entries
# are chosen from, at five keep rates, and by what factor a step shortens the head's gradient.
SIGNALS: Final = (*KEPT, "head_contraction")


class ServerStep(Section):
    """How the server moves along a round's mean gradient g: w - scale eta m, with m = average m + (1 - average) cut(g).

    A swing of the accuracy is a single step of the base that is too long; cutting and averaging damp it, and a damped
    step may be longer.
    """

    cap: float | None = Field(default=None, gt=0, le=1e9)
    """The largest norm of a mean gradient; longer ones are cut to it. None: not cut."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Weight of the past in the average that the server follows; 0: the gradient of this round alone."""
    even: bool = False
    """Bring every mean gradient to the running mean of their norms, n = 0.9 n + 0.1 |g|, before it is averaged: no
    step is much longer than those before it, and no norm has to be known."""
    scale: float = Field(default=1.0, gt=0, le=1_000)
    """Length of the step in units of the learning rate."""


class Training(Section):
    """How a client takes its local steps, the same for every method."""

    batch_size: int = Field(default=32, ge=1, le=100_000)  # more would not fit into memory
    """b, samples per step."""
    local_steps: int = Field(default=1, ge=1, le=100_000)
    """Steps per round; the paper's Algorithm 1 takes one."""
    local_epochs: int | None = Field(default=None, ge=1, le=10_000)
    """Passes over a client's data per round, instead of local_steps."""
    learning_rate: float = Field(default=0.1, gt=0, le=1_000)  # from about 10 on nothing is learned
    """eta in round 0."""
    learning_rate_decay: float = Field(default=1.0, gt=0, le=1)
    """eta is multiplied by this every round."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of the server's step on the shared part and, with optimizer = "sgd", of the clients' steps on their
    private parts. With optimizer = "momentum": of local steps alone."""
    weight_decay: float = Field(default=0.0, ge=0, le=1_000)
    """Added to gradients as weight_decay x weights; AdamW adds it to the step beside the direction."""
    optimizer: Annotated[str, AfterValidator(known_optimizer)] = "sgd"
    """What local steps follow: w - eta v, where v is the gradient (sgd) or what the rule makes of it."""
    optimizer_part: Literal["all", "private"] = "all"
    """all: local steps of both parts; the upload is (start - end) / eta, so the server averages what clients arrive at.
    private: of the private part alone; the shared part's upload stays a gradient, along which the server steps."""
    optimizer_state: Literal["kept", "dropped"] = "kept"
    """Whether a client remembers its velocity and moments until its next round, or begins each with zeros."""
    optimizer_rate: float | None = Field(default=None, gt=0, le=1_000)
    """Step size of the optimiser in round 0, which decays like eta; None: learning_rate."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam: weight of the past in the mean of gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Adam, RMSprop: weight of the past in the mean of squared gradients."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Added to the root that gradients are divided by."""
    server: ServerStep = Field(default_factory=ServerStep)
    """The server's step; by default as in Eq. (6)."""

    @model_validator(mode="after")
    def _momentum_needs_a_weight(self) -> Training:
        if self.optimizer == "momentum" and not self.momentum:
            raise ValueError("optimizer = 'momentum' needs training.momentum above 0, for example 0.9")
        return self

    @property
    def server_momentum(self) -> float:
        """Momentum of the server's own step."""
        return 0.0 if self.optimizer == "momentum" else self.momentum

    @property
    def constants(self) -> Constants:
        """The numbers of the optimiser's rule."""
        return Constants(self.momentum, self.beta1, self.beta2, self.epsilon)

    @property
    def optimizer_ratio(self) -> float:
        """The optimiser's step size in units of eta."""
        return 1.0 if self.optimizer == "sgd" or not self.optimizer_rate else self.optimizer_rate / self.learning_rate

    def rate(self, round_number: int) -> float:
        """eta in this round."""
        return self.learning_rate * self.learning_rate_decay**round_number


@dataclass(frozen=True)
class ServerState:
    """The server's state between rounds: shared weights and the memories of its method, by name."""

    shared: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """A client's state, which never leaves it: private weights and the memories of its method, by name."""

    private: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """What a client computes on each sample of a step, in passes: forward, and backward for the gradient."""

    passes: Floats | float = 1.0  # of the whole model, pruned where the method prunes; one number, or one per client
    head_passes: int = 0  # further ones of the private part alone, on features that are there already


class Tuning(NamedTuple):
    """Steps w <- w - rate grad F_n(w) that a client takes on a copy of its model before it predicts."""

    steps: int = 0
    rate: float = 0.0


class Weights(NamedTuple):
    """The two parts of C models; a part has one row if it is the same for all clients."""

    shared: Tensor  # (1 or C, d_shared)
    private: Tensor  # (1 or C, d_private)

    def row(self, row: int) -> tuple[Tensor, Tensor]:
        """One client's parts, (d_shared,) and (d_private,)."""
        shared, private = self
        return shared[row if shared.shape[0] > 1 else 0], private[row if private.shape[0] > 1 else 0]


@dataclass(frozen=True)
class Cohort:
    """Some participants of a round: their numbers, settings, states and batches."""

    clients: tuple[int, ...]
    round: int
    seed: int
    training: Training
    k: Floats  # (C,) keep rates of the shared gradient
    r: Floats  # (C,) keep rates of the pruned weights
    private: Tensor  # (C, d_private), must not be modified
    memory: Mapping[str, Tensor]  # name -> (C, size), as in `Algorithm.holds`; zeros before a client's first round
    batches: Iterable[Batch]  # one per step, read once: inputs (C, B, ...), labels (C, B)
    steps: int  # number of batches
    values: str = "float32"  # what uploaded values travel as; engines round them (`rounds.coding`)
    head_steps: int | None = None  # of the plan; None: the method's own number
    report: bool = False  # whether clients say what a planner measures progress by (`Updates.signals`)
    units: Units | None = None  # of the private part, for a method that prunes units
    nest: Nest | None = None  # of one client whose model is narrower; methods see the narrower one

    @property
    def rate(self) -> float:
        """eta of this round."""
        return self.training.rate(self.round)


class Learner(Protocol):
    """Computes losses and gradients for C clients: one after another for any nn.Module, or at once by kernels."""

    @property
    def split(self) -> Split:
        """The model's parameters, divided into shared and private."""
        ...

    @property
    def initial(self) -> Tensor:
        """(d,) the model's initial weights, the same on every machine."""
        ...

    @property
    def picks(self) -> Picks:
        """How the largest entries are found."""
        ...

    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean losses (C,) and gradients (C, d), Eq. (2); gradients may be modified, until the next call."""
        ...

    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        """Gradients (C, d_private) at other private weights, on the features of the last `loss_and_gradient`.

        `batch` and the shared part must be those of that call, whose gradients become invalid.
        """
        ...


@dataclass(frozen=True)
class Updates:
    """The answers of C clients."""

    uploads: Uploads
    private: Tensor  # (C, d_private) after training
    memory: Mapping[str, Tensor]  # name -> (C, size), as in `Algorithm.holds`
    loss: Floats  # (C,) mean over the round's steps, at the weights that were trained
    samples: Ints  # (C,) samples processed
    statistics: Tensor | None = None  # (C, size) running statistics to send; set by `rounds.exchange`
    signals: Floats | None = None  # (C, SIGNALS) where the cohort is asked for them

    @property
    def kept(self) -> dict[str, Tensor]:
        """Everything that the clients keep, by name."""
        return {PRIVATE: self.private, **self.memory}

    def state(self, row: int) -> ClientState:
        """The new state of one client."""
        return ClientState(self.private[row], {name: rows[row] for name, rows in self.memory.items()})
