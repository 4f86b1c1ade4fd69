"""What a method is asked and what it answers: records with a leading client axis; a device is a batch of one.

C clients of a round stand in one order everywhere: row n of every tensor and array belongs to `Cohort.clients[n]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pydantic import Field
from torch import Tensor

from leanfed.compression.picks import Picks
from leanfed.records import Floats, Ints, Section
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split

if TYPE_CHECKING:
    from leanfed.algorithms.uploads import Uploads

PRIVATE, VELOCITY = "private", "velocity"  # names of what a client holds


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
    """Of the server's step on the shared part and of the clients' steps on their private part."""
    weight_decay: float = Field(default=0.0, ge=0, le=1_000)
    """Added to gradients as weight_decay x weights."""

    def rate(self, round_number: int) -> float:
        """eta of one round."""
        return self.learning_rate * self.learning_rate_decay**round_number


@dataclass(frozen=True)
class ServerState:
    """What the server holds between rounds."""

    shared: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """What never leaves a client: its private weights and the memories of its method, by name."""

    private: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


class Weights(NamedTuple):
    """The two parts of C models; a part has one row where all clients use the same."""

    shared: Tensor  # (1 or C, d_shared)
    private: Tensor  # (1 or C, d_private)

    def row(self, row: int) -> tuple[Tensor, Tensor]:
        """One client's parts, (d_shared,) and (d_private,)."""
        shared, private = self
        return shared[row if shared.shape[0] > 1 else 0], private[row if private.shape[0] > 1 else 0]


@dataclass(frozen=True)
class Cohort:
    """Some participants of a round: who they are, what is asked of them, what they hold."""

    clients: tuple[int, ...]
    round: int
    seed: int
    training: Training
    k: Floats  # (C,) keep rates of the shared gradient
    r: Floats  # (C,) keep rates of the pruned weights
    private: Tensor  # (C, d_private), not to be written over
    memory: Mapping[str, Tensor]  # name -> (C, size) for what the method `holds`; zeros before a client's first round
    batches: Iterable[Batch]  # one per step, read once: inputs (C, B, ...), labels (C, B)
    steps: int  # how many batches there are

    @property
    def rate(self) -> float:
        """eta of this round."""
        return self.training.rate(self.round)


class Learner(Protocol):
    """Computes losses and gradients for C clients: any nn.Module one after another, or kernels for all at once."""

    @property
    def split(self) -> Split:
        """The cut of the model."""
        ...

    @property
    def initial(self) -> Tensor:
        """(d,) the weights that the model was built with, the same on every machine."""
        ...

    @property
    def picks(self) -> Picks:
        """How the largest entries are found on this machine."""
        ...

    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean losses (C,) and gradients (C, d), Eq. (2); the gradients may be written over, until the next call."""
        ...

    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        """(C, d_private) at other private weights, on the features of the last `loss_and_gradient`.

        `batch` and the shared part are those of that call. Its gradients are used up.
        """
        ...


@dataclass(frozen=True)
class Updates:
    """What C clients answer."""

    uploads: Uploads
    private: Tensor  # (C, d_private) what they keep
    memory: Mapping[str, Tensor]  # name -> (C, size): the names that the method `holds`
    loss: Floats  # (C,) mean over the round's steps, at the weights that were trained
    samples: Ints  # (C,) samples processed
    statistics: Tensor | None = None  # (C, size) running statistics that travel; filled in by the exchange

    @property
    def kept(self) -> dict[str, Tensor]:
        """Everything that stays with the clients, by name."""
        return {PRIVATE: self.private, **self.memory}

    def state(self, row: int) -> ClientState:
        """What one client keeps."""
        return ClientState(self.private[row], {name: rows[row] for name, rows in self.memory.items()})
