"""Checks of a client's answer: the server accepts it as a whole or refuses it with a reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from leanfed.algorithms.uploads import Upload
from leanfed.compression.frame import OVERHEAD_BYTES, FrameError, bitmap_bytes
from leanfed.compression.ring import packed_bytes, unpacked
from leanfed.compression.values import VALUE_TYPES, NotFiniteError
from leanfed.deployment.learning.messages import Answer, Device, MessageError, Order
from leanfed.deployment.masking.records import MaskOrder
from leanfed.records import Ints
from leanfed.rounds.wire import from_frame

CLAIM_SLACK_S = 60.0  # clocks of processes and of the server are not the same


@dataclass(frozen=True)
class Masked:
    """How an update is hidden."""

    order: MaskOrder  # that goes with the order
    bits: int  # of a masked value
    transcript: str  # what the masks are bound to


@dataclass(frozen=True)
class Expected:
    """The properties of a valid answer to an order."""

    order: Order
    size: int  # entries of the shared vector
    entries: int  # number of them that are sent
    mask: bool
    values: str  # what they travel as
    last_frame: str | None  # SHA-256 of the client's last accepted update
    samples: float = float("inf")  # the most that go through the training that was ordered
    signals: int = 0  # numbers that are reported beside an update
    shown: bool = True  # whether a loss is; else the run withholds metrics
    known: Ints | None = None  # positions that all clients send, which do not travel
    masked: Masked | None = None  # None: the update travels as it is

    @property
    def most_bytes(self) -> int:
        """Upper bound of a valid frame: header, one bit per entry, every value or its bit."""
        if self.masked is not None:
            return packed_bytes(self.entries, self.masked.bits)
        values = bitmap_bytes(self.entries) if self.mask else VALUE_TYPES[self.values].section_bytes(self.entries)
        return OVERHEAD_BYTES + bitmap_bytes(self.size) + values


def check_claims(answer: Answer, device: Device, expected: Expected, waited_s: float) -> None:
    """Refuse claims that cannot be: more seconds than have passed, more samples than were ordered."""
    claimed = max(answer.worked_s, device.step_s or 0.0)
    if claimed > waited_s + CLAIM_SLACK_S:
        raise MessageError("implausible", f"it says to have worked for {claimed:.0f} s in {waited_s:.0f} s")
    most = max(answer.samples or 0, device.step_samples or 0)
    if expected.order.train and most > expected.samples:
        raise MessageError("implausible", f"{most} samples, where {expected.samples:g} are the most")


def check_answer(answer: Answer, expected: Expected) -> None:
    """Refuse an answer that does not match the order."""
    order = expected.order
    if answer.run != order.run:
        raise MessageError("stale", f"it is of run {answer.run[:16]!r}, not of {order.run!r}")
    if answer.round != order.round:
        raise MessageError("stale", f"it is of round {answer.round}, the order was of round {order.round}")
    if answer.token != order.token:
        raise MessageError("replayed", "it repeats the token of another order")
    if answer.client != order.client:
        raise MessageError("malformed", f"it says client {answer.client}, the order was for client {order.client}")
    if order.evaluate and (answer.accuracy is None or answer.test_loss is None):
        raise MessageError("malformed", "it has no test result, though one was asked for")


def read_update(answer: Answer, expected: Expected) -> Upload:
    """The update in an answer; raises `MessageError` if it is not valid."""
    if (answer.loss is None and expected.shown) or answer.samples is None:
        raise MessageError("malformed", "it has no loss or no count of samples")
    if answer.loss is not None and not expected.shown:
        raise MessageError("malformed", "it reports a loss, though privacy.metrics = 'off'")
    if len(answer.signals or ()) != expected.signals:
        raise MessageError("malformed", f"it reports {len(answer.signals or ())} numbers, not {expected.signals}")
    if len(answer.frame) > expected.most_bytes:
        raise MessageError("oversized", f"{len(answer.frame)} bytes, where {expected.most_bytes} are the most")
    if expected.masked is not None:
        return _read_masked(answer, expected, expected.masked)
    try:
        upload = from_frame(answer.frame, max_size=expected.size, mask=expected.mask, known=expected.known)
    except NotFiniteError as error:
        raise MessageError("not-finite", str(error)) from error
    except FrameError as error:
        raise MessageError("malformed", str(error)) from error
    if upload.size != expected.size:
        raise MessageError("wrong-size", f"a vector of {upload.size} entries, where the model has {expected.size}")
    if upload.entries != expected.entries:
        raise MessageError("wrong-size", f"{upload.entries} entries, where the order asked for {expected.entries}")
    if digest(answer.frame) == expected.last_frame and not expected.mask and bool(torch.any(upload.values)):
        raise MessageError("replayed", "it is the client's last update, byte for byte")
    return upload


def _read_masked(answer: Answer, expected: Expected, masked: Masked) -> Upload:
    """A masked update: whole numbers, of which nothing can be told but how many they are."""
    if answer.masked != masked.transcript:
        raise MessageError("malformed", "its masks are bound to another base, or to another sum")
    try:
        numbers = unpacked(answer.frame, expected.entries, masked.bits)
    except FrameError as error:
        raise MessageError("wrong-size", str(error)) from error
    places = None if expected.known is None else torch.from_numpy(expected.known.astype(np.int64))
    return Upload(expected.size, torch.from_numpy(numbers.astype(np.int64)), places, common=places is not None)


def digest(frame: bytes) -> str:
    """SHA-256 of a frame."""
    return hashlib.sha256(frame).hexdigest()
