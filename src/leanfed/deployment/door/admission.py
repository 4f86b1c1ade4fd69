"""Who may pass the fleet's door: a known path, a known key, a fresh signature. Pure decisions, no sockets."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from leanfed.deployment.operations.keys import fingerprint
from leanfed.deployment.operations.roster import RegisteredNode, Roster

HELLO = "/leanfed/hello"  # answered by the door itself: may this key join?
ACTIVATE = "/v1/fleet/activate-node"
DEACTIVATE = "/v1/fleet/deactivate-node"
# What a registered node needs of SuperLink. Everything else that SuperLink serves on its one port (control and runtime
# APIs, self-registration, documentation) is not reachable through the door.
PATHS = {
    *(HELLO, ACTIVATE, DEACTIVATE),
    *("/v1/fleet/send-node-heartbeat", "/v1/fleet/confirm-message-received", "/v1/fleet/get-run", "/v1/fleet/get-fab"),
    *("/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/pull-object", "/v1/fleet/push-object"),
}
KEY, TIME, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"  # headers that flwr's nodes send
OLDEST_S, NEWEST_S = 305.0, -5.0  # age of a signed time that Flower accepts


@dataclass(frozen=True)
class Refusal:
    """What is answered (status) and written to the audit log (why)."""

    status: int
    why: str
    key: str | None = None
    node: str | None = None
    detail: str | None = None  # what differs from case to case; `why` stays the same, so that repeats are recognised


class Gate:
    """Decides by the roster, which is read again when it changes."""

    def __init__(self, registry: Path, max_body_bytes: int) -> None:
        self.registry = registry
        self.max_body_bytes = max_body_bytes
        self._read_at = -1
        self._roster = Roster()

    def judge(self, path: str, headers: Mapping[str, str]) -> RegisteredNode | Refusal:
        """The node that may do this, or why the request is refused."""
        if path not in PATHS:
            return Refusal(404, _why_closed(path))
        size = headers.get("content-length", "0")
        if not size.isdigit() or int(size) > self.max_body_bytes:
            return Refusal(413, "body larger than allowed", detail=f"{size[:40]} bytes, allowed {self.max_body_bytes}")
        return self._who(headers)

    def _who(self, headers: Mapping[str, str]) -> RegisteredNode | Refusal:
        """The node whose key signed a fresh time."""
        if KEY not in headers:
            return Refusal(401, "no key")
        try:
            pem = base64.b64decode(headers[KEY], validate=True)
            key = fingerprint(pem)
        except (ValueError, TypeError, binascii.Error):
            return Refusal(401, "unreadable key")
        node = self.roster().find(key)
        if node is None:
            return Refusal(401, "unknown key", key)
        why, detail = node.refusal(), None
        if why is None:
            why, detail = _signature_fault(pem, headers)
        return node if why is None else Refusal(401, why, key, node.name, detail)

    def roster(self) -> Roster:
        """The roster as it is on disk."""
        changed = self.registry.stat().st_mtime_ns
        if changed != self._read_at:
            self._roster, self._read_at = Roster.load(self.registry), changed
        return self._roster


def signed_headers(private_key: Path, now: datetime | None = None) -> dict[str, str]:
    """The headers by which a node with this key proves itself, as flwr makes them."""
    key = serialization.load_ssh_private_key(private_key.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key")
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    moment = (now or datetime.now(UTC)).isoformat()
    signature = key.sign(moment.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    return {KEY: base64.b64encode(public).decode(), TIME: moment, SIGNATURE: base64.b64encode(signature).decode()}


def _signature_fault(pem: bytes, headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Why the signature does not count, or None; and the detail."""
    key = serialization.load_pem_public_key(pem)
    moment = headers.get(TIME, "")
    try:
        age = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return "unreadable key", None
        key.verify(
            base64.b64decode(headers.get(SIGNATURE, ""), validate=True), moment.encode(), ec.ECDSA(hashes.SHA256())
        )
    except (ValueError, TypeError, binascii.Error, InvalidSignature):
        return "wrong signature", None
    if NEWEST_S < age < OLDEST_S:
        return None, None
    return "stale signature: the clocks differ, or it is a replay", f"signed {age:.0f} s ago"


def _why_closed(path: str) -> str:
    """What a stranger asked for, in words."""
    if path.startswith("/v1/runtime/"):
        return "call to the runtime API"
    if path.startswith("/v1/control/"):
        return "call to the control API"
    if path == "/v1/fleet/register-node":
        return "no key of this fleet: tried to register itself"
    return "unknown path"
