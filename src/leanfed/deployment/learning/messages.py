"""The messages between server and nodes: plain records and the codec's frames; nothing is ever unpickled.

An order goes down with the base as one frame, or with the differences that a node lacks, the same objects for every
node, so that each is stored once. An answer comes up with the coded update as bytes in a plain record. Every field of
an answer is checked as if it were hostile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import ConfigDict, Field, ValidationError

from leanfed.errors import InputError
from leanfed.records import Section

PROTOCOL: Final = 1  # of the records that every version reads
VERSION: Final = 2  # of what both sides can do beside them; 2: probes, and a node's own seconds in its greeting
UNKNOWN: Final = -1.0  # a reported number that a client could not measure; the others are shares
FRAME_TYPE = "leanfed.frame"  # how an Array's bytes are to be read: by the codec, and by nothing else
ANSWER, ORDER, BASE, BEHIND = "answer", "order", "base", "behind"
SPEAKS, PROBE, ECHO = "speaks", "probe", "echo"
LONGEST_PAD: Final = 4_000_000  # bytes of a probe, each way
ViewName = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
RecordType = ArrayRecord | ConfigRecord | MetricRecord
T = TypeVar("T", bound="WireRecord")


class MessageError(InputError):
    """A message cannot be used; `kind` says why in a word."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class BehindError(InputError):
    """The frames of an order do not lead on from what a node has: it needs the base."""


class WireRecord(Section):
    """A plain record that travels: exact types, finite numbers, no unknown keys."""

    model_config = ConfigDict(strict=True)

    protocol: Literal[1] = PROTOCOL
    """Version of these records; both sides must have the same."""


class Device(WireRecord):
    """A node's measurements of itself, in SI units; absent where its platform does not provide them."""

    flops_per_s: float = Field(gt=0, le=1e18)
    """A short calibration: multiply-add throughput of one core."""
    step_s: float | None = Field(default=None, gt=0, le=1e7)
    """Seconds of the last training, all local steps."""
    step_samples: int | None = Field(default=None, gt=0)
    """Samples that went through it."""
    step_r: float | None = Field(default=None, ge=0, le=1)
    """Keep rate of the head in it."""
    step_head_steps: int | None = Field(default=None, gt=0)
    """Steps of the head on a batch, where the order planned them."""
    step_j: float | None = Field(default=None, ge=0, le=1e9)
    """Joules of the package or battery during it."""
    battery: float | None = Field(default=None, ge=0, le=1)
    """Charge of the battery as a share of full."""


class HelloRequest(WireRecord):
    """The server asks a node which client it is."""

    run: str
    """The run, as node stores name it."""


class Hello(WireRecord):
    """A node's reply to a `HelloRequest`: which client it is, and what it brings."""

    client: int = Field(ge=0)
    samples: int = Field(gt=0)
    """By which its updates are weighted."""
    test_samples: int | None = Field(default=None, gt=0)
    """Absent, as the next, where the run withholds metrics."""
    majority_guess: float | None = Field(default=None, ge=0, le=1)
    """Accuracy on its test set of always naming its most frequent training label."""
    round: int = Field(ge=-1)
    """The last round in its store; -1: none."""
    view: ViewName | None = None
    """What it has of the base, where differences are sent; absent: nothing."""
    sent_at: float = Field(ge=0)
    """The node's clock when it answered."""


class Speaks(WireRecord):
    """Beside a `Hello`: what this node's version can do. An older server does not look for it, an older node does not
    send it and counts as version 1; both sides then use what the older one knows."""

    model_config = ConfigDict(strict=True, extra="ignore")  # a newer node may say more

    version: int = Field(ge=1)
    work_s: float = Field(ge=0)
    """Its own seconds between the question and its reply."""


class Probe(WireRecord):
    """A message of a chosen size and the size that its reply shall have, to measure a link by; version 2."""

    run: str
    token: str
    pad: bytes = Field(max_length=LONGEST_PAD)
    reply_bytes: int = Field(ge=0, le=LONGEST_PAD)


class Echo(WireRecord):
    """The reply to a `Probe`."""

    token: str
    pad: bytes = Field(max_length=LONGEST_PAD)
    work_s: float = Field(ge=0)
    sent_at: float = Field(ge=0)


class Declined(WireRecord):
    """A node's reply to a `HelloRequest` whose run it cannot take part in, or to a masked sum that it does not go on
    with, in words."""

    why: str
    spent: bool | None = None
    """Of a masked sum: whether the node has unmasked one of this round and base before."""


