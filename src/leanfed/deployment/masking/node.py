"""A node's part in masked sums. What it must remember between messages is in its store, until it has unmasked.

It refuses whatever would show a single update: fewer than three summands, keys that nobody it trusts has signed, a
second masking under the same keys, both kinds of shares of one client, too few survivors, or a second sum of the same
round from the same base.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from leanfed.compression.ring import packed, wrapped
from leanfed.deployment.learning.messages import Order
from leanfed.deployment.learning.store import NodeStore
from leanfed.deployment.masking.graph import LEAST, graph_of, holders, threshold, why_too_few, why_unfair
from leanfed.deployment.masking.identity import Card, Identity
from leanfed.deployment.masking.records import (
    Heading,
    Keys,
    MaskOrder,
    Shares,
    Unmasking,
    WantKeys,
    WantShares,
    WantUnmasking,
    ring_of,
    transcript_of,
)
from leanfed.deployment.masking.rules import Rules
from leanfed.deployment.masking.secrets import (
    Secrets,
    add_mask,
    digest,
    own_key,
    pair_key,
    private_bytes,
    public_bytes,
    seal,
    sign_of,
    split,
    unseal,
)
from leanfed.errors import InputError
from leanfed.records import Floats

MOST_MARKS: Final = 10_000  # sums that a node remembers to have unmasked, in one run


class MaskRefusedError(InputError):
    """A node does not go on with a masked sum; `spent`: it has unmasked this round's sum already."""

    def __init__(self, why: str, *, spent: bool = False) -> None:
        super().__init__(why)
        self.spent = spent


@dataclass(frozen=True)
class NodeMasks:
    """One client's masks in the opened store of one run."""

    store: NodeStore
    client: int
    rules: Rules
    identity: Identity

    def announce(self, asked: WantKeys) -> Keys:
        """Draw secrets for a sum; those of an earlier one that was never unmasked are forgotten."""
        self._check_client(asked.client)
        secrets = Secrets.drawn()
        keys = Keys.under(
            asked,
            cipher=public_bytes(secrets.cipher),
            mask=public_bytes(secrets.mask),
            seed=digest(secrets.seed),
            signature=b"",
        )
        state = {"token": asked.token, "round": asked.round, "stage": "keys", "secrets": secrets.texts()}
        self.store.keep_masks(state)
        return self.identity.sign(keys)

    def share(self, asked: WantShares) -> Shares:
        """Split the secrets among the neighbours, whose keys are checked first."""
        state = self._state(asked, "keys")
        with _as_refusal():
            keys = self._checked(asked)
        graph = graph_of(asked.clients, self.rules.neighbours, self.rules.seed, asked.round)
        secrets, who = Secrets.read(state["secrets"]), holders(self.client, graph)
        least = threshold(len(who) - 1)
        halves = (split(part, least, len(who)) for part in (secrets.seed, private_bytes(secrets.mask)))
        parts = dict(zip(who, zip(*halves, strict=True), strict=True))
        with _as_refusal():
            sealed = {
                one: seal(secrets.cipher, keys[one].cipher, self.client, one, parts[one]) for one in graph[self.client]
            }
        self.store.keep_masks(
            state
            | {"stage": "shares", "clients": asked.clients, "own": [part.hex() for part in parts[self.client]]}
            | {"keys": {str(one): [keys[one].cipher.hex(), keys[one].mask.hex()] for one in keys}}
        )
        return Shares.under(asked, to=list(sealed), sealed=list(sealed.values()))

    def _checked(self, asked: WantShares) -> dict[int, Keys]:
        """The neighbours' keys; refuses too few clients, neighbours that are not the graph's, and keys of others."""
        if len(set(asked.clients)) != len(asked.clients) or self.client not in asked.clients:
            raise MaskRefusedError(f"client {self.client} is not once among the clients of the sum")
        if len(asked.clients) < LEAST:
            raise MaskRefusedError(f"{len(asked.clients)} clients, and {LEAST} are the least that a sum hides")
        graph = graph_of(asked.clients, self.rules.neighbours, self.rules.seed, asked.round)
        keys = asked.keys()
        if tuple(sorted(keys)) != graph[self.client]:
            raise MaskRefusedError(f"its neighbours are {list(graph[self.client])}, and keys came of {sorted(keys)}")
        cards = zip(asked.neighbours, asked.names, asked.public_keys, asked.cards, strict=True)
        for one, *card in cards:
            if (fault := self.identity.fault(keys[one], Card(*card))) is not None:
                raise MaskRefusedError(f"the keys of client {one} are not believed: {fault}")
        return keys

    def prepare(self, order: Order, masks: MaskOrder, base: str) -> Cover:
        """Everything that masking needs, checked before training; `base` names the base that is trained on."""
        state = self._state(_heading_of(order, masks), "shares")
        if (mark := f"{order.round}:{base}") in self.store.unmasked():
            raise MaskRefusedError(f"it has unmasked a sum of round {order.round} from this base before", spent=True)
        self._check_order(masks, state)
        graph = graph_of(state["clients"], self.rules.neighbours, self.rules.seed, order.round)
        secrets, held = Secrets.read(state["secrets"]), {str(self.client): state["own"]}
        with _as_refusal():
            for one, sealed in zip(masks.senders, masks.sealed, strict=True):
                cipher = bytes.fromhex(state["keys"][str(one)][0])
                found = unseal(secrets.cipher, cipher, one, self.client, sealed)
                held[str(one)] = [part.hex() for part in found]
        there = [one for one in graph[self.client] if one in set(masks.clients)]
        if sorted(map(str, there)) != sorted(held.keys() - {str(self.client)}):
            raise MaskRefusedError("the shares that came are not those of its neighbours in the sum")
        if (why := why_too_few(masks.clients, masks.clients, graph)) is not None:
            raise MaskRefusedError(why)
        after = {**state, "stage": "upload", "held": held, "summed": masks.clients, "weights": masks.weights}
        return Cover(self, order, masks, base, secrets, tuple(there), {**after, "mark": mark})

    def _check_order(self, masks: MaskOrder, state: dict[str, Any]) -> None:
        if not {self.client} <= set(masks.clients) <= set(state["clients"]):
            raise MaskRefusedError("the clients of the sum are not among those that announced keys")
        if len(set(masks.clients)) != len(masks.clients) or len(masks.weights) != len(masks.clients):
            raise MaskRefusedError("the sum needs every client once, and a weight for each")
        if (why := why_unfair(masks.weights)) is not None:
            raise MaskRefusedError(f"the sum would show an update: {why}")

    def unmask(self, asked: WantUnmasking) -> Unmasking:
        """One share for each client whose secrets this one holds. The secrets are forgotten before the answer goes."""
        state = self._state(asked, "upload")
        survivors, dropped, summed = set(asked.survivors), set(asked.dropped), set(state["summed"])
        if both := survivors & dropped:
            raise MaskRefusedError(f"both kinds of shares are asked of client {min(both)}; each shows half of a mask")
        if survivors | dropped != summed or len(asked.survivors) != len(survivors):
            raise MaskRefusedError("survivors and dropped are not together the clients of the sum")
        if self.client not in survivors:
            raise MaskRefusedError(f"client {self.client} has uploaded, and is named as dropped")
        graph = graph_of(state["clients"], self.rules.neighbours, self.rules.seed, asked.round)
        if (why := why_too_few(survivors, summed, graph)) is not None:
            raise MaskRefusedError(why)
        weights = dict(zip(state["summed"], state["weights"], strict=True))
        if (why := why_unfair([weights[one] for one in sorted(survivors)])) is not None:
            raise MaskRefusedError(f"the sum would show an update: {why}")
        of = sorted(map(int, state["held"]))
        shares = [bytes.fromhex(state["held"][str(one)][0 if one in survivors else 1]) for one in of]
        self.store.note_unmasked(state["mark"], MOST_MARKS)
        return Unmasking.under(asked, of=of, shares=shares)

    def _state(self, asked: Heading, stage: str) -> dict[str, Any]:
        """What the store holds of this sum; refuses a message that does not come next."""
        self._check_client(asked.client)
        state = self.store.masks()
        if (state.get("token"), state.get("round")) != (asked.token, asked.round):
            raise MaskRefusedError(f"it has no secrets of this sum of round {asked.round}, or has unmasked it")
        if state["stage"] != stage:
            raise MaskRefusedError(f"this sum of round {asked.round} is at '{state['stage']}', not at '{stage}'")
        return state

    def _check_client(self, client: int) -> None:
        if client != self.client:
            raise MaskRefusedError(f"this is client {self.client}, not {client}")


