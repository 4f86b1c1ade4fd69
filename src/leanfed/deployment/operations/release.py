"""The one app that a fleet's nodes run: its digest, signed by the fleet's authority and checked on every node.

The authority's certificate is on a node since its enrolment, so a new app needs no visit: the owner signs it
(`deploy keys --roll-out`), the door hands out the signature, and nodes take it where it is newer than theirs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from leanfed.errors import InputError
from leanfed.files import read_json, write_json

RELEASE = "app.json"  # on the server and in every node's folder
FIELDS = ("app", "version", "signed", "signature")


@dataclass(frozen=True)
class Release:
    """What the owner signed: the app's digest, its version and when."""

    app: str  # SHA-256 of the archive that Flower ships
    version: str
    signed: str
    signature: str  # base64

    @classmethod
    def sign(cls, archive: bytes, version: str, authority: ec.EllipticCurvePrivateKey) -> Release:
        """Sign an app's archive."""
        app, now = hashlib.sha256(archive).hexdigest(), datetime.now(UTC).isoformat()
        signature = authority.sign(_message(app, version, now), ec.ECDSA(hashes.SHA384()))
        return cls(app, version, now, base64.b64encode(signature).decode())

    @classmethod
    def read(cls, values: Any) -> Release:
        """A release from plain values; InputError where they are none."""
        try:
            return cls(**{name: str(values[name]) for name in FIELDS})
        except (KeyError, TypeError) as error:
            raise InputError(f"A signed app needs {', '.join(FIELDS)}; this one has no {error}.") from error

    @classmethod
    def load(cls, folder: Path) -> Release | None:
        """The release in a folder, if there is one."""
        path = folder / RELEASE
        return cls.read(read_json(path)) if path.is_file() else None

    def save(self, folder: Path) -> None:
        """Write it to a folder."""
        write_json(folder / RELEASE, asdict(self))

    def fault(self, authority: Path) -> str | None:
        """Why this is not to be believed, or None; `authority` is the certificate to check it by."""
        key = x509.load_pem_x509_certificate(authority.read_bytes()).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return "the authority's key is not elliptic"
        try:
            signature = base64.b64decode(self.signature, validate=True)
            key.verify(signature, _message(self.app, self.version, self.signed), ec.ECDSA(hashes.SHA384()))
        except (InvalidSignature, ValueError, binascii.Error):
            return "the fleet's authority did not sign it"
        return None


def renew_release(folder: Path, offered: Any) -> Release | None:
    """Take an offered release into a node's folder where it is signed and newer; returns it if so."""
    release, present = Release.read(offered), Release.load(folder)
    if present is not None and present.signed >= release.signed:  # an old app cannot be brought back
        return None
    if release.fault(folder / "ca.crt") is not None:
        return None
    release.save(folder)
    return release


def _message(app: str, version: str, signed: str) -> bytes:
    return "\n".join(("leanfed app", app, version, signed)).encode()
