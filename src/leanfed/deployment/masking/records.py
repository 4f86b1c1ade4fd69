"""The messages of a masked sum. Both sides check every field as if it were hostile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Final, Self

from pydantic import Field

from leanfed.compression.ring import Grid
from leanfed.deployment.learning.messages import MessageError, WireRecord
from leanfed.wireless.masking import MaskedSum

# Names of the records: what the server asks, what a node answers, and what goes with an order.
WANT_KEYS, KEYS, WANT_SHARES, SHARES, WANT_UNMASKING, UNMASKING = (
    *("want-keys", "keys", "want-shares", "shares"),
    *("want-unmasking", "unmasking"),
)
MASKS: Final = "masks"
MOST = 10_000  # clients of one sum
Client = Annotated[int, Field(ge=0)]
Clients = Annotated[list[Client], Field(max_length=MOST)]
Point = Annotated[bytes, Field(min_length=49, max_length=49)]
Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
Short = Annotated[bytes, Field(max_length=1_000)]
Many = Field(max_length=MOST)


class Heading(WireRecord):
    """What every message of a sum repeats, so that none is taken for one of another sum."""

    run: str
    token: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Drawn for this sum."""
    round: int = Field(ge=0)
    client: Client

    @classmethod
    def under(cls, heading: Heading, **fields: object) -> Self:
        """A message of the same sum, from or for the same client."""
        same = {name: getattr(heading, name) for name in Heading.model_fields}
        return cls.model_validate({**same, **fields})

    def check(self, asked: Heading) -> None:
        """Refuse an answer to another question."""
        if any(getattr(self, name) != getattr(asked, name) for name in Heading.model_fields):
            raise MessageError("replayed", "it answers for another client, or another sum")


class WantKeys(Heading):
    """The server opens a sum."""


class Keys(Heading):
    """The public halves of a client's secrets, as compressed points, and a digest of its seed."""

    cipher: Point
    mask: Point
    seed: Digest
    signature: Short
    """By the key that the node was enrolled with; empty without one."""

    def signed(self) -> bytes:
        """What the signature is of."""
        return _canonical("leanfed masks", *self.model_dump(exclude={"protocol", "signature"}).values())


class WantShares(Heading):
    """Everybody's number, and the neighbours' keys as they announced them; lists go by `neighbours`."""

    clients: Clients
    neighbours: Clients
    ciphers: Annotated[list[Point], Many]
    masks: Annotated[list[Point], Many]
    seeds: Annotated[list[Digest], Many]
    signatures: Annotated[list[Short], Many]
    names: Annotated[list[str], Many]
    public_keys: Annotated[list[str], Many]
    """Of the enrolled nodes, in OpenSSH's form, and the authority's signatures of them; empty without."""
    cards: Annotated[list[str], Many]

    def keys(self) -> dict[int, Keys]:
        """neighbour -> what it announced."""
        columns = zip(self.neighbours, self.ciphers, self.masks, self.seeds, self.signatures, strict=True)
        return {
            one: Keys.under(
                self.model_copy(update={"client": one}), cipher=cipher, mask=mask, seed=seed, signature=signature
            )
            for one, cipher, mask, seed, signature in columns
        }


class Shares(Heading):
    """Shares of a client's secrets, sealed for its neighbours."""

    to: Clients
    sealed: Annotated[list[Short], Many]


class MaskOrder(WireRecord):
    """Beside an order to train: who sums, with what weights, and the shares that the neighbours sent this client."""

    token: str = Field(pattern=r"^[0-9a-f]{32}$")
    clients: Clients
    """All that have shared their secrets."""
    weights: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Many]
    """Of their updates, relative to the largest."""
    senders: Clients
    sealed: Annotated[list[Short], Many]


class WantUnmasking(Heading):
    """Who has uploaded and who has not: together all clients of the `MaskOrder`."""

    survivors: Clients
    dropped: Clients


class Unmasking(Heading):
    """A share for each client whose secrets this one holds: of the seed of a survivor, of the mask key of another."""

    of: Clients
    shares: Annotated[list[Short], Many]


def ring_of(clients: int, grid: Grid) -> int:
    """Bits of a masked value, so that the sum of so many cannot overflow."""
    return MaskedSum.of(clients, None, grid.value_bits).ring_bits


def transcript_of(heading: Heading, order: MaskOrder, grid: Grid, *, settings: str, base: str, entries: int) -> bytes:
    """What masks are bound to: clients who were told different things, bases among them, have masks that do not cancel.

    `base` names the base by its values; `settings` is the text that all nodes of a run get.
    """
    said = (heading.run, order.token, heading.round, order.clients, [one.hex() for one in order.weights])
    what = (grid.value_bits, grid.reach.hex(), hashlib.sha256(settings.encode()).hexdigest(), base, entries)
    return hashlib.sha256(_canonical("leanfed sum", *said, *what)).digest()


def _canonical(*parts: str | int | bytes | Sequence[object]) -> bytes:
    return json.dumps([part.hex() if isinstance(part, bytes) else part for part in parts]).encode()
