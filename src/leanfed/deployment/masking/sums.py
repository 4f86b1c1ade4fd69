"""The server's part in a masked sum: it carries messages between clients that it cannot read, and sees the total."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from flwr.app import RecordDict

from leanfed.compression.ring import Ring, centred, wrapped
from leanfed.deployment.learning.messages import MessageError, WireRecord, unpack
from leanfed.deployment.masking.graph import LEAST, Graph, graph_of, holders, threshold, why_too_few, why_unfair
from leanfed.deployment.masking.identity import Card
from leanfed.deployment.masking.records import (
    KEYS,
    SHARES,
    UNMASKING,
    WANT_KEYS,
    WANT_SHARES,
    WANT_UNMASKING,
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
    add_mask,
    digest,
    own_key,
    pair_key,
    private_key,
    public_bytes,
    public_key,
    rebuilt,
    sign_of,
)
from leanfed.errors import LeanfedError
from leanfed.records import Floats, Ints

T = TypeVar("T")


class Ask(Protocol):
    """Puts a question to clients and returns what could be read of the answers that came in time."""

    def __call__(
        self, name: str, requests: Mapping[int, WireRecord], read: Callable[[int, RecordDict], T], *, token: str
    ) -> dict[int, T]:
        """client -> what `read` made of its answer."""
        ...


class GivenUpError(LeanfedError):
    """Shares were sent, yet the sum cannot be unmasked: nothing is applied, and the round is not tried again."""


@dataclass
class MaskedRound:
    """One sum, from the clients' keys to the total."""

    run: str
    number: int
    rules: Rules
    ask: Ask
    card: Callable[[int], Card]  # of a client
    token: str = field(default_factory=lambda: os.urandom(16).hex())
    keys: dict[int, Keys] = field(default_factory=dict)
    graph: Graph = field(default_factory=dict)
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)  # from -> to -> shares
    weights: dict[int, float] = field(default_factory=dict)  # of those that have shared
    transcript: bytes = b""
    bits: int = 0

    def agree(self, weights: Mapping[int, float]) -> None:
        """Collect keys, then shares; `self.weights` has the clients that can be asked to upload, maybe none."""
        wanted = {one: WantKeys.under(self._heading(one)) for one in weights}
        self.keys = self.ask(WANT_KEYS, wanted, self._read_keys, token=self.token)
        if len(self.keys) < LEAST:
            return
        self.graph = graph_of(self.keys, self.rules.neighbours, self.rules.seed, self.number)
        requests = {one: self._want_shares(one) for one in self.keys}
        self.sealed = self.ask(WANT_SHARES, requests, self._read_shares, token=self.token)
        most = max(weights.values())
        there = self._whose_secrets_can_be_rebuilt(set(self.sealed))
        self.weights = {one: weights[one] / most for one in sorted(there)}

    def _heading(self, client: int) -> Heading:
        return Heading(run=self.run, token=self.token, round=self.number, client=client)

    def _read_keys(self, client: int, content: RecordDict) -> Keys:
        keys = unpack(content, KEYS, Keys)
        keys.check(self._heading(client))
        for point in (keys.cipher, keys.mask):
            try:
                public_key(point)
            except ValueError:
                raise MessageError("malformed", "it announces a key that is not on the curve") from None
        return keys

    def _want_shares(self, client: int) -> WantShares:
        near = self.graph[client]
        keys, cards = [self.keys[one] for one in near], [self.card(one) for one in near]
        return WantShares.under(
            self._heading(client),
            clients=sorted(self.keys),
            neighbours=list(near),
            ciphers=[one.cipher for one in keys],
            masks=[one.mask for one in keys],
            seeds=[one.seed for one in keys],
            signatures=[one.signature for one in keys],
            names=[one.name for one in cards],
            public_keys=[one.public_key for one in cards],
            cards=[one.signature for one in cards],
        )

    def _read_shares(self, client: int, content: RecordDict) -> dict[int, bytes]:
        shares = unpack(content, SHARES, Shares)
        shares.check(self._heading(client))
        if tuple(sorted(shares.to)) != self.graph[client] or len(shares.sealed) != len(shares.to):
            raise MessageError("malformed", f"its shares are for {sorted(shares.to)[:9]}, not for its neighbours")
        return dict(zip(shares.to, shares.sealed, strict=True))

    def _whose_secrets_can_be_rebuilt(self, there: set[int]) -> set[int]:
        """Without those of whose neighbours too few are left, and then those who have too few without them."""
        while True:
            kept = {one for one in there if len(there & set(holders(one, self.graph))) >= self._least(one)}
            if kept == there:
                return kept
            there = kept

    def _least(self, client: int) -> int:
        return threshold(len(self.graph[client]))

    # Uploads

    def bind(self, base: str, entries: int) -> None:
        """Fix what the masks are bound to, before the orders go out."""
        self.bits = ring_of(len(self.weights), self.rules.grid)
        order, said = self._order(()), self._heading(0)
        settings, grid = self.rules.settings, self.rules.grid
        self.transcript = transcript_of(said, order, grid, settings=settings, base=base, entries=entries)

    def order_for(self, client: int) -> MaskOrder:
        """What goes with a client's order."""
        return self._order([one for one in self.graph[client] if one in self.weights], client)

    def _order(self, senders: tuple[int, ...] | list[int], client: int = 0) -> MaskOrder:
        return MaskOrder(
            token=self.token,
            clients=list(self.weights),
            weights=list(self.weights.values()),
            senders=list(senders),
            sealed=[self.sealed[one][client] for one in senders],
        )

    def why_not(self, survivors: set[int]) -> str | None:
        """Why the sum of these uploads cannot be unmasked, or must not be; nothing has been shown until then."""
        if (why := why_too_few(survivors, self.weights, self.graph)) is not None:
            return why
        return why_unfair([self.weights[one] for one in sorted(survivors)])

    # The total

    def mean(self, uploads: Mapping[int, Ring]) -> Floats:
        """sum of a_n v_n / sum of a_n (entries,) over the uploads, of the values as they were rounded."""
        return self.rules.grid.values(self.total(uploads)) / sum(self.weights[one] for one in sorted(uploads))

    def total(self, uploads: Mapping[int, Ring]) -> Ints:
        """The sum of the whole numbers that were masked; raises `GivenUpError` where shares are missing or wrong."""
        survivors, dropped = sorted(uploads), sorted(set(self.weights) - set(uploads))
        wanted = {
            one: WantUnmasking.under(self._heading(one), survivors=survivors, dropped=dropped) for one in survivors
        }
        answers = self.ask(WANT_UNMASKING, wanted, self._read_unmasking, token=self.token)
        shares: dict[int, list[bytes]] = {one: [] for one in self.weights}
        for answer in answers.values():
            for one, share in answer.items():
                shares[one].append(share)
        total = np.zeros(len(next(iter(uploads.values()))), dtype=np.uint64)
        for one in survivors:
            total += uploads[one]
            add_mask(total, own_key(self._seed(one, shares[one]), self.transcript), -1)
        for one in dropped:
            mask = private_key(self._mask_key(one, shares[one]))
            for other in (near for near in self.graph[one] if near in uploads):
                key = pair_key(mask, self.keys[other].mask, self.transcript)
                add_mask(total, key, -sign_of(other, one))
        return centred(wrapped(total, self.bits), self.bits)

    def _read_unmasking(self, client: int, content: RecordDict) -> dict[int, bytes]:
        told = unpack(content, UNMASKING, Unmasking)
        told.check(self._heading(client))
        known = {one for one in holders(client, self.graph) if one in self.weights}
        if set(told.of) != known or not len(told.of) == len(told.shares) == len(known):
            raise MessageError("malformed", f"it sends shares of {told.of[:9]}, not of those that it holds")
        return dict(zip(told.of, told.shares, strict=True))

    def _seed(self, client: int, shares: list[bytes]) -> bytes:
        return self._rebuilt(client, shares, lambda seed: digest(seed) == self.keys[client].seed)

    def _mask_key(self, client: int, shares: list[bytes]) -> bytes:
        return self._rebuilt(client, shares, lambda key: public_bytes(private_key(key)) == self.keys[client].mask)

    def _rebuilt(self, client: int, shares: list[bytes], fits: Callable[[bytes], bool]) -> bytes:
        least = self._least(client)
        if len(shares) < least:
            raise GivenUpError(f"{len(shares)} shares of client {client} came, and {least} rebuild its mask")
        if (found := rebuilt(shares, least, lambda secret: _holds(fits, secret))) is None:
            raise GivenUpError(f"the shares of client {client} do not rebuild its mask: some of them are wrong")
        return found


def _holds(fits: Callable[[bytes], bool], secret: bytes) -> bool:
    """Whether a secret fits; numbers that are no key do not."""
    try:
        return fits(secret)
    except ValueError:
        return False
