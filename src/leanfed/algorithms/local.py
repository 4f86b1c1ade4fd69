"""Local steps of C clients, shared by every method that trains weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.contract import Cohort, Learner, Training, Weights
from leanfed.algorithms.stepping import Stepper, Steppers
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
    memory: dict[str, Tensor]  # name -> (C, size): the optimiser's memories that are kept
    loss: Floats  # (C,)
    samples: Ints  # (C,)
    contraction: Floats | None = None  # (C,) of `head_contraction`, where the cohort reports and heads take two steps


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
    features of the shared part before its step. `Training` says which parts follow an optimiser; the momentum of SGD
    applies to the private part only, since the server has its own for the shared part. The shared weights have one row
    until the clients' first step, then one per client; without `train_shared` they stay as they are.
    """
    cut, rate = len(shared), cohort.rate
    weights = Weights(shared.unsqueeze(0), cohort.private)
    steppers = Steppers.of(cohort, cut, cohort.private.shape[1])
    losses, samples, total = [], 0, shared
    norms: tuple[Tensor, Tensor] | None = None  # of the heads' gradients at the first and the last of their steps
    for step, batch in enumerate(cohort.batches):
        weights = masking.kept(weights)
        loss, gradient = _gradient(learner, weights, masking, batch, steppers, cohort.training, change)
        losses.append(loss)
        samples += batch.labels.shape[1]
        total = total.add_(gradient) if step else gradient if cohort.steps == head_steps == 1 else gradient.clone()
        last = step == cohort.steps - 1  # then the shared weights are not needed again: the server steps along `total`
        stays = last or not train_shared
        after = weights.shared if stays else weights.shared.sub(gradient[:, :cut], alpha=rate)
        private = _step(weights, gradient[:, cut:], steppers.private, masking, rate)
        first = gradient[:, cut:].norm(dim=1) if cohort.report and last and head_steps > 1 else None
        for _ in range(head_steps - 1):
            weights = masking.kept(Weights(weights.shared, private))
            slope = _head_gradient(learner, weights, masking, batch, steppers, cohort.training)
            total[:, cut:].add_(slope)
            private = _step(weights, slope, steppers.private, masking, rate)
        norms = None if first is None else (first, slope.norm(dim=1))
        weights = Weights(after, private)
    counts = np.full(len(cohort.clients), samples, dtype=np.int64)
    contraction = None if norms is None else head_contraction(*norms, head_steps)
    return LocalRun(total, weights.private, steppers.memory, mean_loss(losses, cohort), counts, contraction)


def head_contraction(first: Tensor, last: Tensor, head_steps: int) -> Floats:
    """(C,) the factor by which a step of the head shortens its gradient: the mean over the steps, at most 1.

    >>> head_contraction(torch.tensor([8.0]), torch.tensor([1.0]), 4).tolist()
    [0.5]
    """
    before, after = (norms.cpu().numpy().astype(np.float64) for norms in (first, last))
    ratio = np.divide(after, before, out=np.ones(len(before)), where=before > 0.0)
    return np.asarray(np.minimum(ratio, 1.0) ** (1.0 / (head_steps - 1)))


def alternating_steps(shared: Tensor, cohort: Cohort, learner: Learner, head_steps: int) -> LocalRun:
    """On each batch `head_steps` steps of the private part, then one of the shared part at the new private weights."""
    cut, rate, training = len(shared), cohort.rate, cohort.training
    weights = Weights(shared.unsqueeze(0), cohort.private)
    steppers = Steppers.of(cohort, cut, cohort.private.shape[1])
    heads = Steppers(None, steppers.private)  # the shared part does not step at the first gradient of a batch
    losses, samples, total = [], 0, shared
    for step, batch in enumerate(cohort.batches):
        loss, gradient = _gradient(learner, weights, UNMASKED, batch, heads, training, None)
        losses.append(loss)
        samples += batch.labels.shape[1]
        private = _step(weights, gradient[:, cut:], steppers.private, UNMASKED, rate)
        for _ in range(head_steps - 1):
            weights = Weights(weights.shared, private)
            slope = _head_gradient(learner, weights, UNMASKED, batch, steppers, training)
            private = _step(weights, slope, steppers.private, UNMASKED, rate)
        weights = Weights(weights.shared, private)
        _, gradient = _gradient(learner, weights, UNMASKED, batch, steppers, training, None)
        weights = Weights(weights.shared.sub(gradient[:, :cut], alpha=rate), private)
        total = total.add_(gradient) if step else gradient.clone()
    counts = np.full(len(cohort.clients), samples, dtype=np.int64)
    return LocalRun(total, weights.private, steppers.memory, mean_loss(losses, cohort), counts)


