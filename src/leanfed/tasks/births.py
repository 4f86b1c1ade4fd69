"""Initial private parts without their models: the random draws of one model's making, made again from another seed.

A model is initialised by draws into its parameters, one after another from one generator. The draws that a first model
makes are noted. For another seed all of them up to the last private one are repeated, those of shared parameters into
memory that is thrown away: the same bits, without modules, and without what nobody reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leanfed.tasks.split import flatten

Make = Callable[[int], nn.Module]  # seed -> model
REPEATED: Final = ("aten::uniform_", "aten::normal_")
OWN: Final = "leanfed."  # package whose models draw as many numbers for every seed


class Draw(NamedTuple):
    """One draw into a tensor, with what it was asked for."""

    function: Any  # of torch
    target: Tensor
    options: tuple[Any, ...]


class Repeated(NamedTuple):
    """A draw to be made again, into `place` of the private vector, or to be thrown away."""

    function: Any
    shape: torch.Size
    options: tuple[Any, ...]
    place: slice | None


@final
class PrivateParts:
    """The initial private parts (d_P,) of a task's clients.

    The first two are taken from whole models: one is noted, and the other must be what the notes give. If it is not, or
    the model is not one of ours, which draw alike for every seed, all are taken from whole models.
    """

    def __init__(self, make: Make, private: Mapping[str, torch.Size]) -> None:
        self._make, self._private = make, private
        self._notes: Notes | None = None
        self._checked = False  # whether the notes may be used, or there are none

    def of(self, seed: int) -> Tensor:
        """The private part of the model of this seed."""
        if self._checked and self._notes is not None:
            return self._notes.repeat(seed)
        if self._checked:
            return flatten(self._make(seed), self._private)
        if self._notes is None:
            found, self._notes = noted(self._make, seed, self._private)
            self._checked = self._notes is None
            return found
        found = flatten(self._make(seed), self._private)
        if not torch.equal(found, self._notes.repeat(seed)):
            self._notes = None
        self._checked = True
        return found


@final
class Notes:
    """The draws of a model's making, and its private part, of which some values are the same for every seed."""

    def __init__(self, draws: list[Repeated], private: Tensor) -> None:
        last = max((number for number, draw in enumerate(draws) if draw.place is not None), default=-1)
        self._draws, self._private = draws[: last + 1], private
        thrown = (math.prod(draw.shape) for draw in self._draws if draw.place is None)
        self._thrown = torch.empty(max(thrown, default=0))

    def repeat(self, seed: int) -> Tensor:
        """The private part (d_P,) of the model that would be made from this seed."""
        generator = torch.Generator().manual_seed(seed % 2**63)
        private = self._private.clone()
        for function, shape, options, place in self._draws:
            into = self._thrown[: math.prod(shape)] if place is None else private[place]
            function(into.view(shape), *options, generator=generator)
        return private


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every draw; `whole` is whether all of them can be repeated."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws: list[Draw] = []  # with their tensors, so that no later one gets the memory of an earlier one
        self.whole = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: that would load the compiler first, 2.2 s and 70 MB in every process, and nothing here is compiled."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            plain = function._schema.name in REPEATED and not kwargs
            plain = plain and args[0].is_contiguous() and args[0].dtype == torch.float32
            if plain:
                self.draws.append(Draw(function, args[0], tuple(args[1:])))
            self.whole = self.whole and plain
        return function(*args, **(kwargs or {}))


def noted(make: Make, seed: int, private: Mapping[str, torch.Size]) -> tuple[Tensor, Notes | None]:
    """The private part of a seed's model, and the notes of its making; None where they could not be repeated."""
    with _Noting() as noting:
        model = make(seed)
    found = flatten(model, private)
    if not noting.whole or not type(model).__module__.startswith(OWN):
        return found, None
    places, start = {}, 0
    parameters = dict(model.named_parameters())
    for name, shape in private.items():
        end = start + math.prod(shape)
        places[parameters[name].data_ptr()] = slice(start, end)
        start = end
    draws = [
        Repeated(function, target.shape, options, places.get(target.data_ptr()))
        for function, target, options in noting.draws
    ]
    fits = all(draw.place is None or math.prod(draw.shape) == draw.place.stop - draw.place.start for draw in draws)
    return found, Notes(draws, found) if fits else None
