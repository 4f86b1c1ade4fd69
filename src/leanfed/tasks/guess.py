"""The best constant guess: what a client would score without a model, from its own training labels alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanfed.tasks.losses import LossSpec, fit

STEPS = 50  # of the search for the constant outputs that a loss of one's own likes best

Array = npt.NDArray[Any]


def majority_label(labels: Array) -> int:
    """The most frequent label."""
    return int(np.bincount(labels.reshape(-1)).argmax())


def guess_score(spec: LossSpec, train: Array, test: Array, outputs: int) -> float:
    """The score on test labels of the constant that is best for the training labels.

    By accuracy it is the most frequent class, by mean absolute error the median; for a loss without scores it is the
    constant output that minimises the loss, found by L-BFGS.
    """
    if spec.judged_by == "accuracy" and train.dtype.kind in "iu":
        return float(np.mean(test == majority_label(train)))
    if spec.judged_by == "accuracy":  # of columns of zeros and ones
        return float(np.mean((test > 0.5) == (np.mean(train, axis=0) > 0.5)))
    if spec.judged_by == "mae":
        return float(np.mean(np.abs(test - np.median(train, axis=0)), dtype=np.float64))
    return _fitted_loss(spec, torch.from_numpy(np.asarray(train)), torch.from_numpy(np.asarray(test)), outputs)


def _fitted_loss(spec: LossSpec, train: Tensor, test: Tensor, outputs: int) -> float:
    """The loss on the test labels at the constant outputs with the least loss on the training labels."""
    constant = torch.zeros(outputs, requires_grad=True)

    def loss_on(labels: Tensor) -> Tensor:
        shape = (len(labels), outputs, *(labels.shape[1:] if not labels.is_floating_point() else ()))
        spread = constant.reshape(1, -1, *(1,) * (len(shape) - 2)).expand(shape)
        return spec.compute(fit(spread, labels), labels)

    search = torch.optim.LBFGS([constant], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        loss = loss_on(train)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        search.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return float(loss_on(test))
