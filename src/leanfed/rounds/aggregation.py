"""How the server combines a round's uploads into one update, by a rule chosen by name."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ServerState, Training
from leanfed.algorithms.uploads import Listed, Upload
from leanfed.compression import exact
from leanfed.records import Floats, Section
from leanfed.registry import Registry
from leanfed.rounds.exchange import STATISTICS, Answers


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


def update_server(
    algorithm: Algorithm, rule: Aggregation, server: ServerState, answers: Answers, training: Training, number: int
) -> ServerState:
    """The server's state after a round: combine the uploads by the rule, then take the method's step."""
    if answers.total is not None:
        mean = divided(answers.total, answers.gamma)
    else:
        mean = rule.combine(len(server.shared), answers.gamma, answers.uploads)
    after = algorithm.step(server, mean, training, number)
    if answers.statistics is None:
        return after
    return ServerState(after.shared, {**after.memory, STATISTICS: answers.statistics})
