"""`deploy server` and `deploy node`: what is started, in which order, and what is checked before."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from leanfed.deployment.operations import commands
from leanfed.deployment.operations import warm_programs as warm
from leanfed.deployment.operations.control import Control, ServerUnreachableError, synchronise
from leanfed.deployment.operations.folder import Bundle, FleetFolder, private_folder
from leanfed.deployment.operations.handshake import (
    RefusedError,
    UnreachableError,
    say_goodbye,
    say_hello,
    wait_for_welcome,
)
from leanfed.deployment.operations.keys import address, check_certificate, expiry
from leanfed.deployment.operations.log_watch import LogWatch
from leanfed.deployment.operations.roster import Roster
from leanfed.deployment.operations.supervise import ChildEndedError, Supervisor
from leanfed.errors import InputError, LeanfedError
from leanfed.files import folder_lock, write_json, write_text

START_S = 120.0  # a busy small machine imports slowly
SOON = timedelta(days=30)
Say = Callable[[str], None]


@dataclass(frozen=True)
class ServerOptions:
    """How the server stands in its network."""

    host: str = "127.0.0.1"
    port: int | None = None  # the fleet's own where None
    max_upload_mb: int = 256
    insecure: bool = False


def run_server(fleet: FleetFolder, options: ServerOptions, say: Say, echo: Say | None = None) -> None:
    """Run SuperLink, its SuperExec and the door until a signal or until one of them ends."""
    port = options.port or fleet.port
    if options.insecure:
        commands.check_loopback(options.host, "--host")
        fleet = replace(fleet, control_port=port)  # no door: nodes call SuperLink itself
    else:
        _check_certificates(fleet, say)
        _check_free(options.host, port, "the door")
    _check_free("127.0.0.1", fleet.control_port, "SuperLink")
    supervisor = Supervisor(fleet.server / "logs", echo)
    with folder_lock(fleet.server), supervisor():
        try:
            control = _start_server(fleet, options, port, supervisor)
            say(_ready(fleet, options, port))
            fleet.audit.write("server started", host=options.host, port=port, insecure=options.insecure or None)
            supervisor.run(_Roster(fleet, control))
        except LeanfedError as error:
            fleet.audit.write("server failed", why=str(error))
            raise
        finally:
            fleet.running.unlink(missing_ok=True)
            fleet.audit.write("server stopped")


def _start_server(fleet: FleetFolder, options: ServerOptions, port: int, supervisor: Supervisor) -> Control | None:
    env = commands.environment(private_folder(fleet.server / "flwr"))
    watch = LogWatch(fleet.audit, "SuperLink, loopback")
    supervisor.start("superlink", commands.superlink(fleet, insecure=options.insecure), env, watch)
    runs = _Warm("warm", private_folder(fleet.server / "warm"), warm.SERVER, wave=1)
    runs.start(supervisor, env)
    control = connect(fleet, insecure=options.insecure)
    supervisor.wait_for(lambda: _answers(control), what="SuperLink", seconds=START_S)
    if not options.insecure:
        synchronise(control, Roster.load(fleet.registry))
    command = commands.server_superexec(fleet, insecure=options.insecure)
    supervisor.start("superexec", command, runs.wait(supervisor, env), wave=1)
    if not options.insecure:
        door = commands.door(fleet, host=options.host, port=port, max_upload_mb=options.max_upload_mb)
        supervisor.start("door", door, env, wave=2)
        supervisor.wait_for(lambda: _listens(options.host, port), what="the door", seconds=START_S)
    running = {"pid": os.getpid(), "host": options.host, "port": port, "control_port": fleet.control_port}
    write_json(fleet.running, running | {"insecure": options.insecure})
    return None if options.insecure else control


@dataclass(frozen=True)
class _Warm:
    """A program of Flower's that is kept in memory."""

    name: str
    folder: Path
    program: str
    wave: int = 0

    def start(self, supervisor: Supervisor, env: Mapping[str, str]) -> None:
        """Begin to load it."""
        (self.folder / warm.SOCKET).unlink(missing_ok=True)  # of a process that was killed
        supervisor.start(self.name, warm.command(self.folder, self.program), env, wave=self.wave)

    def wait(self, supervisor: Supervisor, env: Mapping[str, str]) -> dict[str, str]:
        """Wait until it is loaded; the environment of the SuperExec that is to start it."""
        supervisor.wait_for((self.folder / warm.SOCKET).exists, what=self.name, seconds=START_S)
        return warm.first_in_path(self.folder, self.program, env)