@dataclass(frozen=True)
class Cover:
    """What hides one update."""

    masks: NodeMasks
    order: Order
    said: MaskOrder
    base: str
    secrets: Secrets
    neighbours: tuple[int, ...]  # that take part in the sum
    after: dict[str, Any]  # what the store holds from then on

    def frame(self, values: Floats) -> tuple[bytes, bytes, int]:
        """The masked values, what their masks are bound to, and how many values were cut to the grid.

        y = round(a v / step) + own mask + sum over neighbours of +- pair mask, modulo 2^bits; a is the client's weight.
        """
        client, grid = self.masks.client, self.masks.rules.grid
        weight = dict(zip(self.said.clients, self.said.weights, strict=True))[client]
        whole, cut = grid.rounded(weight * values.astype("float64"))
        bits, settings = ring_of(len(self.said.clients), grid), self.masks.rules.settings
        heading = _heading_of(self.order, self.said)
        bound = transcript_of(heading, self.said, grid, settings=settings, base=self.base, entries=len(whole))
        self.masks.store.keep_masks(self.after)  # before anything is sent: these keys mask nothing else
        numbers = wrapped(whole, 64)
        add_mask(numbers, own_key(self.secrets.seed, bound))
        for one in self.neighbours:
            other = bytes.fromhex(self.after["keys"][str(one)][1])
            add_mask(numbers, pair_key(self.secrets.mask, other, bound), sign_of(client, one))
        return packed(wrapped(numbers, bits), bits), bound, cut


def _heading_of(order: Order, masks: MaskOrder) -> Heading:
    return Heading(run=order.run, token=masks.token, round=order.round, client=order.client)


@contextmanager
def _as_refusal() -> Iterator[None]:
    """A message that cannot be read is refused in words."""
    try:
        yield
    except (ValueError, KeyError) as error:
        raise MaskRefusedError(f"a message of the sum cannot be used: {error}") from error