class Order(WireRecord):
    """One client's part of a round; the base travels beside it."""

    run: str
    token: str
    """Drawn for this order; the answer repeats it, so that an old answer is not taken for a new one."""
    round: int = Field(ge=0)
    client: int = Field(ge=0)
    applied: int = Field(ge=-1)
    """The last round of this client that the server applied; what the client did since then is undone."""
    applied_token: str
    """The token of the order that was applied then; empty where none was."""
    train: bool
    evaluate: bool
    """Test the model that the base makes with the client's head, before training."""
    k: float = Field(ge=0, le=1)
    r: float = Field(ge=0, le=1)
    share: float = Field(ge=0, le=1)
    """l, the client's share of the band; advice to its radio."""
    head_steps: int | None = Field(default=None, ge=1, le=10_000)
    """Steps of the head on a batch; None: the method's own number."""
    views: list[ViewName] | None = Field(default=None, min_length=1)
    """Where differences are sent: the views that the frames lead through, last the one to train on. A node that has one
    of them adds the differences behind it. One view with one frame: the frame is the base. Absent: it is not kept."""


class Behind(WireRecord):
    """A node's reply to an order whose differences do not lead on from what it has; it is sent the base."""

    run: str
    token: str
    why: str


class Answer(WireRecord):
    """A client's reply to an order."""

    run: str
    token: str
    round: int = Field(ge=0)
    client: int = Field(ge=0)
    store: Literal["kept", "fresh", "ahead"]
    """fresh: the store had no state of this run; ahead: it was further than the server, and stayed there."""
    frame: bytes = b""
    """The coded or masked update; empty where nothing was trained."""
    masked: str | None = None
    """Of a masked update: what its masks are bound to."""
    loss: float | None = None
    """Of the training; absent where nothing was trained or the run withholds metrics."""
    signals: list[Annotated[float, Field(ge=UNKNOWN, le=1)]] | None = None
    """What the planner measures progress by, where the run asks for it (`algorithms.contract.SIGNALS`)."""
    samples: int | None = Field(default=None, gt=0)
    accuracy: float | None = Field(default=None, ge=0, le=1)
    test_loss: float | None = Field(default=None, ge=0)
    ready_s: float = Field(ge=0)
    """Seconds to load data, head and base."""
    prepare_s: float = Field(default=0.0, ge=0)
    """Seconds until a client's first state was made; they come once."""
    train_s: float = Field(ge=0)
    test_s: float = Field(ge=0)
    sent_at: float = Field(ge=0)

    @property
    def worked_s(self) -> float:
        """The device's own seconds."""
        return self.ready_s + self.prepare_s + self.train_s + self.test_s


def pack(*, device: Device | None = None, base: ArrayRecord | None = None, **parts: WireRecord) -> RecordDict:
    """Records for a message; absent values are left out, since Flower's records cannot hold them."""
    if device is not None:
        parts["device"] = device
    records: dict[str, RecordType] = {
        name: ConfigRecord(record.model_dump(exclude_none=True)) for name, record in parts.items()
    }
    if base is not None:
        records[BASE] = base
    return RecordDict(records)


def pack_one(name: str, record: WireRecord) -> RecordDict:
    """A message of a single record."""
    return RecordDict({name: ConfigRecord(record.model_dump(exclude_none=True))})


def unpack(content: RecordDict, name: str, kind: type[T]) -> T:
    """A checked record of a message, or a `MessageError`."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise MessageError("malformed", f"it has no record {name!r}")
    try:
        return kind.model_validate(dict(record))
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(str(part) for part in detail["loc"])
        kind_of = "not-finite" if detail["type"] == "finite_number" else "malformed"
        raise MessageError(kind_of, f"{name}.{key}: {detail['msg'][:1].lower()}{detail['msg'][1:]}") from None


def base_record(frames: Sequence[bytes]) -> ArrayRecord | None:
    """The base or differences as Flower carries them: in chunks, their bytes untouched; None where there are none."""
    arrays = {_name(n): Array("uint8", (len(frame),), FRAME_TYPE, frame) for n, frame in enumerate(frames)}
    return ArrayRecord(arrays) if arrays else None


def base_frames(content: RecordDict) -> list[bytes]:
    """The frames of the base or of differences in a message, in their order."""
    record = content.get(BASE)
    arrays = dict(record) if isinstance(record, ArrayRecord) else {}
    names = [_name(n) for n in range(len(arrays))]
    if set(names) != set(arrays) or any(array.stype != FRAME_TYPE for array in arrays.values()):
        raise MessageError("malformed", "its base is not made of frames")
    return [arrays[name].data for name in names]


def _name(place: int) -> str:
    return f"frame.{place}" if place else "frame"


def wire_bytes(content: RecordDict) -> int:
    """Bytes of all objects that a message's content is made of, as Flower sends them."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())
