"""Before a node starts: does the server answer, is it the right one, does it know our key? If not, say exactly why."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from leanfed.deployment.door.admission import DEACTIVATE, HELLO, signed_headers
from leanfed.deployment.operations.commands import split_address
from leanfed.deployment.operations.folder import Bundle, check_private
from leanfed.deployment.operations.keys import fingerprint
from leanfed.deployment.operations.release import renew_release
from leanfed.errors import InputError, LeanfedError

TIMEOUT_S = 10.0
# OpenSSL's X509_V_ERR_* codes: what the operator should do about each.
FAULTS = {
    9: "is not valid yet: compare the clocks of the two machines",
    10: "has expired: on the server, run `leanfed deploy keys FLEET --renew server` and start it again",
    62: "is for other names: on the server, run `leanfed deploy keys FLEET --host NAME` with the name used here",
    64: "is for other addresses: on the server, run `leanfed deploy keys FLEET --host ADDRESS` with the one used here",
}
STRANGER = (
    "is not from the authority in ca.crt: this is another server, or the fleet was made anew (copy the folder again)"
)


class RefusedError(InputError):
    """Server and node do not fit together; trying again would not help."""


class RevokedError(RefusedError):
    """This key will never be welcome again."""


class UnreachableError(LeanfedError):
    """The server does not answer; another time it may."""


def wait_for_welcome(
    bundle: Bundle, server: str, *, tries: int, pause: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Return when the server says it knows this node; try again only where that can help."""
    for attempt in range(tries + 1):
        try:
            return say_hello(bundle, server)
        except OSError as error:
            last = error
        if attempt < tries:
            pause(min(2.0**attempt, 20.0))
    raise UnreachableError(
        f"{bundle.name} cannot reach the server at {server} ({last}), tried {tries + 1} times. "
        "Is `leanfed deploy server` running there, is the address right, and does the firewall let it through?"
    )


def say_goodbye(bundle: Bundle, server: str, node_id: int) -> None:
    """Tell the server that a node is gone, so that it may come back at once, not only after a minute."""
    body = DeactivateNodeRequest(node_id=node_id).SerializeToString()
    kinds = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    with suppress(OSError, RefusedError):
        _ask(bundle, server, "POST", DEACTIVATE, kinds, body)


def say_hello(bundle: Bundle, server: str) -> dict[str, Any]:
    """Ask once; OSError where the server cannot be reached, RefusedError where it or we are not who we should be.

    A newer signed app that the server offers is taken into the node's folder.
    """
    status, text = _ask(bundle, server, "GET", HELLO)
    if status != 200:
        why, print_of = _detail(text), fingerprint((bundle.path / "node.pub").read_bytes())
        kind = RevokedError if why == "revoked key" else RefusedError
        raise kind(
            f"The server at {server} refused {bundle.name}: {why or status}. Its key is {print_of}; "
            "compare it with `leanfed deploy keys FLEET` on the server."
        )
    welcome = _json(text)
    known = welcome.get("client_id", bundle.client_id)
    if known != bundle.client_id:
        raise RefusedError(
            f"node.json says client {bundle.client_id}, but on {server} the key of {bundle.name} is client {known}'s. "
            "A number belongs to a key: copy the node's folder from the server again."
        )
    if welcome.get("release") and (release := renew_release(bundle.path, welcome["release"])) is not None:
        bundle.audit.write("app changed", app=release.app, version=release.version, signed=release.signed)
    return welcome


def _ask(
    bundle: Bundle, server: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    """One signed request to the door: status and body of its answer."""
    host, port = split_address(server)
    key = check_private(bundle.path / "node.key")
    trust = ssl.create_default_context(cafile=str(bundle.path / "ca.crt"))
    connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=trust)
    try:
        connection.request(method, path, body or None, {**signed_headers(key), **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read(65536)
    except ssl.SSLCertVerificationError as error:
        fault = FAULTS.get(error.verify_code, STRANGER)
        raise RefusedError(f"The certificate of {server} {fault} ({error.verify_message}).") from error
    except ssl.SSLError as error:
        raise RefusedError(f"{server} does not speak TLS as it should ({error.reason or error}).") from error
    except http.client.HTTPException as error:
        raise RefusedError(f"{server} is no leanfed server ({type(error).__name__}).") from error
    finally:
        connection.close()


def _detail(text: bytes) -> str:
    return str(_json(text).get("detail", "")).removeprefix("refused: ")


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
