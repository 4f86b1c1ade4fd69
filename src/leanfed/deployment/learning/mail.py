"""The mail between the server and its nodes: sent, collected, and each round's replies sorted.

`Post` sends letters and collects what comes back. `Inbox` sorts it into accepted, refused, late and lost, and writes
every decision to the audit log.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from leanfed.algorithms.uploads import Upload
from leanfed.deployment.door.audit import Audit
from leanfed.deployment.learning.bindings import Bindings
from leanfed.deployment.learning.checks import Expected, check_answer, check_claims, digest, read_update
from leanfed.deployment.learning.links import Passage
from leanfed.deployment.learning.members import Member, Members
from leanfed.deployment.learning.messages import (
    ANSWER,
    BEHIND,
    ECHO,
    SPEAKS,
    VERSION,
    Answer,
    Behind,
    Declined,
    Device,
    Echo,
    Hello,
    MessageError,
    Order,
    Probe,
    Speaks,
    unpack,
    wire_bytes,
)
from leanfed.deployment.learning.probes import check_echo
from leanfed.errors import InputError

DECLINED = "declined"
SHORTEST_UPLOAD_S = 0.25  # what polling can tell apart; a faster upload counts as this long


@dataclass(frozen=True)
class Clock:
    """The server's sources of time; tests replace them."""

    steady: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Letter:
    """A message to a node; without `expected` it is a `HelloRequest` or a probe of a client's link."""

    node: int
    content: RecordDict
    kind: str  # query, train or evaluate
    group: str
    expected: Expected | None = None
    probe: tuple[int, Probe] | None = None  # client and what it was sent
    base_bytes: int = 0  # of the base or differences that go along
    asks: tuple[int, str] | None = None  # client, and which question of a masked sum this is


@dataclass(frozen=True)
class Sent:
    """A letter that is not answered yet; times by the steady clock."""

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
        """Nodes with a letter that is neither answered nor expired."""
        return {sent.letter.node for sent in self.under_way.values()}

    def probing(self) -> bool:
        """Whether a probe is under way."""
        return any(sent.letter.probe is not None for sent in self.under_way.values())

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
        """Replies since the last call, and letters whose time to live has ended."""
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


@dataclass(frozen=True)
class Accepted:
    """An update that will be applied, and what it took to get it."""

    answer: Answer
    device: Device
    upload: Upload
    order: Order
    elapsed_s: float  # from sending the order to seeing the answer
    upload_s: float
    message_bytes: int  # of the whole answer


