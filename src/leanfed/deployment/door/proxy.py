"""The fleet's door: the only port that nodes reach. It ends TLS, lets known keys through to SuperLink's fleet API on
loopback, and logs every refusal with its reason.

SuperLink serves the fleet, control and runtime APIs on one port, and its control API is not authenticated. So
SuperLink listens on loopback, and this small reverse proxy stands on the fleet's network.

It is not an ASGI application because servers such as uvicorn call an application only after a valid request head. What
goes wrong earlier never reaches it, and with it the audit log's reason and peer: `said nothing`, `plain text, not TLS`,
every failed handshake (asyncio drops the TLS error inside `create_server(ssl=...)`: an old TLS, a client that trusts
another authority or finds our certificate expired) and `not HTTP` (answered 400 by the server itself). Nor does uvicorn
limit the time of a request's head and body, or close surplus connections before their handshake: it answers 503 after.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import h11
import httpx

from leanfed.deployment.door.admission import ACTIVATE, DEACTIVATE, HELLO, Gate, Refusal
from leanfed.deployment.door.audit import Audit, Refusals
from leanfed.deployment.operations.keys import address
from leanfed.deployment.operations.roster import RegisteredNode
from leanfed.files import read_json

FIRST_BYTE_S, HANDSHAKE_S, IDLE_S = 10.0, 10.0, 90.0
CONNECTIONS = 1000  # open at once; beyond it, new ones are closed
FORWARDED = ("content-type", "content-length", "accept", "accept-encoding", "user-agent")
RETURNED = ("content-type", "content-length", "content-encoding")
CHUNK = 65536
TLS_HANDSHAKE = 0x16  # first byte of every TLS connection


@dataclass(frozen=True)
class DoorSettings:
    """Where the door stands and what lies behind it."""

    host: str
    port: int
    superlink: str  # https://127.0.0.1:port
    certificate: Path
    key: Path
    authority: Path
    registry: Path
    audit: Path
    max_body_bytes: int
    release: Path | None = None  # the signed app, handed to nodes that say hello


class Door:
    """A TLS server in front of SuperLink's fleet API."""

    def __init__(self, settings: DoorSettings) -> None:
        self.settings = settings
        self.gate = Gate(settings.registry, settings.max_body_bytes)
        self.audit = Audit(settings.audit)
        self.refusals = Refusals(self.audit)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self.tls.load_cert_chain(settings.certificate, settings.key)
        trust = ssl.create_default_context(cafile=str(settings.authority))
        # trust_env=False: a proxy in the environment must not see what is meant for loopback.
        self.superlink = httpx.AsyncClient(
            base_url=settings.superlink,
            verify=trust,
            trust_env=False,
            timeout=httpx.Timeout(60.0, connect=5.0),
            limits=httpx.Limits(max_connections=200, max_keepalive_connections=50),
        )
        self._open: set[asyncio.Task[None]] = set()
        self._seen: dict[str, float] = {}  # node -> when its SuperNode last called, by the steady clock

    async def run(self) -> None:
        """Take connections until cancelled."""
        listener = _listener(self.settings.host, self.settings.port)
        loop = asyncio.get_running_loop()
        self.audit.write("door opened", address=address(*listener.getsockname()[:2]))
        try:
            while True:
                connection, peer = await loop.sock_accept(listener)
                if len(self._open) >= CONNECTIONS:
                    self.refusals.write("too many connections", peer[0])
                    connection.close()
                    continue
                task = asyncio.create_task(self._admit(connection, peer[0]))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
        finally:
            listener.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await self.superlink.aclose()

    async def _admit(self, connection: socket.socket, peer: str) -> None:
        """Look at the first byte, shake hands, then answer requests."""
        connection.setblocking(False)
        try:
            first = await asyncio.wait_for(_peek(connection), FIRST_BYTE_S)
        except (TimeoutError, OSError):
            self.refusals.write("said nothing", peer)
            connection.close()
            return
        if first[:1] != bytes([TLS_HANDSHAKE]):
            if first:  # nothing at all: a health check of the port
                self.refusals.write("plain text, not TLS", peer, began=first.decode("latin-1"))
            connection.close()
            return
        try:
            reader, writer = await _shake_hands(connection, self.tls)
        except (ssl.SSLError, OSError, TimeoutError) as error:
            self.refusals.write(_handshake_fault(error), peer)
            connection.close()
            return
        with contextlib.suppress(OSError, TimeoutError):
            await self._converse(reader, writer, peer)
        writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """Answer one request after the other on a connection."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=32768)
        while True:
            try:
                event = await _next(http, reader)
                if not isinstance(event, h11.Request):
                    return
                await self._answer(http, reader, writer, event, peer)
            except h11.RemoteProtocolError as error:
                self.refusals.write("not HTTP", peer, detail=str(error))
                return
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return  # the rest of an unread body is not waited for
            http.start_next_cycle()

    async def _answer(
        self,
        http: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request: h11.Request,
        peer: str,
    ) -> None:
        path = request.target.decode("latin-1")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        verdict = self.gate.judge(path, headers)
        if isinstance(verdict, Refusal):
            fields = {"status": verdict.status, "key": verdict.key, "node": verdict.node, "detail": verdict.detail}
            self.refusals.write(verdict.why, peer, path=path, **fields)
            await _reply(http, writer, verdict.status, {"detail": f"refused: {verdict.why}"})
        elif path == HELLO:
            await _drain(http, reader)
            await _reply(http, writer, 200, self._welcome(verdict))
        else:
            self._seen[verdict.name] = time.monotonic()
            await self._forward(http, reader, writer, request, headers, verdict, peer)

    def _welcome(self, node: RegisteredNode) -> dict[str, object]:
        """Who the node is, how long ago its SuperNode called, and which app it is to run."""
        seen, release = self._seen.get(node.name), self.settings.release
        return {
            "node": node.name,
            "client_id": node.client_id,
            "seen_s": None if seen is None else round(time.monotonic() - seen, 1),
            "release": read_json(release) if release is not None and release.is_file() else None,
        }

    async def _forward(
        self,
        http: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request: h11.Request,
        headers: dict[str, str],
        node: RegisteredNode,
        peer: str,
    ) -> None:
        """Pass a request to SuperLink and its answer back, a piece at a time."""
        path = request.target.decode("latin-1")
        kept = {name: text for name, text in headers.items() if name in FORWARDED or _is_node_header(name)}
        body = _body(http, reader, self.settings.max_body_bytes)
        try:
            outgoing = self.superlink.build_request(request.method.decode(), path, headers=kept, content=body)
            answer = await self.superlink.send(outgoing, stream=True)
        except TooLong as error:
            self.refusals.write("body larger than allowed", peer, path=path, node=node.name, detail=str(error))
            await _reply(http, writer, 413, {"detail": "refused: body larger than allowed"})
            return
        except httpx.HTTPError as error:
            # 503 is what a node tries again after; it goes on when SuperLink is back.
            self.refusals.write(
                "SuperLink does not answer", peer, path=path, node=node.name, fault=type(error).__name__
            )
            await _reply(http, writer, 503, {"detail": "SuperLink does not answer; try again"})
            return
        try:
            status = self._note(path, answer.status_code, node, peer)
            returned = [(name, text) for name, text in answer.headers.items() if name in RETURNED]
            await _send(http, writer, h11.Response(status_code=status, headers=returned))
            async for piece in answer.aiter_raw(CHUNK):
                await _send(http, writer, h11.Data(data=piece))
            await _send(http, writer, h11.EndOfMessage())
        finally:
            await answer.aclose()

    def _note(self, path: str, status: int, node: RegisteredNode, peer: str) -> int:
        """Log what SuperLink's answer means; returns the status to pass on."""
        who = {"node": node.name, "client_id": node.client_id, "peer": peer}
        if status == 200 and path == ACTIVATE:
            self.audit.write("joined", key=node.fingerprint, **who)
        elif status == 200 and path == DEACTIVATE:
            self.audit.write("left", **who)
        elif status == 412 and path == ACTIVATE:
            # A node that was killed counts as online for up to a minute; its return is welcome, only later.
            self.refusals.write("still counted as online: it must try again", peer, node=node.name)
            return 503
        elif status == 403:
            self.refusals.write("late: the run has ended", peer, path=path, node=node.name)
        elif status >= 400 and path != DEACTIVATE:  # who is gone already need not leave
            self.refusals.write(f"SuperLink answered {status}", peer, path=path, node=node.name, status=status)
        return status


