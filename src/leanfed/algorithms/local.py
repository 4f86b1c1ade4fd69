"""Local steps of stochastic gradient descent for C clients, shared by every method that trains weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.contract import VELOCITY, Cohort, Learner, Training, Weights
from leanfed.errors import InputError
from leanfed.records import Floats, Ints
from leanfed.tasks.batch import Batch


class DivergedError(InputError):
    """A loss became NaN or infinite in training."""


@dataclass(frozen=True)
class Masking:
    """Masks of zeros and ones for weights, and how masked weights are treated; None: no weight is masked."""

    shared: Tensor | None = None  # (1 or C, d_shared)
    private: Tensor | None = None  # (C, d_private)
    discard: bool = False  # set masked weights to zero, as in Algorithm 1; else keep their values
    gradient: bool = False  # masked weights get no update

    def used(self, weights: Weights) -> Weights:
        """The weights at which gradients are taken."""
        return Weights(_masked(weights.shared, self.shared), _masked(weights.private, self.private))

    def kept(self, weights: Weights) -> Weights:
        """The weights from which a step starts."""
        return self.used(weights) if self.discard else weights


UNMASKED = Masking()


@dataclass(frozen=True)
class LocalRun:
    """The result of the clients' local steps."""

    gradient: Tensor  # (C, d) sum of the steps' gradients, (start - end) / eta for the shared part; may be modified
    private: Tensor  # (C, d_private) after the steps
    velocity: Tensor | None  # (C, d_private) momentum of the private part
    loss: Floats  # (C,)
    samples: Ints  # (C,)

    @property
    def memory(self) -> dict[str, Tensor]:
        """The memories of the steps themselves: the velocity, if there is momentum."""
        return {} if self.velocity is None else {VELOCITY: self.velocity}


Change = Callable[[Weights, Tensor], None]
"""Writes a method's own term into the gradients (C, d) that were taken at some weights."""


def local_steps(
    shared: Tensor,
    cohort: Cohort,
    learner: Learner,
    masking: Masking = UNMASKED,
    head_steps: int = 1,
    change: Change | None = None,
    *,
    train_shared: bool = True,
) -> LocalRun:
    """Train [shared | private] of every client on its batches.

    On each batch the private part takes `head_steps` steps, the first together with the shared part; all use the
    features of the shared part before its step. Momentum applies to the private part only, since the server has its own
    for the shared part. The shared weights have one row until the clients' first step, then one per client; without
    `train_shared` they stay as they are.
    """
    cut, rate = len(shared), cohort.rate
    weights = Weights(shared.unsqueeze(0), cohort.private)
    velocity = cohort.memory[VELOCITY] if cohort.training.momentum and cohort.private.shape[1] else None
    losses, samples, total = [], 0, shared
    for step, batch in enumerate(cohort.batches):
        weights = masking.kept(weights)
        loss, gradient = _gradient(learner, weights, masking, batch, cohort.training, change)
        losses.append(loss)
        samples += batch.labels.shape[1]
        total = total.add_(gradient) if step else gradient if cohort.steps == head_steps == 1 else gradient.clone()
        last = step == cohort.steps - 1  # then the shared weights are not needed again: the server steps along `total`
        stays = last or not train_shared
        after = weights.shared if stays else weights.shared.sub(gradient[:, :cut], alpha=rate)
        private, velocity = _step(weights.private, gradient[:, cut:], velocity, cohort)
        for _ in range(head_steps - 1):
            weights = masking.kept(Weights(weights.shared, private))
            slope = _head_gradient(learner, weights, masking, batch, cohort.training)
            total[:, cut:].add_(slope)
            private, velocity = _step(weights.private, slope, velocity, cohort)
        weights = Weights(after, private)
    counts = np.full(len(cohort.clients), samples, dtype=np.int64)
    return LocalRun(total, weights.private, velocity, mean_loss(losses, cohort), counts)


