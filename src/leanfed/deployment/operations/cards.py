"""Cards: the authority's word that a key belongs to a client's number, which nodes can check of one another.

The roster is the server's alone; a card makes one line of it something that a node need not take from the server.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec


def sign_card(name: str, client_id: int, public_key: str, authority: ec.EllipticCurvePrivateKey) -> str:
    """The authority's signature (base64) of a node's name, number and public key in OpenSSH's form."""
    signature = authority.sign(_message(name, client_id, public_key), ec.ECDSA(hashes.SHA384()))
    return base64.b64encode(signature).decode()


def card_fault(name: str, client_id: int, public_key: str, card: str, authority: Path) -> str | None:
    """Why a card is not to be believed, or None; `authority` is the certificate to check it by."""
    key = x509.load_pem_x509_certificate(authority.read_bytes()).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return "the authority's key is not elliptic"
    try:
        signature = base64.b64decode(card, validate=True)
        key.verify(signature, _message(name, client_id, public_key), ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError, binascii.Error):
        return "the fleet's authority did not sign it"
    return None


def _message(name: str, client_id: int, public_key: str) -> bytes:
    return "\n".join(("leanfed node", name, str(client_id), public_key)).encode()
