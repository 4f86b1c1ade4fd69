"""`deploy server`: what is started, in which order, what is checked before, and what is kept running."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from leanfed.deployment.operations import commands
from leanfed.deployment.operations import warm_programs as warm
from leanfed.deployment.operations.backoff import Backoff
from leanfed.deployment.operations.control import Control, ServerUnreachableError, synchronise
from leanfed.deployment.operations.folder import FleetFolder, private_folder
from leanfed.deployment.operations.keys import address, check_certificate, expiry, prepare_old
from leanfed.deployment.operations.log_watch import LogWatch
from leanfed.deployment.operations.ports import check_free, listens
from leanfed.deployment.operations.roster import Roster
from leanfed.deployment.operations.run_keeper import RunKeeper, running_server
from leanfed.deployment.operations.supervise import ChildEndedError, Supervisor
from leanfed.deployment.operations.warm_child import WarmChild
from leanfed.errors import LeanfedError, first_line
from leanfed.files import write_json
from leanfed.locks import folder_lock

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
    keep_runs: bool = True  # go on with a run that ended before its last round


class CertificateRenewedError(LeanfedError):
    """The server's certificate has changed; its processes must read it anew."""


def run_server(fleet: FleetFolder, options: ServerOptions, say: Say, echo: Say | None = None) -> None:
    """Run SuperLink, its SuperExec and the door until a signal; what ends by itself is started again."""
    port = options.port or fleet.port
    prepare_old(fleet)
    if options.insecure:
        commands.check_loopback(options.host, "--host")
        fleet = replace(fleet, control_port=port)  # no door: nodes call SuperLink itself
    else:
        _check_certificates(fleet, say)
        check_free(options.host, port, "the door")
    check_free("127.0.0.1", fleet.control_port, "SuperLink")
    supervisor = Supervisor(fleet.server / "logs", echo)
    with folder_lock(fleet.server), supervisor():
        try:
            _Server(fleet, options, port, supervisor, say).keep()
        except LeanfedError as error:
            fleet.audit.write("server failed", why=str(error))
            raise
        finally:
            fleet.running.unlink(missing_ok=True)
            fleet.audit.write("server stopped")


@dataclass
class _Server:
    """The server's processes, kept running."""

    fleet: FleetFolder
    options: ServerOptions
    port: int
    supervisor: Supervisor
    say: Say
    ready: bool = False  # ever

    def keep(self) -> None:
        """Start everything, watch, and start everything again where one of it ended."""
        backoff = Backoff(most_s=30.0)
        while True:
            try:
                self._serve()
            except CertificateRenewedError as error:
                self.say(str(error))
            except LeanfedError as error:
                if not self.ready or not isinstance(error, ChildEndedError | ServerUnreachableError):
                    raise
                pause = backoff.next()
                self.fleet.audit.write("server failed", why=str(error))
                self.say(f"{first_line(error)} Starts again in {pause:.0f} s.")
                self.supervisor.stop()
                self.supervisor.sleep(pause)
            self.supervisor.stop()

    def _serve(self) -> None:
        control = self._start()
        self.say(_ready(self.fleet, self.options, self.port))
        facts = {"host": self.options.host, "port": self.port, "insecure": self.options.insecure or None}
        self.fleet.audit.write("server started", **facts)
        self.ready = True
        self.supervisor.run(_Tick(self.fleet, self.options, control, self.say))

    def _start(self) -> Control:
        """Start SuperLink, SuperExec and door, each when the one before it answers."""
        fleet, options, supervisor = self.fleet, self.options, self.supervisor
        env = commands.environment(private_folder(fleet.server / "flwr"))
        watch = LogWatch(fleet.audit, "SuperLink, loopback")
        supervisor.start("superlink", commands.superlink(fleet, insecure=options.insecure), env, watch)
        runs = WarmChild("warm", private_folder(fleet.server / "warm"), warm.SERVER, wave=1)
        runs.start(supervisor, env)
        control = connect(fleet, insecure=options.insecure)
        supervisor.wait_for(lambda: _answers(control), what="SuperLink", seconds=START_S)
        if not options.insecure:
            synchronise(control, fleet, Roster.load(fleet.registry))
        command = commands.server_superexec(fleet, insecure=options.insecure)
        supervisor.start("superexec", command, runs.wait(supervisor, env, START_S), wave=1)
        if not options.insecure:
            door = commands.door(fleet, host=options.host, port=self.port, max_upload_mb=options.max_upload_mb)
            supervisor.start("door", door, env, wave=2)
            supervisor.wait_for(lambda: listens(options.host, self.port), what="the door", seconds=START_S)
        running = {"pid": os.getpid(), "host": options.host, "port": self.port, "control_port": fleet.control_port}
        write_json(fleet.running, running | {"insecure": options.insecure, "keep_runs": options.keep_runs})
        return control


class _Tick:
    """Once a second: the roster's changes go to SuperLink, a new certificate is noticed, runs are kept going."""

    def __init__(self, fleet: FleetFolder, options: ServerOptions, control: Control, say: Say) -> None:
        self.fleet = fleet
        self.secure = not options.insecure
        self.control = control
        self.runs = RunKeeper(fleet, control, say) if options.keep_runs else None
        self.seen = _changed(fleet.registry)
        self.certificate = _changed(fleet.server / "server.crt")

    def __call__(self) -> None:
        changed = _changed(self.fleet.registry)
        if self.secure and changed != self.seen:
            with suppress(ServerUnreachableError):  # tried again at the next look
                synchronise(self.control, self.fleet, Roster.load(self.fleet.registry))
                self.seen = changed
        if self.secure and _changed(self.fleet.server / "server.crt") != self.certificate:
            raise CertificateRenewedError("The server's certificate is new: its processes start again.")
        if self.runs is not None:
            self.runs.look()


def connect(fleet: FleetFolder, *, insecure: bool, port: int | None = None) -> Control:
    """The control API of a fleet's SuperLink."""
    where, trust = address("127.0.0.1", port or fleet.control_port), None if insecure else fleet.ca / "ca.crt"
    return Control(where, trust, fleet.server / "control.secret")


def open_control(fleet: FleetFolder) -> Control:
    """The control API of the server that runs in this folder."""
    running = running_server(fleet)
    return connect(fleet, insecure=bool(running["insecure"]), port=int(running["control_port"]))


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _check_certificates(fleet: FleetFolder, say: Say) -> None:
    for certificate in (fleet.ca / "ca.crt", fleet.server / "server.crt"):
        end = expiry(check_certificate(certificate))
        if end - datetime.now(UTC) < SOON:
            say(
                f"note: {certificate.name} ends on {end:%Y-%m-%d}; renew with: leanfed deploy keys FLEET --renew server"
            )


def _answers(control: Control) -> bool:
    try:
        control.nodes()
    except ServerUnreachableError:
        return False
    return True


def _ready(fleet: FleetFolder, options: ServerOptions, port: int) -> str:
    if options.insecure:
        return f"ready, WITHOUT encryption or keys, on 127.0.0.1:{fleet.control_port}; Ctrl-C stops"
    return f"ready: nodes call {address(options.host, port)}; audit log {fleet.audit.path}; Ctrl-C stops"
