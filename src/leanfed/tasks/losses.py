"""What is minimised, by name: a loss, the labels it is for, and the scores that fit it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from leanfed.errors import DataError
from leanfed.registry import Registry

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) of a batch -> the mean loss, a scalar."""
Score = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) of a batch -> one value for each label."""


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where the class with the largest output is the label; classes are on axis 1, as in torch's cross entropy."""
    return (outputs.argmax(dim=1) == labels).to(torch.float64)


def right_sign(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where an output above zero stands for a label of one, or one below zero for zero."""
    return ((outputs > 0) == (labels > 0.5)).to(torch.float64)


def absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """|output - label|."""
    return (outputs - labels).abs().to(torch.float64)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """(output - label)^2."""
    return (outputs - labels).square().to(torch.float64)


ERRORS: Final[Mapping[str, Score]] = {"mae": absolute_error, "mse": squared_error}


@dataclass(frozen=True)
class LossSpec:
    """A loss, the labels that it takes, and the scores that are measured beside it."""

    compute: Loss
    labels: Literal["classes", "numbers", "any"]
    scores: Mapping[str, Score] = field(default_factory=dict)  # "accuracy", "mae", "mse": means over labels
    perplexity: bool = False  # whether exp(loss) is shown
    total: Loss | None = None  # the sum of the losses of a batch; None: the mean times the number of labels
    each: Loss | None = None  # the loss of every label, whose mean is `compute`; None: it cannot be told apart

    def summed(self, outputs: Tensor, labels: Tensor) -> float:
        """The loss of a batch, summed over its labels."""
        if self.total is not None:
            return float(self.total(outputs, labels))
        return float(self.compute(outputs, labels)) * labels.numel()

    @property
    def judged_by(self) -> str:
        """The score that clients and runs are judged by; the loss where there is no other."""
        return next(iter(self.scores), "loss")


LOSSES: Final[Registry[LossSpec]] = Registry("loss")
CROSS_ENTROPY: Final = "cross_entropy"


def _of_torch(
    compute: Callable[..., Tensor], labels: Literal["classes", "numbers"], scores: Mapping[str, Score]
) -> LossSpec:
    """A loss of torch's, which can sum as well as take means."""
    total, each = (partial(compute, reduction=how) for how in ("sum", "none"))
    return LossSpec(compute, labels, scores, total=total, each=each)


_CLASSES = _of_torch(functional.cross_entropy, "classes", {"accuracy": right})
LOSSES.add(CROSS_ENTROPY, _CLASSES)
LOSSES.add("next_token", replace(_CLASSES, perplexity=True))
LOSSES.add("mse", _of_torch(functional.mse_loss, "numbers", ERRORS))
LOSSES.add("l1", _of_torch(functional.l1_loss, "numbers", ERRORS))
LOSSES.add("huber", _of_torch(functional.huber_loss, "numbers", ERRORS))
LOSSES.add(
    "binary_cross_entropy",
    _of_torch(functional.binary_cross_entropy_with_logits, "numbers", {"accuracy": right_sign}),
)


def add_loss(name: str, compute: Loss, *, like: str | None = None) -> LossSpec:
    """Register a loss: `compute(outputs, labels)` gives a batch's mean loss, a scalar that can be differentiated.

    `like` names a loss whose labels and scores fit this one too, such as "cross_entropy" or "mse"; without it any
    labels are taken, and runs are judged by the loss itself.

    >>> spec = add_loss("smooth", lambda outputs, labels: (outputs - labels).abs().sqrt().mean(), like="mse")
    >>> spec.labels, list(spec.scores)
    ('numbers', ['mae', 'mse'])
    >>> LOSSES.remove("smooth")
    """
    if like is None:
        return LOSSES.add(name, LossSpec(compute, "any"))
    known = LOSSES[like]
    return LOSSES.add(name, LossSpec(compute, known.labels, known.scores, known.perplexity))


def named(value: object) -> object:
    """The name of a loss; a function is registered under its own, so that settings can be written down."""
    if not callable(value):
        return value
    name = getattr(value, "__name__", type(value).__name__)
    if name == "<lambda>":
        code = value.__code__  # type: ignore[attr-defined]
        name = "lambda-" + hashlib.sha256(code.co_code + repr(code.co_consts).encode()).hexdigest()[:8]
    if name not in LOSSES or LOSSES[name].compute is not value:
        if name in LOSSES:
            raise ValueError(f"another loss is called {name!r}; register this one with leanfed.add_loss")
        add_loss(name, value)
    return name


def fit(outputs: Tensor, labels: Tensor) -> Tensor:
    """Outputs in the shape of the labels where they differ by a last axis of one; (B, 1) for labels (B,)."""
    if labels.is_floating_point() and outputs.dim() == labels.dim() + 1 and outputs.shape[-1] == 1:
        return outputs.squeeze(-1)
    return outputs


def check_outputs(outputs: Tensor, labels: Tensor, classes: int, name: str) -> None:
    """Refuse a model whose outputs do not fit the labels of a batch."""
    if classes:
        wanted = (len(labels), classes, *labels.shape[1:])
        fits = tuple(outputs.shape) == wanted
    else:
        wanted = tuple(labels.shape)
        fits = tuple(fit(outputs, labels).shape) == wanted
    if not fits:
        raise DataError(
            f"Model {name!r} gives outputs of shape {tuple(outputs.shape)} for {len(labels)} samples, but their labels "
            f"need {wanted}. Let its last layer have as many outputs as build(outputs) is called with."
        )
