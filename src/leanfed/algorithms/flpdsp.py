"""FLPDSP, the paper's Algorithm 1: a shared base with sparsified gradients, and a pruned private head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, KeepRates, UploadForm, per_client
from leanfed.algorithms.contract import Cohort, Learner, Training, Updates, Weights
from leanfed.algorithms.decoupled import WithHead
from leanfed.algorithms.local import LocalRun, Masking, local_steps
from leanfed.algorithms.narrow import steps_with_units, unit_masks, units_of
from leanfed.algorithms.uploads import sparsified
from leanfed.compression.kept_shares import kept_shares
from leanfed.compression.prune import Pruning
from leanfed.compression.selection import drawn
from leanfed.records import Floats, Ints, kept_counts
from leanfed.streams import stream
from leanfed.tasks.split import Split
from leanfed.tasks.units import Kept

HEAD_GRADIENT = "head_gradient"  # of the last round, for pruning by importance


@final
@ALGORITHMS.register("flpdsp")
class Flpdsp(WithHead):
    """Algorithm 1: prune the head, compute gradients, send the base's largest entries, update the head."""

    name: Literal["flpdsp"] = "flpdsp"
    k: KeepRates = 0.74
    """Keep rate of the base gradient; one number, or one per client (the paper's average at 10 MHz)."""
    r: KeepRates = 0.82
    """Keep rate of the head; one number, or one per client (the paper's average at 10 MHz)."""
    prune: Pruning = Field(default_factory=Pruning)
    """How heads are pruned."""

    @override
    def rates(self, clients: int) -> tuple[Floats, Floats]:
        return per_client(self.k, clients, "algorithm.k"), per_client(self.r, clients, "algorithm.r")

    @override
    def notes(self) -> tuple[str, ...]:
        return self.prune.notes()

    @property
    @override
    def upload_form(self) -> UploadForm:
        return self.sparsify.form

    @override
    def prunable(self, split: Split) -> int:
        return split.private_size

    @property
    @override
    def prunes_units(self) -> bool:
        return self.prune.unit == "unit"

    @override
    def holds(self, split: Split, training: Training) -> dict[str, int]:
        gradient = {HEAD_GRADIENT: split.private_size} if self.prune.score == "importance" else {}
        return {**super().holds(split, training), **gradient}

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        """The clients' part of Algorithm 1, line by line."""
        kept = self._kept_units(cohort) if self.prunes_units else []
        masking = Masking(  # r_n,t
            private=unit_masks(cohort, kept) if kept else self._head_masks(cohort, learner),
            discard=self.prune.head_memory == "discard",
            gradient=self.prune.masked_gradient,
        )
        steps = cohort.head_steps or self.head_steps
        if kept:
            run = steps_with_units(shared, cohort, learner, kept, masking, steps)
        else:
            run = local_steps(shared, cohort, learner, masking, steps)  # Eq. (3), gradients, Eq. (4)
        memory = run.memory
        if self.prune.score == "importance":
            memory[HEAD_GRADIENT] = run.gradient[:, len(shared) :].clone()
        uploads, unsent = sparsified(run.gradient, len(shared), cohort, learner.picks, self.sparsify)  # Eq. (5)
        signals = _signals(run, len(shared)) if cohort.report else None
        return Updates(uploads, run.private, {**memory, **unsent}, run.loss, run.samples, signals=signals)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        """The base and the pruned heads, w-hat of Eq. (3)."""
        return Weights(shared.unsqueeze(0), cohort.private * self._head_masks(cohort, learner))

    def _head_masks(self, cohort: Cohort, learner: Learner) -> Tensor:
        """The pruning indicators of Eq. (3) as zeros and ones, (C, d_P); exact counts, ties to lower positions."""
        if self.prunes_units:
            return unit_masks(cohort, self._kept_units(cohort))
        heads, size = cohort.private, cohort.private.shape[1]
        counts = kept_counts(cohort.r, size)
        if self.prune.score.startswith("random"):
            return self._drawn_masks(cohort, counts)
        if self.prune.score == "importance":  # by magnitude before there is a gradient
            last = cohort.memory[HEAD_GRADIENT]
            heads = torch.where(last.any(1, keepdim=True), (heads * last).square_(), heads)
        return learner.picks.largest(heads, counts, size).mask()

    def _kept_units(self, cohort: Cohort) -> list[Kept]:
        """The units that each client keeps: the share r of each layer, at least one.

        Ties go to larger weights, for a unit that is out has no gradient, and then to lower numbers.
        """
        heads, random = cohort.private.cpu(), self.prune.score.startswith("random")
        squares = worth = heads.square()
        if self.prune.score == "importance":
            last = cohort.memory[HEAD_GRADIENT].cpu()
            worth = torch.where(last.any(1, keepdim=True), (heads * last).square_(), squares)
        kept: list[Kept] = []
        for row, (client, r) in enumerate(zip(cohort.clients, cohort.r.tolist(), strict=True)):
            labels: Sequence[int] = (client, cohort.round) if self.prune.score == "random-redrawn" else (client,)
            found = {}
            for name, count in units_of(cohort).counts(r).items():
                entries = units_of(cohort).entries[name]
                if random:
                    places = drawn(len(entries), count, stream(cohort.seed, "prune", name, *labels))
                else:
                    sums = [-part[row][entries].double().sum(1).numpy() for part in (squares, worth)]
                    places = np.sort(np.lexsort(sums)[:count])  # stable; its last key comes first
                found[name] = torch.from_numpy(places)
            kept.append(found)
        return kept

    def _drawn_masks(self, cohort: Cohort, counts: Ints) -> Tensor:
        """Each client's random mask (C, d_P), fixed or drawn anew every round."""
        mask, redrawn = torch.zeros_like(cohort.private), self.prune.score == "random-redrawn"
        for row, (client, count) in enumerate(zip(cohort.clients, counts.tolist(), strict=True)):
            labels: Sequence[int] = (client, cohort.round) if redrawn else (client,)
            places = torch.from_numpy(drawn(mask.shape[1], count, stream(cohort.seed, "prune", *labels)))
            mask[row, places.to(mask.device)] = 1
        return mask


def _signals(run: LocalRun, size: int) -> Floats:
    """(C, SIGNALS) of the vectors that uploads are chosen from; a contraction of NaN where heads took one step."""
    one = np.full(len(run.loss), np.nan) if run.contraction is None else run.contraction
    return np.column_stack([kept_shares(run.gradient, size), one])