def alternating_steps(shared: Tensor, cohort: Cohort, learner: Learner, head_steps: int) -> LocalRun:
    """On each batch `head_steps` steps of the private part, then one of the shared part at the new private weights."""
    cut, rate = len(shared), cohort.rate
    weights = Weights(shared.unsqueeze(0), cohort.private)
    velocity = cohort.memory[VELOCITY] if cohort.training.momentum and cohort.private.shape[1] else None
    losses, samples, total = [], 0, shared
    for step, batch in enumerate(cohort.batches):
        loss, gradient = _gradient(learner, weights, UNMASKED, batch, cohort.training, None)
        losses.append(loss)
        samples += batch.labels.shape[1]
        private, velocity = _step(weights.private, gradient[:, cut:], velocity, cohort)
        for _ in range(head_steps - 1):
            slope = _head_gradient(learner, Weights(weights.shared, private), UNMASKED, batch, cohort.training)
            private, velocity = _step(private, slope, velocity, cohort)
        _, gradient = _gradient(learner, Weights(weights.shared, private), UNMASKED, batch, cohort.training, None)
        weights = Weights(weights.shared.sub(gradient[:, :cut], alpha=rate), private)
        total = total.add_(gradient) if step else gradient.clone()
    counts = np.full(len(cohort.clients), samples, dtype=np.int64)
    return LocalRun(total, weights.private, velocity, mean_loss(losses, cohort), counts)


def mean_loss(steps: Sequence[Tensor], cohort: Cohort) -> Floats:
    """Each client's mean loss over its steps (C,); raises `DivergedError` for the first that is not finite."""
    losses = torch.stack(list(steps), 1).cpu().numpy().astype(np.float64)  # the one moment at which a device is awaited
    mean = np.asarray(losses.mean(1))
    if not np.isfinite(mean).all():
        row = int(np.flatnonzero(~np.isfinite(mean))[0])
        loss = next(value for value in losses[row].tolist() if not math.isfinite(value))
        raise DivergedError(
            f"Client {cohort.clients[row]} diverged in round {cohort.round} while training: its loss is {loss} at "
            f"learning rate {cohort.rate:g}. Lower training.learning_rate and start again."
        )
    return mean


def _step(private: Tensor, slope: Tensor, velocity: Tensor | None, cohort: Cohort) -> tuple[Tensor, Tensor | None]:
    """The private parts after a step along the slope, Eq. (4), and the new velocity if there is momentum."""
    if velocity is not None:
        velocity = slope = slope.add(velocity, alpha=cohort.training.momentum)
    return private.sub(slope, alpha=cohort.rate), velocity


def _gradient(
    learner: Learner, weights: Weights, masking: Masking, batch: Batch, training: Training, change: Change | None
) -> tuple[Tensor, Tensor]:
    """Loss (C,) and the gradient (C, d) that a step follows, with the method's own term, weight decay and mask."""
    used, cut = masking.used(weights), weights.shared.shape[1]
    loss, gradient = learner.loss_and_gradient(used, batch)
    if change is not None:
        change(used, gradient)
    _decay_and_mask(gradient[:, :cut], used.shared, masking.shared if masking.gradient else None, training)
    _decay_and_mask(gradient[:, cut:], used.private, masking.private if masking.gradient else None, training)
    return loss, gradient


def _head_gradient(learner: Learner, weights: Weights, masking: Masking, batch: Batch, training: Training) -> Tensor:
    """The gradient (C, d_private) for a further step of the heads, with weight decay and mask."""
    used = masking.used(weights)
    slope = learner.head_gradient(used, batch)
    _decay_and_mask(slope, used.private, masking.private if masking.gradient else None, training)
    return slope


def _decay_and_mask(slope: Tensor, at: Tensor, mask: Tensor | None, training: Training) -> None:
    """Add weight decay to a part's gradient, then zero the masked entries; in place."""
    if training.weight_decay:
        slope.add_(at, alpha=training.weight_decay)
    if mask is not None:
        slope.mul_(mask)


def _masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights * mask
