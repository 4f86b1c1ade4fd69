"""Narrower models inside a model: the first channels of every layer, as in HeteroFL (Diao et al., ICLR 2021).

A narrower model has the layers of the whole one under the same names, each with the first of its channels, so that its
values are some of the whole model's. It computes what the whole one does with all others set to zero: a channel of
zeros has a scale and a shift of zero behind its normalisation, and nobody reads it. That holds for batch normalisation,
whose statistics are a channel's own, and for group normalisation where whole groups are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from leanfed.errors import SettingsError
from leanfed.tasks.split import Split
from leanfed.tasks.units import positions


@dataclass(frozen=True)
class Nest:
    """A narrower model's values as places in the whole model's vectors, all increasing."""

    width: float  # share of the channels
    shared: Tensor  # (n_shared,) places in the shared part
    private: Tensor  # (n_private,) places in the private part
    statistics: Tensor  # places in the running statistics
    whole: Split

    def places(self, size: int) -> Tensor | None:
        """Where the values are in what has as many as the shared part, the private part, or both; else None."""
        if size in (self.whole.shared_size, self.whole.private_size):
            return self.shared if size == self.whole.shared_size else self.private
        return self.both if size == self.whole.size else None

    @cached_property
    def both(self) -> Tensor:
        """Places in [shared | private]."""
        return torch.cat([self.shared, self.private + self.whole.shared_size])

    def narrow(self, values: Tensor) -> Tensor:
        """The part (..., n) of values (..., size) for each weight of a part; other sizes stay as they are."""
        places = self.places(values.shape[-1])
        return values if places is None else values[..., places.to(values.device)]

    def widen(self, values: Tensor, whole: Tensor) -> Tensor:
        """`whole` (..., size) with these values (..., n) in their places."""
        places = self.places(whole.shape[-1])
        return values if places is None else whole.index_copy(-1, places.to(whole.device), values)


def places_of(small: Mapping[str, torch.Size], whole: Mapping[str, torch.Size]) -> Tensor:
    """The places of a narrower model's values in the whole model's vector, in the order of both.

    >>> places_of({"fc": torch.Size([2, 1])}, {"fc": torch.Size([3, 4])}).tolist()
    [0, 4]
    """
    check_inside(small, whole)
    where = positions(whole)
    parts = [where[name][_first(shape)].reshape(-1) for name, shape in small.items()]
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])


def check_inside(small: Mapping[str, torch.Size], whole: Mapping[str, torch.Size]) -> None:
    """Refuse shapes that are not those of the first channels of the whole model's layers."""
    if list(small) != list(whole):
        raise SettingsError(
            "A narrower model must have the layers of the whole one, under the same names and in order."
        )
    for name, shape in small.items():
        if len(shape) != len(whole[name]) or any(few > all for few, all in zip(shape, whole[name], strict=True)):
            raise SettingsError(
                f"{name!r} of a narrower model has the shape {tuple(shape)}, which is not inside {tuple(whole[name])}. "
                "Let every layer keep the first of its channels."
            )


def _first(shape: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(count) for count in shape)


def inner_model(whole: nn.Module, small: nn.Module) -> nn.Module:
    """`small`, a narrower model, with the values that `whole` has in its place."""
    values, own = whole.state_dict(keep_vars=True), small.state_dict(keep_vars=True)
    check_inside({name: value.shape for name, value in own.items()}, {n: value.shape for n, value in values.items()})
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(values[name][_first(value.shape)])
    return small