class _Roster:
    """Applies changes of the roster to the running SuperLink; the door reads it by itself."""

    def __init__(self, fleet: FleetFolder, control: Control | None) -> None:
        self.fleet = fleet
        self.control = control
        self.seen = fleet.registry.stat().st_mtime_ns

    def __call__(self) -> None:
        changed = self.fleet.registry.stat().st_mtime_ns
        if self.control is not None and changed != self.seen:
            with suppress(ServerUnreachableError):  # tried again at the next look
                synchronise(self.control, Roster.load(self.fleet.registry))
                self.seen = changed


@dataclass(frozen=True)
class NodeOptions:
    """How a node reaches its server and its data."""

    server: str | None = None  # the bundle's own where None
    port: int | None = None  # of its own API on loopback; a free one where None
    data_dir: Path | None = None
    data: str | None = None
    max_retries: int = 10
    insecure: bool = False
    warm: bool = True  # keep flwr, torch and the data in memory between messages


def join(bundles: Sequence[Bundle], options: NodeOptions, say: Say, echo: Say | None = None) -> None:
    """Run one SuperNode and its SuperExec per bundle until a signal or until one of them ends."""
    if options.port is not None and len(bundles) > 1:
        raise InputError(f"--port is for one node, but {len(bundles)} are given. Leave it out: free ones are chosen.")
    supervisor = Supervisor(bundles[0].path / "logs", echo)
    nodes = [_Node(bundle, options, say) for bundle in bundles]
    with ExitStack() as held:
        for bundle in bundles:
            held.enter_context(folder_lock(bundle.path))
        for node in nodes:
            held.callback(node.leave)
        with supervisor():
            try:
                for step in (_Node.start, _Node.start_executor, _Node.wait):  # together: each takes seconds to start
                    for node in nodes:
                        step(node, supervisor)
                supervisor.run()
            except ChildEndedError:
                for node in nodes:
                    node.explain()
                raise