class TooLong(Exception):
    """A body grew beyond what is allowed."""


async def _body(http: h11.Connection, reader: asyncio.StreamReader, most: int) -> AsyncIterator[bytes]:
    """The request's body, piece by piece, no longer than `most` bytes."""
    received = 0
    while True:
        event = await _next(http, reader)
        if not isinstance(event, h11.Data):
            return
        received += len(event.data)
        if received > most:
            raise TooLong(f"sent more than the {most} bytes allowed")
        yield bytes(event.data)


async def _next(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Event | type[h11.PAUSED]:
    """The next event of the peer's side."""
    while True:
        event = http.next_event()
        if event is not h11.NEED_DATA:
            return event  # type: ignore[return-value]
        http.receive_data(await asyncio.wait_for(reader.read(CHUNK), IDLE_S))


async def _drain(http: h11.Connection, reader: asyncio.StreamReader) -> None:
    async for _ in _body(http, reader, CHUNK):
        pass


async def _reply(http: h11.Connection, writer: asyncio.StreamWriter, status: int, value: dict[str, object]) -> None:
    """Answer with a small JSON object."""
    if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    text = json.dumps(value).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(text)))]
    headers += [] if http.their_state is h11.DONE else [("connection", "close")]
    await _send(http, writer, h11.Response(status_code=status, headers=headers))
    await _send(http, writer, h11.Data(data=text))
    await _send(http, writer, h11.EndOfMessage())


