"""Learners on top of a learner: a method whose local steps follow more than one gradient makes its own from several."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from leanfed.algorithms.contract import Learner, Weights
from leanfed.tasks.batch import Batch


def whole(models: Tensor) -> Weights:
    """Models (1 or C, d) of a method that shares all parameters, as weights for its learner."""
    return Weights(models, models[:, :0])


class Objective(ABC):
    """What local steps descend on instead of the loss; its two parts may be anything that has a gradient.

    `Weights` come as the method lays them out, for example [shared model | personal model]. The gradients returned
    have that layout and are new tensors: those of the learner underneath last until its next call.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.split, self.initial, self.picks = learner.split, learner.initial, learner.picks

    @abstractmethod
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses (C,) at the weights that are trained, and gradients of the objective (C, both parts)."""

    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        """The private part's gradient at other private weights: the whole way again."""
        return self.loss_and_gradient(weights, batch)[1][:, weights.shared.shape[1] :]