def mean_loss(steps: Sequence[Tensor], cohort: Cohort) -> Floats:
    """Each client's mean loss over its steps (C,); raises `DivergedError` for the first that is not finite."""
    together = steps[0].unsqueeze(1) if len(steps) == 1 else torch.stack(list(steps), 1)
    losses = together.cpu().numpy().astype(np.float64)  # the one moment at which a client awaits its device
    mean = np.asarray(losses.mean(1))
    if not np.isfinite(mean).all():
        row = int(np.flatnonzero(~np.isfinite(mean))[0])
        loss = next(value for value in losses[row].tolist() if not math.isfinite(value))
        raise DivergedError(
            f"Client {cohort.clients[row]} diverged in round {cohort.round} while training: its loss is {loss} at "
            f"learning rate {cohort.rate:g}. Lower training.learning_rate and start again."
        )
    return mean


def _step(weights: Weights, slope: Tensor, stepper: Stepper | None, masking: Masking, rate: float) -> Tensor:
    """The private parts after a step from the slope at their weights, Eq. (4)."""
    if stepper is not None:
        at = _masked(weights.private, masking.private)
        slope = stepper.direction(slope, at, masking.private if masking.gradient else None)
    return weights.private.sub(slope, alpha=rate)


def _gradient(
    learner: Learner,
    weights: Weights,
    masking: Masking,
    batch: Batch,
    steppers: Steppers,
    training: Training,
    change: Change | None,
) -> tuple[Tensor, Tensor]:
    """Loss (C,) and gradient (C, d), with the method's own term, weight decay and mask.

    Of a shared part with an optimiser it is the direction of its step.
    """
    used, cut = masking.used(weights), weights.shared.shape[1]
    loss, gradient = learner.loss_and_gradient(used, batch)
    if change is not None:
        change(used, gradient)
    if not (training.weight_decay or masking.gradient or steppers.shared):
        return loss, gradient
    mask = masking.shared if masking.gradient else None
    _decay_and_mask(gradient[:, :cut], used.shared, mask, steppers.shared, training)
    if steppers.shared is not None:
        gradient[:, :cut] = steppers.shared.direction(gradient[:, :cut], used.shared, mask)
    own = masking.private if masking.gradient else None
    _decay_and_mask(gradient[:, cut:], used.private, own, steppers.private, training)
    return loss, gradient


def _head_gradient(
    learner: Learner, weights: Weights, masking: Masking, batch: Batch, steppers: Steppers, training: Training
) -> Tensor:
    """The gradient (C, d_private) for a further step of the heads, with weight decay and mask."""
    used = masking.used(weights)
    slope = learner.head_gradient(used, batch)
    own = masking.private if masking.gradient else None
    _decay_and_mask(slope, used.private, own, steppers.private, training)
    return slope


def _decay_and_mask(
    slope: Tensor, at: Tensor, mask: Tensor | None, stepper: Stepper | None, training: Training
) -> None:
    """Add weight decay to a part's gradient unless its optimiser does, then zero the masked entries; in place."""
    if training.weight_decay and not (stepper is not None and stepper.rule.decoupled):
        slope.add_(at, alpha=training.weight_decay)
    if mask is not None:
        slope.mul_(mask)


def _masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights * mask
