"""What nodes have of the base, and how each comes to the newest: by the differences that it missed, or by the base.

A view is named by a digest of its values, so that server and node never take one for another: not after a store was
lost, nor after the server has gone back to an earlier state. Differences are added one by one in the order in which
they were made, so that whoever missed some ends with the same view, bit for bit. They are kept while they are shorter
together than the base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from leanfed.algorithms.contract import ServerState
from leanfed.algorithms.uploads import Upload
from leanfed.compression.codec import encode
from leanfed.compression.frame import FrameError
from leanfed.deployment.learning.messages import BehindError, MessageError, base_record
from leanfed.deployment.learning.store import VIEW_DIGITS
from leanfed.rounds.broadcast import Differences, moved, seen
from leanfed.rounds.wire import from_frame, to_frame

FRAMES = "frames"  # name of the kept differences in a checkpoint


def name_of(view: Tensor) -> str:
    """The first hexadecimal digits of the SHA-256 of a view's values, as little-endian float32."""
    return hashlib.sha256(view.numpy().astype("<f4", copy=False).tobytes()).hexdigest()[:VIEW_DIGITS]


class Step(NamedTuple):
    """A difference, and the view that it is added to."""

    before: str
    frame: bytes


@dataclass(frozen=True)
class Parcel:
    """What brings a node to the newest view: frames, and the names of the views that they lead through to the newest.

    One view and one frame: the base itself. No names: nodes do not keep what they get.
    """

    frames: tuple[bytes, ...]
    views: tuple[str, ...] | None = None
    unknown: bool = False  # whether the node named a view that nothing leads on from

    @property
    def bytes(self) -> int:
        """Of the frames together."""
        return sum(map(len, self.frames))

    @cached_property
    def record(self) -> ArrayRecord | None:
        """The frames as one object for all nodes that get them."""
        return base_record(self.frames)


@dataclass
class Views:
    """The server's side: the newest view, and the differences that lead to it."""

    how: Differences | None
    view: Tensor
    steps: list[Step] = field(default_factory=list)
    _made: dict[str, Parcel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.newest = "" if self.how is None else name_of(self.view)

    def advance(self, server: ServerState, difference: Upload | None) -> None:
        """Take over the view that clients get after a round, and the difference that makes it, if one does."""
        self.view, self._made = seen(server).shared, {}
        if self.how is None:
            return
        if difference is None:
            self.steps = []
        else:
            self.steps.append(Step(self.newest, to_frame(difference, self.how.values)))
        while sum(len(step.frame) for step in self.steps) >= self.view.nbytes:
            del self.steps[0]
        self.newest = name_of(self.view)

    def parcel(self, known: str = "") -> Parcel:
        """What a node is sent that has the view of this name; none: the base."""
        if known not in self._made:
            self._made[known] = self._parcel(known)
        return self._made[known]

    def _parcel(self, known: str) -> Parcel:
        if self.how is not None and known == self.newest:
            return Parcel((), (self.newest,))
        for place, step in enumerate(self.steps):
            if step.before == known:
                left = self.steps[place:]
                return Parcel(tuple(one.frame for one in left), (*(one.before for one in left), self.newest))
        if known:
            base = self.parcel()
            return Parcel(base.frames, base.views, unknown=True)
        whole = encode(len(self.view), None, self.view.numpy())
        return Parcel((whole,), None if self.how is None else (self.newest,))

    def packed(self, server: ServerState) -> tuple[ServerState, list[dict[str, Any]]]:
        """The server's state with the differences, and plain values that tell them apart, for a checkpoint."""
        if not self.steps:
            return server, []
        joined = np.frombuffer(b"".join(step.frame for step in self.steps), np.uint8).copy()
        lengths = [{"before": step.before, "bytes": len(step.frame)} for step in self.steps]
        return ServerState(server.shared, {**server.memory, FRAMES: torch.from_numpy(joined)}), lengths

    @classmethod
    def unpacked(
        cls, how: Differences | None, saved: ServerState, lengths: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[ServerState, Views]:
        """The inverse of `packed`: the server's own state, and the views."""
        memory = dict(saved.memory)
        joined, steps, start = memory.pop(FRAMES, torch.empty(0, dtype=torch.uint8)).numpy().tobytes(), [], 0
        for one in lengths:
            steps.append(Step(one["before"], joined[start : start + one["bytes"]]))
            start += one["bytes"]
        server = ServerState(saved.shared, memory)
        return server, cls(how, seen(server).shared, steps)


def read_base(frames: Sequence[bytes], size: int) -> Tensor:
    """The base in the only frame, checked to be whole and of the right size."""
    if len(frames) != 1:
        raise MessageError("malformed", f"it has {len(frames)} frames, where the base is one")
    base = _read(frames[0], size)
    if base.positions is not None:
        raise MessageError("wrong-size", f"the base has {base.entries} of {base.size} entries, the model {size}")
    return base.values


def followed(own: Tensor | None, views: Sequence[str], frames: Sequence[bytes], size: int) -> Tensor:
    """The node's side: the view that an order names, from the node's own and the frames sent with the order."""
    name = "" if own is None else name_of(own)
    if own is not None and name == views[-1]:
        return own
    if len(views) == 1 and frames:
        view = read_base(frames, size)
    elif own is None or name not in views:
        raise BehindError(
            f"this node has {f'the view {name}' if name else 'no view'}, the order goes on from {views[0]}"
        )
    elif len(frames) != len(views) - 1:
        raise MessageError("malformed", f"{len(frames)} differences cannot lead through {len(views)} views")
    else:
        view = own
        for frame in frames[views.index(name) :]:
            view = moved(view, _read(frame, size))
    if name_of(view) != views[-1]:
        raise BehindError(f"the frames lead to the view {name_of(view)}, where the order names {views[-1]}")
    return view


def _read(frame: bytes, size: int) -> Upload:
    """A frame of the server, which is checked like one of a client's."""
    try:
        read = from_frame(frame, max_size=size)
    except FrameError as error:
        raise MessageError("malformed", str(error)) from error
    if read.size != size:
        raise MessageError("wrong-size", f"the base has {read.entries} of {read.size} entries, the model {size}")
    return read
