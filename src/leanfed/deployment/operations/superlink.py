"""flower-superlink whose control API takes calls with the owner's secret only, and writes every run to the audit log.

python -m leanfed.deployment.operations.superlink SECRET AUDIT ARGUMENTS...

As shipped (1.41.0), whoever reaches the port may start a run: code of its own, as the server's user and on all nodes.
"""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from leanfed.deployment.door.audit import Audit, Refusals

HEADER = "leanfed-control"
SECRET = "control.secret"
CONTROL = "/v1/control/"
START = CONTROL + "start-run"
OUTSIDE = "call to the control API without the owner's secret"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class ControlGuard:
    """An ASGI layer before SuperLink: 401 to calls of the control API without the secret."""

    def __init__(self, app: Application, secret: bytes, audit: Audit) -> None:
        self.app = app
        self.secret = secret
        self.audit = audit
        self.refusals = Refusals(audit)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:  # noqa: D102 - ASGI's one call
        if scope["type"] != "http" or not scope["path"].startswith(CONTROL):
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER.encode(), b"")
        if not hmac.compare_digest(given, self.secret):
            peer = (scope.get("client") or ("unknown",))[0]
            self.refusals.write(OUTSIDE, peer, path=scope["path"], status=401)
            await _refuse(send)
            return
        await self.app(scope, receive, send)


class Extension:
    """Flower's hook for extensions of SuperLink."""

    def __init__(self, secret: bytes, audit: Audit) -> None:
        self.secret = secret
        self.audit = audit

    def get_middleware(self) -> tuple[Any, ...]:
        """What stands before everything that SuperLink serves."""
        from starlette.middleware import Middleware

        return (Middleware(ControlGuard, self.secret, self.audit),)

    def on_run_started(self, run: Any, source: Any) -> None:
        """Flower tells of every run that it has taken, whoever asked for it."""
        self.audit.write("run taken", run_id=run.run_id, app=run.fab_hash)


async def _refuse(send: Send) -> None:
    text = json.dumps({"detail": f"refused: {OUTSIDE}"}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def main() -> None:
    """Take secret and audit log off the arguments, then be flower-superlink."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink

    secret, audit = Path(sys.argv.pop(1)).read_bytes().strip(), Audit(sys.argv.pop(1))
    extension = Extension(secret, audit)
    extensions._try_import_sgxt = lambda: extension  # type: ignore[assignment, return-value]
    flower_superlink()


if __name__ == "__main__":
    main()
