"""Where a node's messages of a masked sum meet its store: questions are answered, updates covered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from leanfed.algorithms.uploads import Upload
from leanfed.deployment.learning.config import NodeConfig, RunConfig, read_settings
from leanfed.deployment.learning.declining import decline
from leanfed.deployment.learning.messages import Declined, MessageError, Order, WireRecord, pack, pack_one, unpack
from leanfed.deployment.learning.store import NodeStore
from leanfed.deployment.masking.identity import Identity
from leanfed.deployment.masking.node import Cover, MaskRefusedError, NodeMasks
from leanfed.deployment.masking.records import (
    KEYS,
    SHARES,
    UNMASKING,
    WANT_KEYS,
    WANT_SHARES,
    WANT_UNMASKING,
    Heading,
    MaskOrder,
    WantKeys,
    WantShares,
    WantUnmasking,
)
from leanfed.deployment.masking.rules import Rules
from leanfed.runs.settings import Settings

QUESTIONS: dict[str, tuple[type[Heading], str, Callable[[NodeMasks, Any], WireRecord]]] = {
    WANT_KEYS: (WantKeys, KEYS, NodeMasks.announce),
    WANT_SHARES: (WantShares, SHARES, NodeMasks.share),
    WANT_UNMASKING: (WantUnmasking, UNMASKING, NodeMasks.unmask),
}


def answer(content: RecordDict, config: RunConfig, node: NodeConfig) -> RecordDict:
    """What a node replies to a question of a masked sum: the next step, or why it does not go on."""
    name = next((name for name in QUESTIONS if name in content), None)
    if name is None:
        raise MessageError("malformed", f"it asks nothing that is known: {sorted(content)[:5]}")
    kind, replies, step = QUESTIONS[name]
    asked, settings = unpack(content, name, kind), read_settings(config.settings)
    rules = Rules.of(settings, config)
    try:
        if rules is None:
            raise MaskRefusedError("the settings of the run have no masked sums")
        with NodeStore(Path(node.store), asked.run, node.client_id, settings.seed).open() as store:
            return pack_one(replies, step(NodeMasks(store, node.client_id, rules, identity_of(node)), asked))
    except MaskRefusedError as error:
        return pack(declined=Declined(why=decline(node, error), spent=error.spent or None))


def identity_of(node: NodeConfig) -> Identity:
    """With the enrolled key where the node has one."""
    return Identity(Path(node.identity) if node.identity else None)


@dataclass(frozen=True)
class Hidden:
    """How an order's update is to be hidden: the run's rules, and what came with the order."""

    config: RunConfig
    masks: MaskOrder | None

    def prepared(self, settings: Settings, order: Order, store: NodeStore, node: NodeConfig, base: str) -> Cover | None:
        """What will cover the update; None where the run sends updates as they are. A masked run sends none so."""
        rules = Rules.of(settings, self.config)
        if rules is None:
            return None
        if self.masks is None:
            raise MaskRefusedError("the run masks its updates, and this order would have one sent as it is")
        return NodeMasks(store, node.client_id, rules, identity_of(node)).prepare(order, self.masks, base)


def covered(cover: Cover, upload: Upload) -> tuple[bytes, str, int]:
    """The masked frame, what its masks are bound to, and how many values were cut to the grid's reach."""
    if upload.positions is not None and not upload.common:
        raise MaskRefusedError("each client chooses its own entries, which cannot be summed under masks")
    frame, bound, cut = cover.frame(upload.cpu().values.numpy())
    return frame, bound.hex(), cut
