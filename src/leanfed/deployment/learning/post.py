"""The mail between the server and its nodes: what is under way, what has come back, what never will."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from leanfed.deployment.learning.checks import Expected


@dataclass(frozen=True)
class Clock:
    """Time as the server sees it; tests bring their own."""

    steady: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Letter:
    """A message to a node; without `expected` it is the question who it is."""

    node: int
    content: RecordDict
    kind: str  # query, train or evaluate
    group: str
    expected: Expected | None = None


@dataclass(frozen=True)
class Sent:
    """A letter under way."""

    letter: Letter
    at: float
    expires: float


@dataclass(frozen=True)
class Delivery:
    """What came back for a letter; no message where it got lost."""

    sent: Sent
    message: Message | None
    waited_s: float  # since it was sent
    arrived_at: float  # by the wall clock


@dataclass
class Post:
    """Sends letters and collects replies, whenever they come."""

    grid: Grid
    clock: Clock = field(default_factory=Clock)
    under_way: dict[str, Sent] = field(default_factory=dict)  # message id -> letter

    def online(self) -> set[int]:
        """The nodes that the SuperLink sees."""
        return set(self.grid.get_node_ids())

    def busy(self) -> set[int]:
        """Nodes with a letter that has neither come back nor run out."""
        return {sent.letter.node for sent in self.under_way.values()}

    def send(self, letters: Sequence[Letter], ttl_s: float) -> list[Letter]:
        """Push letters; returns those that could not be pushed."""
        if not letters:
            return []
        now = self.clock.steady()
        messages = [
            Message(letter.content, letter.node, letter.kind, ttl=ttl_s, group_id=letter.group) for letter in letters
        ]
        ids = list(self.grid.push_messages(messages))
        ids += [""] * (len(letters) - len(ids))
        lost = []
        for number, letter in zip(ids, letters, strict=True):
            if number:
                self.under_way[number] = Sent(letter, now, now + ttl_s)
            else:
                lost.append(letter)
        return lost

    def collect(self) -> list[Delivery]:
        """What has come back since the last look, and what has run out."""
        if not self.under_way:
            return []
        replies = list(self.grid.pull_messages(list(self.under_way)))
        now, wall = self.clock.steady(), self.clock.wall()
        found = []
        for message in replies:
            sent = self.under_way.pop(message.metadata.reply_to_message_id, None)
            if sent is not None:
                found.append(Delivery(sent, message, now - sent.at, wall))
        for number, sent in list(self.under_way.items()):
            if now > sent.expires:
                del self.under_way[number]
                found.append(Delivery(sent, None, now - sent.at, wall))
        return found
