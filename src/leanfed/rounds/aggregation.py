"""How the server combines a round's uploads into one update, by a rule chosen by name."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ServerState, Training
from leanfed.algorithms.uploads import Listed, Upload
from leanfed.compression import exact
from leanfed.records import Floats, Section
from leanfed.registry import Registry
from leanfed.rounds.exchange import Answers
from leanfed.rounds.nested import STATISTICS, covered_mean

AVERAGE = "average"  # the server's memory of past mean gradients
NORM, PAST_NORMS = "norm", 0.9  # its memory of their norms, and the weight of the past in it
OF_THE_RULE = "rule."  # before the names of what the aggregation rule remembers, in the server's memory


class Combined(NamedTuple):
    """What a rule makes of a round's uploads."""

    update: Tensor
    weights: Floats | None = None  # (n,) of the uploads, if the rule has chosen them
    memory: Mapping[str, Tensor] = {}  # what the server is to remember for the rule until the next round


class Aggregation(Section):
    """An aggregation rule: its settings, and how it combines uploads.

    A small example that takes the largest value of every entry:

    >>> import numpy as np
    >>> class Largest(Aggregation):
    ...     def combine(self, size, gamma, uploads):
    ...         return torch.stack([upload.dense() for upload in uploads]).amax(0)
    >>> sent = [Upload(2, torch.tensor([1.0, 5.0])), Upload(2, torch.tensor([3.0]), torch.tensor([0]))]
    >>> Largest().combine(2, np.array([0.5, 0.5]), sent).tolist()
    [3.0, 5.0]
    """

    single_uploads: ClassVar[bool] = True
    """Whether the rule needs every upload; if not, engines compute the weighted mean from a sum, which is faster."""

    @abstractmethod
    def combine(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Tensor:
        """The update (size,) from the uploads of a round and their weights gamma_n, in the order of the plan."""

    def weigh(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Floats | None:
        """(n,) the weight of each upload, if the update is their weighted sum; then `combine` is not asked."""
        return None

    def judge(
        self,
        size: int,
        gamma: Floats,
        uploads: Sequence[Upload],
        clients: Sequence[int],
        memory: Mapping[str, Tensor],
    ) -> Combined:
        """The update of these clients' uploads; `memory` is what the last round left, empty before the first."""
        weights = self.weigh(size, gamma, uploads)
        if weights is None:
            return Combined(self.combine(size, gamma, uploads))
        return Combined(weighted_sum(size, weights, uploads), weights)

    def misfit(self, algorithm: Algorithm) -> str | None:
        """Why the rule cannot combine the uploads of a method, as a clause; None if it can."""
        return None


AGGREGATIONS: Final[Registry[type[Aggregation]]] = Registry("aggregation rule", group="leanfed.aggregations")


@final
@AGGREGATIONS.register("mean")
class WeightedMean(Aggregation):
    """sum of gamma_n g_n / sum of gamma_n over the participants; entries that were not sent count as zero.

    Eq. (6) sums over all clients, whose gammas add up to one.
    """

    name: Literal["mean"] = "mean"
    single_uploads = False

    @override
    def combine(self, size: int, gamma: Floats, uploads: Sequence[Upload]) -> Tensor:
        total = exact.zeros(size)
        Listed(uploads).add_to(total, gamma)
        return divided(total, gamma)


def divided(total: Tensor, gamma: Floats) -> Tensor:
    """The mean (float32) from a weighted sum of `compression.exact`; zero if all weights are zero."""
    weight = math.fsum(gamma)
    return (total / weight if weight > 0 else total).to(torch.float32)


def weighted_sum(size: int, weights: Floats, uploads: Sequence[Upload]) -> Tensor:
    """sum of w_n u_n (float32), whatever their order."""
    total = exact.zeros(size)
    Listed(uploads).add_to(total, weights)
    return total.to(torch.float32)


def combined(
    rule: Aggregation, server: ServerState, clients: Sequence[int], answers: Answers, weights: Tensor | None = None
) -> Combined:
    """The update by the rule.

    `weights` (size,) is what the sum is divided by, entry by entry, where not all clients have all entries.
    """
    if answers.total is not None and weights is not None:
        return Combined(covered_mean(answers.total, weights))
    if answers.total is not None:
        return Combined(divided(answers.total, answers.gamma))
    return by_rule(rule, server, clients, answers.gamma, answers.uploads)


def by_rule(
    rule: Aggregation, server: ServerState, clients: Sequence[int], gamma: Floats, uploads: Sequence[Upload]
) -> Combined:
    """The update of single uploads, with what the server remembers for the rule."""
    past = {
        name.removeprefix(OF_THE_RULE): tensor for name, tensor in server.memory.items() if name.startswith(OF_THE_RULE)
    }
    return rule.judge(len(server.shared), gamma, uploads, clients, past)


def remembering(server: ServerState, memory: Mapping[str, Tensor]) -> ServerState:
    """The server's state with what the rule is to be told in the next round."""
    named = {f"{OF_THE_RULE}{name}": tensor for name, tensor in memory.items()}
    return ServerState(server.shared, {**server.memory, **named}) if named else server


def update_server(
    algorithm: Algorithm, server: ServerState, mean: Tensor, answers: Answers, training: Training, number: int
) -> ServerState:
    """The server's state after a round: the method's step along the combined uploads, and shared statistics."""
    after = stepped(algorithm, server, mean, training, number, math.fsum(answers.gamma))
    if answers.statistics is None:
        return after
    return ServerState(after.shared, {**after.memory, STATISTICS: divided(answers.statistics, answers.gamma)})


def stepped(
    algorithm: Algorithm, server: ServerState, mean: Tensor, training: Training, number: int, taken: float
) -> ServerState:
    """The method's step along the combined uploads, cut, evened, averaged and scaled as `training.server` says."""
    how, memory = training.server, dict(server.memory)
    measured = how.cap is not None or how.even
    norm = math.sqrt(np.square(mean.numpy(), dtype=np.float64).sum()) if measured else 0.0  # in one thread and order
    if how.cap is not None and norm > how.cap:
        mean, norm = mean * (how.cap / norm), how.cap
    if how.even and norm > 0:
        usual = float(memory[NORM]) if NORM in memory else norm
        memory[NORM] = torch.tensor([PAST_NORMS * usual + (1 - PAST_NORMS) * norm], dtype=torch.float32)
        mean = mean * (usual / norm)
    if how.average:
        past = memory.get(AVERAGE, torch.zeros_like(mean))
        memory[AVERAGE] = mean = past * how.average + mean * (1 - how.average)
    if how.scale != 1.0:
        mean = mean * how.scale
    return algorithm.step(ServerState(server.shared, memory), mean, training, number, taken)


def why_plain_step(algorithm: Algorithm) -> str | None:
    """Why the server's step cannot be damped for a method, or None if it can."""
    if type(algorithm).step is Algorithm.step:
        return None
    return "its server does not step along a gradient"
