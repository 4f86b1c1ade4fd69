"""Whose keys these are: a node signs what it announces, and its neighbours check that by their own authority."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from leanfed.deployment.masking.records import Keys
from leanfed.deployment.operations.cards import card_fault
from leanfed.deployment.operations.folder import check_private
from leanfed.errors import InputError

HASH = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class Card:
    """A node as its authority enrolled it; empty for virtual nodes and with --insecure."""

    name: str = ""
    public_key: str = ""
    signature: str = ""


@dataclass(frozen=True)
class Identity:
    """A node's folder with `node.key` and `ca.crt`; None: it signs nothing and believes the server."""

    folder: Path | None = None

    def sign(self, keys: Keys) -> Keys:
        """The announcement with its signature."""
        if self.folder is None:
            return keys
        key = load_ssh_private_key(check_private(self.folder / "node.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(f"{self.folder / 'node.key'} is not an elliptic-curve key. Restore the enrolled one.")
        return keys.model_copy(update={"signature": key.sign(keys.signed(), HASH)})

    def fault(self, keys: Keys, card: Card) -> str | None:
        """Why a neighbour's announcement is not to be believed, or None."""
        if self.folder is None:
            return None
        if not card.signature:
            return "it has no card; the fleet's owner signs one with: leanfed deploy keys FLEET --roll-out"
        whose = (card.name, keys.client, card.public_key, card.signature)
        if (fault := card_fault(*whose, self.folder / "ca.crt")) is not None:
            return fault
        key = load_ssh_public_key(card.public_key.encode())
        try:
            assert isinstance(key, ec.EllipticCurvePublicKey)  # the authority signs no others
            key.verify(keys.signature, keys.signed(), HASH)
        except InvalidSignature:
            return "its keys are not signed by the enrolled node"
        return None