@dataclass
class Inbox:
    """Sorts deliveries in any order; `waiting` holds the tokens of the orders that are not answered yet."""

    members: Members
    audit: Audit
    offences: int
    clients: int
    bindings: Bindings
    round: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # token -> client
    accepted: dict[int, Accepted] = field(default_factory=dict)
    use_late: int = 0  # updates that are at most this many rounds late are used; 0: none
    came_late: dict[int, Accepted] = field(default_factory=dict)  # and wait for the end of the round
    behind: list[Expected] = field(default_factory=list)  # awaited orders whose nodes need the base first
    tested: dict[int, tuple[float, float]] = field(default_factory=dict)  # client -> (accuracy, loss)
    counts: Counter[str] = field(default_factory=Counter)  # of this round
    totals: Counter[str] = field(default_factory=Counter)  # of the run
    asked: dict[tuple[int, str], Delivery | None] = field(default_factory=dict)  # questions, and what came back
    spent: set[int] = field(default_factory=set)  # clients that have unmasked a sum of this round before

    def open_round(self, number: int) -> None:
        """Forget the last round's updates; what is still under way is late from now on."""
        self.round = number
        self.waiting, self.accepted, self.behind, self.counts = {}, {}, [], Counter()
        self.asked, self.spent = {}, set()

    def take(self, delivery: Delivery, online: set[int]) -> None:
        """Sort one delivery."""
        expected, node = delivery.sent.letter.expected, delivery.sent.letter.node
        if delivery.sent.letter.probe is not None:
            self._take_echo(delivery, *delivery.sent.letter.probe)
            return
        if (asks := delivery.sent.letter.asks) is not None:
            if asks in self.asked:
                self.asked[asks] = delivery
            return
        if expected is None:
            self._take_hello(delivery, node, online)
            return
        order = expected.order
        awaited = self.waiting.pop(order.token, None) is not None
        member = self.members[order.client]
        facts = {"round": order.round, "client": order.client, "node": node}
        if not awaited:
            self._count("late", **facts, seconds=round(delivery.waited_s, 3))
            self._take_late(delivery, member, order)
        elif delivery.message is None or delivery.message.has_error():
            self._count("lost", **facts, why=_what_went_wrong(delivery.message))
        else:
            try:
                if BEHIND in delivery.message.content:
                    self._take_behind(delivery.message, expected, member, **facts)
                elif DECLINED in delivery.message.content:
                    self.take_declined(delivery.message.content, member)
                else:
                    self._accept(delivery, delivery.message, member)
            except MessageError as error:
                self._refuse(member, error, **facts)

    def _take_behind(self, message: Message, expected: Expected, member: Member, **facts: object) -> None:
        """Let a node have the base that could not follow the differences; who cannot read the base is refused."""
        said, order = unpack(message.content, BEHIND, Behind), expected.order
        if (said.run, said.token) != (order.run, order.token):
            raise MessageError("replayed", "it repeats the token of another order")
        if order.views is None or (len(order.views) == 1 and not member.view):
            raise MessageError("malformed", "it says to be behind, though it was sent the base")
        member.view = ""
        self.behind.append(expected)
        self._count("behind", **facts, why=said.why)

    def take_declined(self, content: RecordDict, member: Member) -> None:
        """Go on without a client that does not go on with a masked sum; that is its right, and no offence."""
        said = unpack(content, DECLINED, Declined)
        if said.spent:
            self.spent.add(member.client)
        self._count("declined", round=self.round, client=member.client, node=member.node, why=said.why)

    def _take_late(self, delivery: Delivery, member: Member, order: Order) -> None:
        """Keep a late update for the round that it meets, unless it is too old or its client has a newer order."""
        if delivery.message is not None and not delivery.message.has_error() and BEHIND in delivery.message.content:
            member.view = ""
            return
        usable = order.train and member.order == order.token and self.round - order.round <= self.use_late
        if not usable or not self.use_late or delivery.message is None or delivery.message.has_error():
            return
        try:
            self._accept(delivery, delivery.message, member, late=True)
        except MessageError as error:
            self._refuse(member, error, round=order.round, client=order.client, node=member.node)
            return
        self.came_late[member.client] = self.accepted.pop(member.client)

    def add_late(self) -> None:
        """Let late updates take part in the round that ends now; a client's newer update replaces its older one."""
        for client, one in self.came_late.items():
            if client not in self.accepted:
                self.accepted[client] = one
                facts = {"round": self.round, "client": client, "node": self.members[client].node}
                self._count("used_late", **facts, of_round=one.order.round)
        self.came_late = {}

    def _accept(self, delivery: Delivery, message: Message, member: Member, *, late: bool = False) -> None:
        """Use an answer, or raise a `MessageError` that says why it cannot be used; a late test is of an old model."""
        expected = delivery.sent.letter.expected
        assert expected is not None
        answer, device = unpack(message.content, ANSWER, Answer), unpack(message.content, "device", Device)
        check_answer(answer, expected)
        check_claims(answer, device, expected, delivery.waited_s)
        upload = read_update(answer, expected) if expected.order.train else None
        member.device = device
        member.view = expected.order.views[-1] if expected.order.views else ""
        if answer.accuracy is not None and answer.test_loss is not None and expected.order.evaluate and not late:
            self.tested[member.client] = (answer.accuracy, answer.test_loss)
        if answer.store != "kept":
            facts = {"round": expected.order.round, "client": member.client, "node": member.node}
            self.audit.write(f"store_{answer.store}", **facts)
        self._measure(delivery, answer, expected.order, member)
        if upload is None:
            return
        upload_s = max(delivery.arrived_at - answer.sent_at - (member.wait_s or 0.0), SHORTEST_UPLOAD_S)
        size, order = wire_bytes(message.content), expected.order
        self.accepted[member.client] = Accepted(answer, device, upload, order, delivery.waited_s, upload_s, size)
        self._count(
            "accepted",
            round=expected.order.round,
            client=member.client,
            node=member.node,
            bytes=len(answer.frame),
            sha256=digest(answer.frame),
        )

    def _measure(self, delivery: Delivery, answer: Answer, order: Order, member: Member) -> None:
        """Keep what an answer told of the device's link and speed; its own seconds are not the link's."""
        measured, work_s = member.measured, answer.worked_s
        up_s, link_s = delivery.arrived_at - answer.sent_at, max(delivery.waited_s - work_s, 0.0)
        sizes = (float(delivery.sent.letter.base_bytes), float(len(answer.frame)))
        measured.note_passage(Passage(*sizes, link_s, up_s), order.round)
        measured.note_work(ready_s=answer.ready_s, test_s=answer.test_s if order.evaluate else None)
        if order.train and answer.samples:
            measured.note_training(answer.train_s, answer.samples, order.r, order.head_steps)

    def _take_echo(self, delivery: Delivery, client: int, probe: Probe) -> None:
        """Measure a link by a probe; what is not an honest echo, or late, tells nothing and changes nothing."""
        member, message = self.members[client], delivery.message
        facts = {"round": self.round, "client": client, "node": member.node}
        if message is None or message.has_error():
            self._count("probe_lost", **facts, why=_what_went_wrong(message))
            return
        try:
            reply = unpack(message.content, ECHO, Echo)
            check_echo(reply, probe)
        except MessageError as error:
            self._refuse(member, error, **facts)
            return
        link_s = max(delivery.waited_s - reply.work_s, 0.0)
        size, up_s = float(len(probe.pad)), delivery.arrived_at - reply.sent_at
        member.measured.note_passage(Passage(size, float(probe.reply_bytes), link_s, up_s), self.round)
        self._count("probed", **facts, bytes=len(probe.pad), seconds=round(delivery.waited_s, 3))

    def refuse(self, member: Member, error: MessageError) -> None:
        """Count a bad message of a masked sum against its node."""
        self._refuse(member, error, round=self.round, client=member.client, node=member.node)

    def lose(self, member: Member, message: Message | None) -> None:
        """Count a question that was not answered."""
        facts = {"round": self.round, "client": member.client, "node": member.node}
        self._count("lost", **facts, why=_what_went_wrong(message))

    def _refuse(self, member: Member, error: MessageError, **facts: object) -> None:
        """Count a bad answer against its node; too many set the node aside."""
        self._count("refused", **facts, kind=error.kind, why=str(error))
        self.totals[f"refused.{error.kind}"] += 1
        member.offences += 1
        member.reasons = [*member.reasons, error.kind][-self.offences :]
        if member.offences >= self.offences and not member.set_aside:
            member.set_aside = True
            self._count("set_aside", **facts, offences=member.offences, reasons=member.reasons)

    def withdraw(self, offenders: Mapping[int, MessageError]) -> None:
        """Refuse updates of this round that were accepted one by one and do not fit among the others."""
        for client, error in sorted(offenders.items()):
            del self.accepted[client]
            member = self.members[client]
            self._refuse(member, error, round=self.round, client=client, node=member.node)

    def release(self, client: int) -> None:
        """Take back a client that was set aside."""
        member = self.members.by_client.get(client)
        if member is None or not member.set_aside:
            known = [one.client for one in self.members if one.set_aside]
            raise InputError(f"Client {client} is not set aside; those that are: {known or 'none'}.")
        member.set_aside, member.offences, member.reasons = False, 0, []
        self.audit.write("released", client=client, node=member.node)

    def _take_hello(self, delivery: Delivery, node: int, online: set[int]) -> None:
        """Let a node join, unless its client is unknown or taken."""
        message = delivery.message
        if message is None or message.has_error():
            self.members.ask_later(node, delivery.sent.at + delivery.waited_s)
            self._count("lost", node=node, why=_what_went_wrong(message))
            return
        try:
            if DECLINED in message.content:
                self.members.ask_later(node, delivery.sent.at + delivery.waited_s)
                raise MessageError("declined", unpack(message.content, DECLINED, Declined).why)
            hello, device = unpack(message.content, "hello", Hello), unpack(message.content, "device", Device)
            speaks = unpack(message.content, SPEAKS, Speaks) if SPEAKS in message.content else None
            self._refuse_impostor(hello, node, online, delivery.sent.at + delivery.waited_s)
        except MessageError as error:
            self._count("refused", node=node, kind=error.kind, why=str(error))
            return
        up_s = delivery.arrived_at - hello.sent_at
        member = self.members.join(hello, device, node, up_s)
        member.speaks = 1 if speaks is None else min(speaks.version, VERSION)
        if speaks is not None:
            link_s = max(delivery.waited_s - speaks.work_s, 0.0)
            member.measured.note_passage(Passage(0.0, 0.0, link_s, up_s), self.round - 1)
        facts = {"samples": member.samples, "store_round": hello.round, "speaks": member.speaks}
        self._count("joined", node=node, client=member.client, **facts)

    def _refuse_impostor(self, hello: Hello, node: int, online: set[int], now: float) -> None:
        """One client, one node, by its key; a client's node may change only when the old one is gone."""
        self.bindings.check(hello, node)
        if hello.client >= self.clients:
            raise MessageError("unknown-client", f"client {hello.client}, but the settings have {self.clients}")
        known = self.members.by_client.get(hello.client)
        if known is not None and known.node != node and known.node in online:
            self.members.ask_later(node, now)
            raise MessageError("taken", f"client {hello.client} is node {known.node}, which is online")

    def _count(self, event: str, **facts: object) -> None:
        self.counts[event] += 1
        self.totals[event] += 1
        self.audit.write(event, **facts)


def _what_went_wrong(message: Message | None) -> str:
    return "no answer in time" if message is None else str(message.error.reason or message.error.code)
