"""A Grid in memory: the real ClientApp behind real messages, taken apart to bytes and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from leanfed.deployment.learning.client_app import app as client_app
from leanfed.deployment.learning.mail import Clock

Twist = Callable[[Message, Message], Message | None]  # (order, honest reply) -> what is sent; None: nothing, ever


@dataclass
class MemoryClock:
    """Time that passes only when somebody sleeps."""

    now: float = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> Clock:
        return Clock(steady=lambda: self.now, wall=lambda: self.now, sleep=self.sleep)


@dataclass
class MemoryNode:
    """A SuperNode with one ClientApp; `twist` makes it misbehave."""

    node: int
    config: dict[str, Any]
    online: bool = True
    delay_s: float = 1.0
    twist: Twist = lambda order, reply: reply


@dataclass
class MemoryGrid(Grid):
    """Carries messages as bytes; `wire` keeps all that nodes sent, `down` counts what they were sent."""

    clock: MemoryClock
    run_config: dict[str, Any]
    nodes: dict[int, MemoryNode] = field(default_factory=dict)
    wire: list[bytes] = field(default_factory=list)
    down: int = 0
    seen: list[Message] = field(default_factory=list)  # orders, as the nodes got them
    replies: dict[str, tuple[float, Message]] = field(default_factory=dict)

    @classmethod
    def of(cls, clients: int, store: Path, run_config: dict[str, Any], clock: MemoryClock) -> MemoryGrid:
        grid = cls(clock, run_config)
        for client in range(clients):
            folder = store / f"node-{client}"
            config = {"client-id": client, "store": str(folder)}
            grid.nodes[100 + client] = MemoryNode(100 + client, config)
        return grid

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node.node for node in self.nodes.values() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [key for key in message_ids if key in self.replies and self.replies[key][0] <= self.clock.now]
        return [self.replies.pop(key)[1] for key in ready]

    def _push(self, message: Message) -> str:
        order, parts = carry(message)
        self.down += sum(map(len, parts))
        node = self.nodes[message.metadata.dst_node_id]
        if not node.online:
            return ""
        self.seen.append(order)
        context = Context(1, node.node, dict(node.config), RecordDict(), dict(self.run_config))
        try:
            honest = client_app(order, context)
        except Exception as error:  # as Flower does: any exception of an app becomes an error reply
            honest = Message(Error(code=1, reason=f"{type(error).__name__}: {error}"), reply_to=order)
        assert not context.state  # nothing is left with Flower
        sent = node.twist(order, honest)
        if sent is not None:
            reply, parts = carry(sent)
            self.wire.extend(parts)
            self.replies[order.metadata.message_id] = (self.clock.now + node.delay_s, reply)
        return order.metadata.message_id


def carry(message: Message) -> tuple[Message, list[bytes]]:
    """A message as it comes out at the other end, and every byte that made the way."""
    with no_object_id_recompute():
        number = message.object_id
        objects = get_all_nested_objects(message)
        contents = {key: part.deflate() for key, part in objects.items()}
    copy = inflate_object_from_contents(number, dict(contents))
    assert isinstance(copy, Message)
    copy.metadata.__dict__["_message_id"] = number
    return copy, list(contents.values())
