"""Training with some units of the head only: in modules that are really narrower, and so take less time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leanfed.algorithms.contract import Cohort, Learner
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.local import LocalRun, Masking, local_steps
from leanfed.errors import LeanfedError
from leanfed.tasks.split import FlatModel, Split
from leanfed.tasks.units import Kept, Units, narrowed, positions

CACHED_BYTES = 64 << 20  # of narrow models that a learner keeps; one is always kept


def units_of(cohort: Cohort) -> Units:
    """The units of a cohort's heads."""
    if cohort.units is None:
        raise LeanfedError(
            "This engine does not tell methods the units of a head. Set algorithm.prune.unit = 'weight'."
        )
    return cohort.units


def unit_masks(cohort: Cohort, kept: Sequence[Kept]) -> Tensor:
    """Masks (C, d_private) of zeros and ones from the units that each client keeps."""
    return torch.stack([units_of(cohort).mask(own) for own in kept]).to(cohort.private.device)


def steps_with_units(
    shared: Tensor, cohort: Cohort, learner: Learner, kept: Sequence[Kept], masking: Masking, head_steps: int
) -> LocalRun:
    """`local_steps` with the kept units only; `masking` masks all others.

    One client trains a narrower module, several clients at once a masked one, which gives the same up to rounding, for
    units that are out get no gradient. Masked it is too where a narrower module would not do the same: with random
    draws (dropout), momentum, weight decay, or an optimiser that moves weights without a gradient.
    """
    training = cohort.training
    plain = training.optimizer == "sgd" and not training.momentum and not training.weight_decay
    if not isinstance(learner, FlatLearner) or len(kept) > 1 or learner.model.random or not plain:
        return local_steps(shared, cohort, learner, masking, head_steps)
    units, mask = units_of(cohort), masking.private
    assert mask is not None
    places = mask[0].nonzero().flatten()
    small = _small_learner(learner, units, kept[0])
    statistics = _statistics_places(learner, units, kept[0]).to(learner.device)
    whole = learner.model.statistics
    if whole.size:
        small.model.statistics.write(whole.read()[statistics])
    own = replace(cohort, private=cohort.private[:, places])
    run = local_steps(shared, own, small, head_steps=head_steps)
    if whole.size:
        whole.write(whole.read().index_copy_(0, statistics, small.model.statistics.read()))
    left = torch.zeros_like(cohort.private) if masking.discard else cohort.private.clone()
    return replace(run, private=left.index_copy_(1, places, run.private), gradient=_wide(run.gradient, shared, mask))


def _wide(gradient: Tensor, shared: Tensor, mask: Tensor) -> Tensor:
    """(1, d) from the gradient of the narrow model: zero for the weights of units that are out."""
    wide = torch.zeros(1, len(shared) + mask.shape[1], device=gradient.device)
    wide[:, : len(shared)] = gradient[:, : len(shared)]
    wide[:, len(shared) :].masked_scatter_(mask > 0, gradient[:, len(shared) :])
    return wide


def _small_learner(whole: FlatLearner, units: Units, kept: Kept) -> FlatLearner:
    """A learner with as many units; weights are loaded with every step, so that clients share it."""
    counts = tuple(len(kept[layer.name]) for layer in units.layers)
    if counts not in whole.narrow:
        module = narrowed(units, units.model, kept).to(whole.device)
        shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        split = Split(units.split.shared, {name: shapes[name] for name in units.split.private})
        made = FlatLearner(FlatModel(module, split, loss=whole.model.loss, precision=whole.model.precision))
        most = max(1, CACHED_BYTES // (8 * split.size))
        for oldest in list(whole.narrow)[: max(0, len(whole.narrow) + 1 - most)]:
            del whole.narrow[oldest]
        whole.narrow[counts] = made
    return whole.narrow[counts]


def _statistics_places(whole: FlatLearner, units: Units, kept: Kept) -> Tensor:
    """The positions of a narrow model's running statistics among the whole model's."""
    where = positions(whole.model.statistics.shapes)
    stays = torch.ones(whole.model.statistics.size, dtype=torch.bool)
    for layer in units.layers:
        for name in (f"{norm}.running_{kind}" for norm in layer.norms for kind in ("mean", "var")):
            if name in where:
                stays[where[name]] = False
                stays[where[name][kept[layer.name]]] = True
    return stays.nonzero().flatten()
