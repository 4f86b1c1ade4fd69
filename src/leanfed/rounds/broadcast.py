"""What the server sends down: the shared part itself, or differences to what the clients have of it.

With differences the server keeps the clients' view v of its shared part w. A broadcast holds the largest entries of
w - v in coded values, clients add it to v, and the server does the same. What was not sent, or was rounded away, stays
in w - v and is sent later: that is error feedback on the way down. Clients train and are tested on v.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.contract import ServerState
from leanfed.algorithms.uploads import Upload
from leanfed.compression.selection import largest
from leanfed.compression.values import VALUE_TYPES, rounded
from leanfed.records import kept_count
from leanfed.streams import stream
from leanfed.wireless.payload import dense_bits, exact_bits

VIEW = "view"  # the server's memory of what the clients have


@dataclass(frozen=True)
class Differences:
    """How differences are sent: the share k of the entries of w - v, and the type of their values."""

    k: float
    values: str

    def entries(self, size: int) -> int:
        """Entries of a difference to a vector of `size`: at least one, or the view would stand still."""
        return max(1, kept_count(self.k, size))

    def bits(self, size: int) -> float:
        """Bits of a difference by the exact count, with the scale of its values."""
        kind = VALUE_TYPES[self.values]
        return float(exact_bits(size, self.entries(size), value_bits=kind.bits)) + kind.beside_bits

    def pays(self, size: int) -> bool:
        """Whether a difference is shorter than the vector in 32-bit floats; where it is not, the vector is sent."""
        return self.bits(size) < float(dense_bits(size))


def seen(server: ServerState) -> ServerState:
    """The server's state as clients see it: with their view in the place of the shared part."""
    return replace(server, shared=server.memory[VIEW]) if VIEW in server.memory else server


def with_view_of(before: ServerState, after: ServerState) -> ServerState:
    """The state after a round in which nothing was sent: clients have what they had."""
    if VIEW not in before.memory:
        return after
    return ServerState(after.shared, {**after.memory, VIEW: before.memory[VIEW]})


def advanced(
    how: Differences | None, before: ServerState, after: ServerState, seed: int, number: int
) -> tuple[ServerState, Upload | None]:
    """The state after round `number` with the view of the next one, and the difference that makes it.

    No difference where the shared part itself is sent: always without `how`, and where that is no longer.
    """
    if how is None:
        return after, None
    view, size = seen(before).shared, len(after.shared)
    meant = (after.shared - view).numpy()
    if not how.pays(size) or not np.isfinite(meant).all():  # clients say what is wrong with a base that is not finite
        return ServerState(after.shared, {**after.memory, VIEW: after.shared}), None
    places = largest(np.abs(meant), how.entries(size))
    sent, scale = rounded(meant[places], how.values, stream(seed, "broadcast", number + 1))
    positions = None if len(places) == size else torch.from_numpy(places)
    difference = Upload(size, torch.from_numpy(sent), positions, scale)
    return ServerState(after.shared, {**after.memory, VIEW: moved(view, difference)}), difference


def moved(view: Tensor, difference: Upload) -> Tensor:
    """v + difference in float32, the same on every machine."""
    if difference.positions is None:
        return view + difference.values
    after = view.clone()
    after[difference.positions] += difference.values
    return after
