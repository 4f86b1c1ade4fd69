"""Questions to nodes beside their orders, whose answers the round waits for: the exchanges of a masked sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import RecordDict

from leanfed.deployment.learning.mail import DECLINED, Delivery, Inbox, Letter, Post
from leanfed.deployment.learning.messages import MessageError, WireRecord, pack_one, wire_bytes

GRACE_S = 5.0  # a message is valid for this much longer than it is waited for
T = TypeVar("T")


@dataclass
class Questions:
    """Asks clients and waits until all have answered, for at most `deadline_s`."""

    post: Post
    inbox: Inbox
    collect: Callable[[], None]  # sorts what has arrived
    deadline_s: float
    poll_s: float
    up: Counter[int] = field(default_factory=Counter)  # client -> bytes of its answers in this round
    down: Counter[int] = field(default_factory=Counter)  # client -> bytes that it was sent beside its order

    def ask(
        self, name: str, requests: Mapping[int, WireRecord], read: Callable[[int, RecordDict], T], *, token: str
    ) -> dict[int, T]:
        """client -> what `read` makes of its answer; a `MessageError` of it counts against the node."""
        clock, group = self.post.clock, f"{name}-{token}"
        contents = {client: pack_one(name, request) for client, request in requests.items()}
        letters = [
            Letter(self.inbox.members[client].node, content, "query", name, asks=(client, group))
            for client, content in contents.items()
        ]
        self.inbox.asked = {(client, group): None for client in contents}
        for client, content in contents.items():
            self.down[client] += wire_bytes(content)
        end = clock.steady() + self.deadline_s
        lost = {letter.asks for letter in self.post.send(letters, self.deadline_s + GRACE_S)}
        while self._missing(lost) and clock.steady() < end:
            self.collect()
            if self._missing(lost):
                clock.sleep(self.poll_s)
        found = self.inbox.asked
        self.inbox.asked = {}
        read_one = ((client, self._read(client, found[client, group], read)) for client in sorted(contents))
        return {client: answer for client, answer in read_one if answer is not None}

    def _missing(self, lost: set[tuple[int, str] | None]) -> bool:
        return any(delivery is None and asks not in lost for asks, delivery in self.inbox.asked.items())

    def _read(self, client: int, delivery: Delivery | None, read: Callable[[int, RecordDict], T]) -> T | None:
        """What could be read of an answer; everything else is counted and written to the audit log."""
        member, message = self.inbox.members[client], None if delivery is None else delivery.message
        if message is None or message.has_error():
            self.inbox.lose(member, message)
            return None
        self.up[client] += wire_bytes(message.content)
        try:
            if DECLINED in message.content:
                self.inbox.take_declined(message.content, member)
                return None
            return read(client, message.content)
        except MessageError as error:
            self.inbox.refuse(member, error)
            return None
