"""Local optimisers: rules that turn the gradient g of a step into its direction v, for w <- w - eta v."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from leanfed.errors import nearest
from leanfed.registry import Registry

VELOCITY = "velocity"
FIRST, SECOND = "first_moment", "second_moment"


class Constants(NamedTuple):
    """The numbers of the rules."""

    momentum: float
    beta1: float
    beta2: float
    epsilon: float


Direction = Callable[[Tensor, Mapping[str, Tensor], Sequence[int], Constants], Tensor]
"""From gradients (C, size), the memories (each (C, size), changed in place) and the clients' numbers of steps (C), this
one counted, to directions (C, size). A row may depend on no other row, not even in its last bit."""


@dataclass(frozen=True)
class Optimizer:
    """A rule. One of your own, signed gradient descent, which remembers nothing:

    >>> rule = OPTIMIZERS.add("signs", Optimizer(lambda gradient, memory, steps, constants: gradient.sign()))
    >>> known_optimizer("signs")  # and so training.optimizer = "signs" is a setting
    'signs'
    >>> OPTIMIZERS.remove("signs")
    """

    direction: Direction
    memories: tuple[str, ...] = ()  # vectors of the weights' size that begin as zeros
    counts: bool = False  # it asks for the clients' numbers of steps
    decoupled: bool = False  # weight decay is a part of the step, beside the direction, and not of the gradient


OPTIMIZERS: Final[Registry[Optimizer]] = Registry("optimizer")


def known_optimizer(name: str) -> str:
    """The name of a rule; refused with the nearest known one."""
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimizer has that name: {nearest(name, list(OPTIMIZERS))}")
    return name


def _gradient(gradient: Tensor, memory: Mapping[str, Tensor], steps: Sequence[int], constants: Constants) -> Tensor:
    """v = g."""
    return gradient


def _momentum(gradient: Tensor, memory: Mapping[str, Tensor], steps: Sequence[int], constants: Constants) -> Tensor:
    """v <- momentum v + g."""
    return memory[VELOCITY].copy_(gradient.add(memory[VELOCITY], alpha=constants.momentum))


def _adagrad(gradient: Tensor, memory: Mapping[str, Tensor], steps: Sequence[int], constants: Constants) -> Tensor:
    """v = g / (sqrt(s) + epsilon), s <- s + g^2."""
    squares = memory[SECOND].add_(gradient * gradient)
    return gradient / (squares.sqrt() + constants.epsilon)


def _rmsprop(gradient: Tensor, memory: Mapping[str, Tensor], steps: Sequence[int], constants: Constants) -> Tensor:
    """v = g / (sqrt(s) + epsilon), s <- beta2 s + (1 - beta2) g^2."""
    squares = memory[SECOND].mul_(constants.beta2).add_(gradient * gradient, alpha=1 - constants.beta2)
    return gradient / (squares.sqrt() + constants.epsilon)


def _adam(gradient: Tensor, memory: Mapping[str, Tensor], steps: Sequence[int], constants: Constants) -> Tensor:
    """v = m' / (sqrt(s') + epsilon), m <- beta1 m + (1 - beta1) g, s <- beta2 s + (1 - beta2) g^2 (Kingma, Ba 2015).

    m' = m / (1 - beta1^t) and s' = s / (1 - beta2^t) after t steps.
    """
    mean = memory[FIRST].mul_(constants.beta1).add_(gradient, alpha=1 - constants.beta1)
    squares = memory[SECOND].mul_(constants.beta2).add_(gradient * gradient, alpha=1 - constants.beta2)
    # In double precision by Python: torch's power of a row could depend on its place among the others.
    first = torch.tensor([[1 - constants.beta1**step] for step in steps]).to(gradient.device)
    second = torch.tensor([[(1 - constants.beta2**step) ** 0.5] for step in steps]).to(gradient.device)
    return (mean / first).div_((squares.sqrt() / second).add_(constants.epsilon))


OPTIMIZERS.add("sgd", Optimizer(_gradient))
OPTIMIZERS.add("momentum", Optimizer(_momentum, (VELOCITY,)))
OPTIMIZERS.add("adagrad", Optimizer(_adagrad, (SECOND,)))
OPTIMIZERS.add("rmsprop", Optimizer(_rmsprop, (SECOND,)))
OPTIMIZERS.add("adam", Optimizer(_adam, (FIRST, SECOND), counts=True))
OPTIMIZERS.add("adamw", Optimizer(_adam, (FIRST, SECOND), counts=True, decoupled=True))
