"""The clients that have joined a run, and what the server must remember of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from leanfed.deployment.learning.links import Measured
from leanfed.deployment.learning.messages import Device, Hello


@dataclass
class Member:
    """A client and the node that it runs on."""

    client: int
    node: int
    samples: int
    test_samples: int | None  # None, as the next, where metrics are withheld
    majority_guess: float | None
    device: Device
    applied: int = -1  # its last round that was applied
    applied_token: str = ""  # and the token of that order
    last_frame: str | None = None  # SHA-256 of that update
    offences: int = 0
    reasons: list[str] = field(default_factory=list)  # of these
    set_aside: bool = False
    missed: int = 0  # deadlines in a row
    rests_until: int = 0  # the round in which it is asked again
    view: str = ""  # what it has of the base, where differences are sent; empty: nothing that we know of
    order: str = ""  # token of the last order that it was sent
    wait_s: float | None = None  # between answering and our seeing it, of an answer with nothing in it
    speaks: int = 1  # version of its messages
    measured: Measured = field(default_factory=Measured)

    def miss(self, number: int, most: int) -> None:
        """Leave it out after round `number`: for one round, and for twice as many as before each time."""
        self.missed += 1
        self.rests_until = number + 1 + min(2 ** (self.missed - 1), most)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {**asdict(self), "device": self.device.model_dump(), "measured": self.measured.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Member:
        """The inverse of `to_json`; what older checkpoints do not have is measured anew."""
        known = {name: value for name, value in values.items() if name in {one.name for one in fields(cls)}}
        measured = Measured.from_json(values["measured"]) if "measured" in values else Measured()
        return cls(**{**known, "device": Device.model_validate(values["device"]), "measured": measured})


@dataclass
class Members:
    """All clients that have joined, and the nodes that were asked, refused ones included."""

    by_client: dict[int, Member] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)  # nodes that were sent a HelloRequest
    greeted: set[int] = field(default_factory=set)  # nodes that answered it, since the server was started
    later: dict[int, tuple[int, float]] = field(default_factory=dict)  # node -> failed greetings, when to ask again

    def __iter__(self) -> Iterator[Member]:
        return iter(sorted(self.by_client.values(), key=lambda member: member.client))

    def __len__(self) -> int:
        return len(self.by_client)

    def __getitem__(self, client: int) -> Member:
        return self.by_client[client]

    def join(self, hello: Hello, device: Device, node: int, wait_s: float) -> Member:
        """Add a client, or give a known one its new node; what the server remembers of it stays."""
        known = self.by_client.get(hello.client)
        member = Member(hello.client, node, hello.samples, hello.test_samples, hello.majority_guess, device)
        member.wait_s, member.view = wait_s, hello.view or ""
        if known is not None:
            member.applied, member.applied_token = known.applied, known.applied_token
            member.last_frame = known.last_frame
            member.offences, member.set_aside, member.reasons = known.offences, known.set_aside, known.reasons
            member.missed, member.rests_until, member.order = known.missed, known.rests_until, known.order
            member.measured = known.measured
        self.by_client[hello.client] = member
        self.greeted.add(node)
        return member

    def ask_later(self, node: int, now: float) -> None:
        """Ask a node again whose greeting failed: after 5, 10, 20, ... seconds, at most 5 minutes."""
        failed = self.later.get(node, (0, 0.0))[0] + 1
        self.later[node] = failed, now + min(5.0 * 2.0 ** (failed - 1), 300.0)
        self.asked.discard(node)

    def to_ask(self, online: set[int], now: float) -> list[int]:
        """Nodes that are to be asked who they are."""
        return sorted(node for node in online - self.asked if self.later.get(node, (0, now))[1] <= now)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values for the checkpoint."""
        return [member.to_json() for member in self]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> Members:
        """The inverse of `to_json`; every node is asked again who it is."""
        return cls({row["client"]: Member.from_json(row) for row in rows})
