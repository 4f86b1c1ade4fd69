"""The optimisers of a round's clients: their memories between steps, and from round to round where these are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leanfed.algorithms.contract import Cohort, Training
from leanfed.algorithms.optimizers import OPTIMIZERS, Optimizer

PREFIXES = ("shared_", "")  # of the names of the memories: of the shared part, of the private part
STEPS = "optimizer_steps"  # how many steps a client has taken, (C, 1)


def counts_steps(name: str) -> bool:
    """Whether a memory counts steps: it stays with the host, which would wait for a device to read it."""
    return name.endswith(STEPS)


class Stepper:
    """The optimiser of one part of C models; `memory` is changed by every step."""

    def __init__(self, rule: Optimizer, training: Training, memory: Mapping[str, Tensor]) -> None:
        self.rule, self.training, self.memory = rule, training, memory
        self._counts = [int(count) for count in memory[STEPS][:, 0].tolist()] if rule.counts else []

    def direction(self, gradient: Tensor, at: Tensor, mask: Tensor | None = None) -> Tensor:
        """(C, size): what a step of length eta follows, from the gradient at some weights; masked entries stay."""
        training, ratio = self.training, self.training.optimizer_ratio
        if self.rule.counts:
            self._counts = [count + 1 for count in self._counts]
            self.memory[STEPS].add_(1)
        direction = self.rule.direction(gradient, self.memory, self._counts, training.constants)
        if self.rule.decoupled and training.weight_decay:
            direction = direction.add(at, alpha=training.weight_decay)
        if ratio != 1.0:
            direction = direction * ratio
        return direction if mask is None else direction * mask


@dataclass(frozen=True)
class Steppers:
    """The optimisers of the shared and of the private part; a part without one steps along its gradient."""

    shared: Stepper | None
    private: Stepper | None

    @classmethod
    def of(cls, cohort: Cohort, shared: int, private: int) -> Steppers:
        """Those of a cohort whose parts have these sizes, with what its clients remember."""
        training, clients = cohort.training, len(cohort.clients)
        made: list[Stepper | None] = []
        for prefix, rule, size in zip(PREFIXES, _rules(training, shared, private), (shared, private), strict=True):
            if rule is None:
                made.append(None)
                continue
            widths, there = _memories(rule, size), cohort.private.device
            if training.optimizer_state == "kept":
                memory = {name: cohort.memory[prefix + name].clone() for name in widths}
            else:
                memory = {
                    name: torch.zeros(clients, width, device="cpu" if counts_steps(name) else there)
                    for name, width in widths.items()
                }
            made.append(Stepper(rule, training, memory))
        return cls(*made)

    @property
    def memory(self) -> dict[str, Tensor]:
        """What clients keep for their next round, name -> (C, size)."""
        kept: dict[str, Tensor] = {}
        for prefix, part in zip(PREFIXES, (self.shared, self.private), strict=True):
            if part is not None and part.training.optimizer_state == "kept":
                kept |= {prefix + name: rows for name, rows in part.memory.items()}
        return kept


def optimizer_memories(training: Training, shared: int, private: int) -> dict[str, int]:
    """The memories that clients keep for parts of these sizes: name -> size."""
    held: dict[str, int] = {}
    if training.optimizer_state == "kept":
        for prefix, rule, size in zip(PREFIXES, _rules(training, shared, private), (shared, private), strict=True):
            if rule is not None:
                held |= {prefix + name: width for name, width in _memories(rule, size).items()}
    return held


def _rules(training: Training, shared: int, private: int) -> tuple[Optimizer | None, Optimizer | None]:
    """The rules of both parts; with SGD the momentum of the shared part is the server's."""
    if training.optimizer == "sgd":
        return None, OPTIMIZERS["momentum"] if training.momentum and private else None
    rule = OPTIMIZERS[training.optimizer]
    return rule if shared and training.optimizer_part == "all" else None, rule if private else None


def _memories(rule: Optimizer, size: int) -> dict[str, int]:
    return {**dict.fromkeys(rule.memories, size), **({STEPS: 1} if rule.counts else {})}
