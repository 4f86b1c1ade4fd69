"""Clients of a masked sum with stores of their own, and a server's questions carried to them as records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict

from leanfed.compression.ring import Grid, unpacked
from leanfed.deployment.learning.messages import MessageError, Order, WireRecord, pack_one, unpack
from leanfed.deployment.learning.store import NodeStore
from leanfed.deployment.masking.answers import QUESTIONS
from leanfed.deployment.masking.identity import Card, Identity
from leanfed.deployment.masking.node import MaskRefusedError, NodeMasks
from leanfed.deployment.masking.rules import Rules
from leanfed.deployment.masking.sums import MaskedRound
from leanfed.records import Ints

RUN = "a" * 32
GRID = Grid.of(32, 16.0)
BASE = "b" * 32


def order_of(client: int, number: int = 0) -> Order:
    """An order to train."""
    values: dict[str, Any] = {"run": RUN, "token": "c" * 32, "round": number, "client": client, "applied": -1}
    values |= {"applied_token": "", "train": True, "evaluate": False, "k": 1.0, "r": 1.0, "share": 1.0}
    return Order.model_validate(values)


@dataclass
class Party:
    """`clients` nodes; `silent` has those that do not answer a question, `changed` what the server makes of one."""

    root: Path
    clients: int
    neighbours: int | None = None
    identities: Mapping[int, Identity] = field(default_factory=dict)
    cards: Mapping[int, Card] = field(default_factory=dict)
    silent: dict[str, set[int]] = field(default_factory=dict)
    changed: Callable[[int, WireRecord], WireRecord] = lambda client, asked: asked
    answered: Callable[[int, WireRecord], WireRecord] = lambda client, told: told
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rules = Rules(5, self.neighbours, GRID, "settings")
        self.nodes: dict[int, NodeMasks] = {}
        for client in range(self.clients):
            store = NodeStore(self.root / f"node-{client}", RUN, client, 5)
            with store.open():
                self.nodes[client] = NodeMasks(store, client, self.rules, self.identities.get(client, Identity()))

    def ask(self, name: str, requests: Mapping[int, Any], read: Callable[[int, RecordDict], Any], *, token: str) -> Any:
        kind, replies, step = QUESTIONS[name]
        found = {}
        for client, request in requests.items():
            if client in self.silent.get(name, ()):
                continue
            asked = unpack(pack_one(name, self.changed(client, request)), name, kind)
            try:
                with self.nodes[client].store.open():
                    told = self.answered(client, step(self.nodes[client], asked))
                found[client] = read(client, pack_one(replies, told))
            except (MaskRefusedError, MessageError) as error:
                self.refused.append(str(error))
        return found

    def sum(self, number: int = 0) -> MaskedRound:
        """A new sum."""
        return MaskedRound(RUN, number, self.rules, self.ask, lambda client: self.cards.get(client, Card()))

    def agreed(self, weights: Mapping[int, float], number: int = 0, entries: int = 4) -> MaskedRound:
        """A sum whose keys and shares are exchanged."""
        sum_ = self.sum(number)
        sum_.agree(weights)
        if sum_.weights:
            sum_.bind(BASE, entries)
        return sum_

    def upload(self, sum_: MaskedRound, client: int, values: Any, base: str = BASE) -> Any:
        """What a client sends."""
        masks = sum_.order_for(client)
        with self.nodes[client].store.open():
            cover = self.nodes[client].prepare(order_of(client, sum_.number), masks, base)
            frame, bound, _ = cover.frame(np.asarray(values))
        assert (bound == sum_.transcript) == (base == BASE)
        return unpacked(frame, len(values), sum_.bits)


def plain(values: Mapping[int, Any], weights: Mapping[int, float], clients: Any) -> Ints:
    """The sum of what these clients would send without masks, in steps of the grid."""
    most = max(weights.values())
    return sum(
        (GRID.rounded(weights[one] / most * np.asarray(values[one], dtype=float))[0] for one in clients), np.int64(0)
    )