async def _send(http: h11.Connection, writer: asyncio.StreamWriter, event: h11.Event) -> None:
    writer.write(http.send(event) or b"")
    await asyncio.wait_for(writer.drain(), IDLE_S)


async def _peek(connection: socket.socket) -> bytes:
    """The first bytes of a connection, left where they are."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _mark, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
    return connection.recv(16, socket.MSG_PEEK)


def _mark(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _shake_hands(
    connection: socket.socket, tls: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """TLS on an accepted connection; what goes wrong is raised here."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK * 2)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _handshake_fault(error: Exception) -> str:
    """Why no TLS connection came about, in words."""
    reason = getattr(error, "reason", None) or ""
    known = {
        "CERTIFICATE_EXPIRED": "the client refused our certificate: it has expired",
        "UNKNOWN_CA": "the client refused our certificate: it trusts another authority",
        "CERTIFICATE_UNKNOWN": "the client refused our certificate",
        "BAD_CERTIFICATE": "the client refused our certificate",
        "UNSUPPORTED_PROTOCOL": "the client speaks a TLS that is too old",
    }
    for part, why in known.items():
        if part in reason:
            return why
    return f"TLS handshake failed: {reason or error or type(error).__name__}"


def _is_node_header(name: str) -> bool:
    """Headers of flwr's nodes; those by which a SuperExec proves itself have no business on this side."""
    return name.startswith("flwr-") and not name.startswith("flwr-superexec")


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=256)
    listener.setblocking(False)
    return listener


async def _run(settings: DoorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(Door(settings).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> None:
    """Run the door in a process of its own: python -m leanfed.deployment.door.proxy --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--superlink", required=True)
    for name in ("--port", "--max-body-bytes"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--certificate", "--key", "--authority", "--registry", "--audit"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--release", type=Path)
    asyncio.run(_run(DoorSettings(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
