"""The fleet's door, on a real socket before a stand-in for SuperLink: who passes, and what is written of the rest."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from leanfed.deployment.door import admission as gate
from leanfed.deployment.door.proxy import Door, DoorSettings
from leanfed.deployment.operations import keys
from leanfed.deployment.operations.folder import Bundle, FleetFolder
from leanfed.deployment.operations.handshake import (
    RefusedError,
    UnreachableError,
    say_goodbye,
    say_hello,
    wait_for_welcome,
)

LIMIT = 4_000_000
PULL = "/v1/fleet/pull-messages"


@dataclass
class SuperLink:
    """A stand-in that remembers what it was asked and answers as told."""

    status: int = 200
    answer: bytes = b"answer"
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@dataclass
class Scene:
    fleet: FleetFolder
    superlink: SuperLink
    server: str
    door: Door

    def ask(
        self, path: str, headers: dict[str, str] | None = None, body: bytes = b"", *, trust: Path | None = None
    ) -> tuple[int, bytes]:
        host, port = self.server.split(":")
        context = ssl.create_default_context(cafile=str(trust or self.fleet.ca / "ca.crt"))
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
        try:
            connection.request("POST", path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def signed(self, name: str = "edge-0", **changes: str) -> dict[str, str]:
        return gate.signed_headers(self.fleet.bundle(name) / "node.key") | changes

    def bundle(self, name: str = "edge-0") -> Bundle:
        return Bundle.open(self.fleet.bundle(name))

    def refusals(self, expected: int = 0) -> list[str]:
        """Why strangers were refused; a line may be written a moment after they noticed."""
        deadline = time.monotonic() + 30
        while True:
            found = [row["why"] for row in self.fleet.audit.read() if row["event"] == "refused"]
            if len(found) >= expected or time.monotonic() > deadline:
                return found
            time.sleep(0.05)


def _stand_in(fleet: FleetFolder, superlink: SuperLink) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            if "chunked" in self.headers.get("transfer-encoding", ""):
                body = b"".join(iter(self._chunk, b""))
            else:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
            superlink.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(superlink.status)
            self.send_header("content-length", str(len(superlink.answer)))
            self.end_headers()
            self.wfile.write(superlink.answer)

        def _chunk(self) -> bytes:
            size = int(self.rfile.readline(), 16)
            data = self.rfile.read(size)
            self.rfile.readline()
            return data

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that goes away in the middle is part of the tests

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fleet.server / "server.crt", fleet.server / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _open_door(
    fleet: FleetFolder, superlink_port: int
) -> tuple[Door, str, threading.Thread, asyncio.AbstractEventLoop]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = DoorSettings(
        host="127.0.0.1",
        port=port,
        superlink=f"https://127.0.0.1:{superlink_port}",
        certificate=fleet.server / "server.crt",
        key=fleet.server / "server.key",
        authority=fleet.ca / "ca.crt",
        registry=fleet.registry,
        audit=fleet.audit.path,
        max_body_bytes=LIMIT,
    )
    loop = asyncio.new_event_loop()
    door = Door(settings)
    door.refusals.quiet_s = 0  # every refusal is looked at

    def serve() -> None:
        task = loop.create_task(door.run())
        loop.stop_door = task.cancel  # type: ignore[attr-defined]
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            threading.Event().wait(0.02)
    return door, f"127.0.0.1:{port}", thread, loop


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FleetFolder:
    return keys.make_fleet(tmp_path_factory.mktemp("at") / "fleet", nodes=["edge-0", "edge-1", "edge-2"])


@pytest.fixture
def scene(made: FleetFolder) -> Iterator[Scene]:
    made.audit.path.unlink(missing_ok=True)
    before = made.registry.read_bytes()
    superlink = SuperLink()
    behind = _stand_in(made, superlink)
    door, server, thread, loop = _open_door(made, behind.server_address[1])
    yield Scene(made, superlink, server, door)
    loop.call_soon_threadsafe(loop.stop_door)  # type: ignore[attr-defined]
    thread.join(10)
    behind.shutdown()
    behind.server_close()
    made.registry.write_bytes(before)


def test_a_known_node_passes_and_both_bodies_arrive_whole(scene: Scene) -> None:
    scene.superlink.answer = bytes(range(256)) * 4000  # a megabyte, down
    sent = bytes(reversed(range(256))) * 12000  # three, up
    headers = scene.signed() | {"content-type": "application/protobuf", "x-other": "1", "flwr-superexec-ts": "1"}
    assert scene.ask(PULL, headers, sent) == (200, scene.superlink.answer)
    ((path, seen, body),) = scene.superlink.asked
    assert (path, body) == (PULL, sent)
    assert seen["flwr-public-key"] == headers["flwr-public-key"]
    assert not {"x-other", "flwr-superexec-ts"} & set(seen)
    assert scene.refusals() == []


def test_one_connection_serves_many_requests(scene: Scene) -> None:
    host, port = scene.server.split(":")
    context = ssl.create_default_context(cafile=str(scene.fleet.ca / "ca.crt"))
    connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    for _ in range(3):
        connection.request("POST", PULL, b"x", scene.signed())
        assert connection.getresponse().read() == b"answer"
    connection.close()
    assert len(scene.superlink.asked) == 3


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/v1/control/start-run", 404, "call to the control API"),
        ("/v1/control/register-node", 404, "call to the control API"),
        ("/v1/runtime/acquire-task", 404, "call to the runtime API"),
        ("/v1/fleet/register-node", 404, "no key of this fleet: tried to register itself"),
        ("/docs", 404, "unknown path"),
        (f"{PULL}?x=1", 404, "unknown path"),
        (f"{PULL}/../../control/start-run", 404, "unknown path"),
    ],
)
def test_only_the_fleet_api_is_behind_the_door(scene: Scene, path: str, status: int, why: str) -> None:
    assert scene.ask(path, scene.signed())[0] == status  # a good key opens no other path
    assert scene.refusals() == [why]
    assert scene.superlink.asked == []


def test_strangers_are_refused_by_name_of_the_fault(scene: Scene, tmp_path: Path) -> None:
    stranger = keys.make_fleet(tmp_path / "other", nodes=["edge-0"])
    foreign = gate.signed_headers(stranger.bundle("edge-0") / "node.key")
    stolen = scene.signed() | {gate.SIGNATURE: foreign[gate.SIGNATURE], gate.TIME: foreign[gate.TIME]}
    old = gate.signed_headers(scene.fleet.bundle("edge-0") / "node.key", datetime.now(UTC) - timedelta(seconds=400))
    cases = {
        "no key": {},
        "unreadable key": scene.signed(**{gate.KEY: base64.b64encode(b"-----BEGIN nothing").decode()}),
        "unknown key": foreign,
        "wrong signature": stolen,
        "stale signature: the clocks differ, or it is a replay": old,
    }
    for headers in cases.values():
        assert scene.ask(PULL, headers)[0] == 401
    assert scene.refusals() == list(cases)
    assert scene.superlink.asked == []


def test_a_revoked_key_is_refused_from_then_on(scene: Scene) -> None:
    headers = scene.signed("edge-1")
    assert scene.ask(PULL, headers)[0] == 200
    keys.revoke_node(scene.fleet, "edge-1")
    assert scene.ask(PULL, headers)[0] == 401
    assert scene.ask(PULL, scene.signed("edge-0"))[0] == 200
    assert scene.refusals() == ["revoked key"]


def test_an_expired_key_is_refused_until_it_is_renewed(scene: Scene) -> None:
    keys.renew(scene.fleet, "edge-2", -1)
    assert scene.ask(PULL, scene.signed("edge-2"))[0] == 401
    keys.renew(scene.fleet, "edge-2", 1)
    assert scene.ask(PULL, scene.signed("edge-2"))[0] == 200
    assert scene.refusals() == ["expired key"]


def test_ten_gigabytes_are_refused_before_they_are_sent(scene: Scene) -> None:
    status, _ = scene.ask("/v1/fleet/push-object", scene.signed() | {"content-length": str(10**10)})
    assert status == 413
    assert scene.refusals() == ["body larger than allowed"]


def test_a_body_that_does_not_say_its_length_is_cut_off(scene: Scene) -> None:
    host, port = scene.server.split(":")
    context = ssl.create_default_context(cafile=str(scene.fleet.ca / "ca.crt"))
    with socket.create_connection((host, int(port)), 20) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
        head = "".join(f"{name}: {text}\r\n" for name, text in scene.signed().items())
        tls.sendall(f"POST {PULL} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n{head}\r\n".encode())
        piece = b"%x\r\n%s\r\n" % (500_000, b"x" * 500_000)
        with pytest.raises(OSError):
            for _ in range(200):  # 100 MB, where 4 are allowed
                tls.sendall(piece)
            tls.recv(1)
            raise OSError("it read everything")  # only reached where the door took it all
    assert "body larger than allowed" in scene.refusals()


def test_plain_text_and_noise_are_refused(scene: Scene) -> None:
    host, port = scene.server.split(":")
    for words in (b"GET / HTTP/1.1\r\n\r\n", bytes([0x16]) + bytes(range(200)), b"\x00" * 50):
        with socket.create_connection((host, int(port)), 20) as raw:
            raw.sendall(words)
            try:
                while raw.recv(100):
                    pass
            except ConnectionResetError:
                pass
    first, second, third = scene.refusals(3)
    assert first == third == "plain text, not TLS"
    assert second.startswith("TLS handshake failed")
    assert scene.ask(PULL, scene.signed())[0] == 200  # unharmed


def test_noise_inside_tls_is_refused(scene: Scene) -> None:
    host, port = scene.server.split(":")
    context = ssl.create_default_context(cafile=str(scene.fleet.ca / "ca.crt"))
    with socket.create_connection((host, int(port)), 20) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
        tls.sendall(bytes(range(256)) * 10)
        assert tls.recv(100) == b""
    assert scene.refusals(1) == ["not HTTP"]


def test_a_client_that_trusts_another_authority_goes_away(scene: Scene, tmp_path: Path) -> None:
    other = keys.make_fleet(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        scene.ask(PULL, scene.signed(), trust=other.ca / "ca.crt")
    assert scene.refusals(1) == ["the client refused our certificate: it trusts another authority"]


def test_joining_and_leaving_are_written_down(scene: Scene) -> None:
    scene.ask(gate.ACTIVATE, scene.signed())
    scene.ask(gate.DEACTIVATE, scene.signed())
    rows = [row for row in scene.fleet.audit.read() if row["event"] in ("joined", "left")]
    assert [(row["event"], row["node"], row["client_id"], row["peer"]) for row in rows] == [
        ("joined", "edge-0", 0, "127.0.0.1"),
        ("left", "edge-0", 0, "127.0.0.1"),
    ]


def test_a_killed_node_that_returns_early_is_asked_to_wait_not_to_go(scene: Scene) -> None:
    scene.superlink.status = 412  # SuperLink still counts it as online
    assert scene.ask(gate.ACTIVATE, scene.signed())[0] == 503
    assert scene.ask(PULL, scene.signed())[0] == 412


def test_without_superlink_nodes_are_told_to_try_again(made: FleetFolder) -> None:
    made.audit.path.unlink(missing_ok=True)
    door, server, thread, loop = _open_door(made, 9)  # nobody listens there
    scene = Scene(made, SuperLink(), server, door)
    assert scene.ask(PULL, scene.signed())[0] == 503
    assert scene.refusals() == ["SuperLink does not answer"]
    loop.call_soon_threadsafe(loop.stop_door)  # type: ignore[attr-defined]
    thread.join(10)


def test_hello_says_welcome_or_exactly_why_not(scene: Scene) -> None:
    say_hello(scene.bundle("edge-0"), scene.server)
    keys.revoke_node(scene.fleet, "edge-0")
    with pytest.raises(RefusedError, match="refused edge-0: revoked key.*SHA256:"):
        say_hello(scene.bundle("edge-0"), scene.server)
    assert scene.superlink.asked == []


def test_goodbye_reaches_superlink(scene: Scene) -> None:
    say_goodbye(scene.bundle(), scene.server, 77)
    ((path, headers, body),) = scene.superlink.asked
    assert path == gate.DEACTIVATE
    assert PROTOBUF_REQUEST_TYPES["POST", path].FromString(body).node_id == 77
    assert headers["content-type"] == "application/protobuf"


def test_a_node_will_not_talk_to_an_expired_or_foreign_server(scene: Scene, tmp_path: Path) -> None:
    late = keys.make_fleet(tmp_path / "late", nodes=["edge-0"])
    keys.issue_server(late, days=-1)
    _, server, thread, loop = _open_door(late, 9)
    bundle = Bundle.open(late.bundle("edge-0"))
    with pytest.raises(RefusedError, match="has expired.*--renew server"):
        say_hello(bundle, server)
    with pytest.raises(RefusedError, match="another server"):
        say_hello(bundle, scene.server)
    loop.call_soon_threadsafe(loop.stop_door)  # type: ignore[attr-defined]
    thread.join(10)
    (row,) = [row for row in late.audit.read() if row["event"] == "refused"]
    assert row["why"] == "the client refused our certificate: it has expired"


def test_a_server_that_is_not_there_is_tried_again_then_named(made: FleetFolder) -> None:
    pauses: list[float] = []
    with pytest.raises(UnreachableError, match="cannot reach the server at 127.0.0.1:9 .* 4 times"):
        wait_for_welcome(Bundle.open(made.bundle("edge-0")), "127.0.0.1:9", tries=3, pause=pauses.append)
    assert pauses == [1.0, 2.0, 4.0]


def test_what_the_door_believes_of_flower_is_so() -> None:
    assert (gate.KEY, gate.TIME, gate.SIGNATURE) == (
        FLEET_HTTP_PUBLIC_KEY_HEADER,
        TIMESTAMP_HEADER,
        FLEET_HTTP_SIGNATURE_HEADER,
    )
    assert (gate.OLDEST_S, gate.NEWEST_S) == (TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE, -SYSTEM_TIME_TOLERANCE)
    fleet_paths = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    closed = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert fleet_paths - closed == gate.PATHS - {gate.HELLO}


def test_the_answer_to_a_refusal_is_json(scene: Scene) -> None:
    status, text = scene.ask(PULL)
    assert (status, json.loads(text)) == (401, {"detail": "refused: no key"})