class _Node:
    """One bundle's SuperNode and SuperExec."""

    def __init__(self, bundle: Bundle, options: NodeOptions, say: Say) -> None:
        self.bundle = bundle
        self.options = options
        self.say = say
        self.server = options.server or bundle.server
        self.port = options.port or _free_port()
        self.watch = LogWatch(bundle.audit, "SuperNode, loopback")
        self.number = bundle.path / "flwr" / "node-id"  # kept for the case that we are killed
        self.warm: _Warm | None = None

    def start(self, supervisor: Supervisor) -> None:
        """Check that server and node fit together, then start SuperNode."""
        options, bundle = self.options, self.bundle
        self._check(supervisor)
        env = commands.environment(private_folder(bundle.path / "flwr"))
        if self.number.exists():
            self.leave(int(self.number.read_text()))
        command = commands.supernode(
            bundle,
            server=self.server,
            port=self.port,
            config=node_values(bundle, options),
            max_retries=options.max_retries,
            insecure=options.insecure,
        )
        supervisor.start(f"{bundle.name}-supernode", command, env, self.watch)
        if options.warm:
            self.warm = _Warm(f"{bundle.name}-warm", private_folder(bundle.path / "warm"), warm.CLIENT)
            self.warm.start(supervisor, env)

    def start_executor(self, supervisor: Supervisor) -> None:
        """Start the SuperExec when SuperNode listens and what it will start is warm."""
        supervisor.wait_for(lambda: _listens("127.0.0.1", self.port), what="SuperNode", seconds=START_S)
        env = commands.QUICK | commands.environment(self.bundle.path / "flwr")
        if self.warm is not None:
            env = self.warm.wait(supervisor, env)
        command = commands.node_superexec(self.bundle, port=self.port)
        supervisor.start(f"{self.bundle.name}-superexec", command, env)

    def wait(self, supervisor: Supervisor) -> None:
        """Wait until the server has let the node in; SuperNode itself gives up after its retries."""
        supervisor.wait_for(lambda: self.watch.node_id is not None, what=self.bundle.name, seconds=3600.0)
        write_text(self.number, str(self.watch.node_id))
        facts = {"server": self.server, "client_id": self.bundle.client_id}
        self.bundle.audit.write("joined", **facts, insecure=self.options.insecure or None)
        self.say(f"{self.bundle.name} (client {self.bundle.client_id}) has joined {self.server}")

    def leave(self, node_id: int | None = None) -> None:
        """Tell the server that the node is gone."""
        node_id = node_id or self.watch.node_id
        if node_id is not None and not self.options.insecure:
            say_goodbye(self.bundle, self.server, node_id)
            self.number.unlink(missing_ok=True)

    def _check(self, supervisor: Supervisor) -> None:
        if self.options.insecure:
            commands.check_loopback(commands.split_address(self.server)[0], "the server")
            return

        def pause(seconds: float) -> None:
            self.say(f"{self.bundle.name}: {self.server} does not answer yet; trying again in {seconds:.0f} s")
            supervisor.sleep(seconds)

        with self._noted():
            wait_for_welcome(self.bundle, self.server, tries=self.options.max_retries, pause=pause)

    def explain(self) -> None:
        """Raise the server's reason where a node ended because it is not welcome any more: SuperNode does not tell."""
        if not self.options.insecure:
            with self._noted(), suppress(OSError):
                say_hello(self.bundle, self.server)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (RefusedError, UnreachableError) as error:
            self.bundle.audit.write("server refused", server=self.server, why=str(error))
            raise


def node_values(bundle: Bundle, options: NodeOptions) -> Mapping[str, commands.Value]:
    """The node-config of a bundle."""
    values: dict[str, commands.Value] = {"client-id": bundle.client_id, "store": str(bundle.path / "store")}
    if options.data_dir is not None:
        values["data-dir"] = str(options.data_dir.resolve())
    return values | ({} if options.data is None else {"data": options.data})


def connect(fleet: FleetFolder, *, insecure: bool, port: int | None = None) -> Control:
    """The control API of a fleet's SuperLink."""
    return Control(address("127.0.0.1", port or fleet.control_port), None if insecure else fleet.ca / "ca.crt")


def _check_certificates(fleet: FleetFolder, say: Say) -> None:
    for certificate in (fleet.ca / "ca.crt", fleet.server / "server.crt"):
        end = expiry(check_certificate(certificate))
        if end - datetime.now(UTC) < SOON:
            say(
                f"note: {certificate.name} ends on {end:%Y-%m-%d}; renew with: leanfed deploy keys FLEET --renew server"
            )


def _check_free(host: str, port: int, what: str) -> None:
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise InputError(
            f"{what} cannot listen on {address(host, port)} ({error.strerror or error}). "
            "Stop what listens there, or choose other ports when making the fleet (leanfed deploy keys --port)."
        ) from error


def _answers(control: Control) -> bool:
    try:
        control.nodes()
    except ServerUnreachableError:
        return False
    return True


def _listens(host: str, port: int) -> bool:
    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        socket.create_connection((target, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _ready(fleet: FleetFolder, options: ServerOptions, port: int) -> str:
    if options.insecure:
        return f"ready, WITHOUT encryption or keys, on 127.0.0.1:{fleet.control_port}; Ctrl-C stops"
    return f"ready: nodes call {address(options.host, port)}; audit log {fleet.audit.path}; Ctrl-C stops"
