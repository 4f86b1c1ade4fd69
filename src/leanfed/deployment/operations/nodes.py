"""`deploy node`: keep the processes of a node running for as long as the user wants, whatever becomes of the server.

Every bundle has a thread that keeps one session after the other: greet the server, start SuperNode and SuperExec, watch
them. What is watched is health, not process numbers: a SuperNode ends with its worker (`supernode.py`), and the door
says when it last heard of it. A server that does not answer is waited for without limit once the node has joined.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanfed.deployment.operations import commands
from leanfed.deployment.operations import warm_programs as warm
from leanfed.deployment.operations.backoff import Backoff
from leanfed.deployment.operations.folder import Bundle, private_folder
from leanfed.deployment.operations.handshake import (
    RefusedError,
    RevokedError,
    UnreachableError,
    say_goodbye,
    say_hello,
    wait_for_welcome,
)
from leanfed.deployment.operations.log_watch import DECLINES, LogWatch
from leanfed.deployment.operations.node_state import NodeState
from leanfed.deployment.operations.ports import free_port, listens
from leanfed.deployment.operations.supervise import ChildEndedError, StopRequested, Supervisor
from leanfed.deployment.operations.warm_child import WarmChild
from leanfed.errors import InputError, LeanfedError, first_line
from leanfed.files import write_text
from leanfed.locks import folder_lock

START_S = 120.0  # a busy small machine imports slowly
LOOK_S, LOOK_AWAY_S = 20.0, 5.0  # between two looks at the server: while it answers, and while it does not
SILENT_S = 150.0  # a SuperNode calls every 3 s, and every 30 s in long work; silent for longer, it is started again
Say = Callable[[str], None]


@dataclass(frozen=True)
class NodeOptions:
    """How a node reaches its server and its data."""

    server: str | None = None  # the bundle's own where None
    port: int | None = None  # of its own API on loopback; a free one where None
    data_dir: Path | None = None
    data: str | None = None
    max_retries: int = 10  # before it has joined for the first time; without limit afterwards
    insecure: bool = False
    warm: bool = True  # keep flwr, torch and the data in memory between messages


class MovedError(LeanfedError):
    """node.json names another server than before."""


def join(bundles: Sequence[Bundle], options: NodeOptions, say: Say, echo: Say | None = None) -> None:
    """Keep every bundle's node running until a signal, or until none of them is welcome any more."""
    if options.port is not None and len(bundles) > 1:
        raise InputError(f"--port is for one node, but {len(bundles)} are given. Leave it out: free ones are chosen.")
    supervisor = Supervisor(bundles[0].path / "logs", echo)
    nodes = [Node(bundle, options, say, supervisor) for bundle in bundles]
    with ExitStack() as held:
        for bundle in bundles:
            held.enter_context(folder_lock(bundle.path))
        with supervisor():
            # A thread stays until its processes are gone: they end with the thread that started them.
            threads = [threading.Thread(target=node.keep, name=node.bundle.name) for node in nodes]
            for thread in threads:
                thread.start()
            try:
                while any(thread.is_alive() for thread in threads):
                    supervisor.sleep(0.2, "no group")
            finally:
                supervisor.request_stop()
                for thread in threads:
                    thread.join()
    for node in nodes:
        if node.fault is not None:
            raise node.fault


class Node:
    """One bundle's node, kept running."""

    def __init__(self, bundle: Bundle, options: NodeOptions, say: Say, supervisor: Supervisor) -> None:
        self.bundle = bundle
        self.options = options
        self.say = say
        self.supervisor = supervisor
        self.server = options.server or bundle.server
        self.state = NodeState(bundle)
        self.fault: Exception | None = None  # why it was given up
        self.number = bundle.path / "flwr" / "node-id"  # kept for the case that we are killed
        self.watch = LogWatch(bundle.audit, "SuperNode, loopback")
        self._joined = False  # ever, since this process began
        self._away_since: float | None = None

    def keep(self) -> None:
        """One session after the other, until a signal or until the node may not join any more."""
        backoff = Backoff()
        try:
            while True:
                why = self._session()
                self.supervisor.stop(self.bundle.name)
                self._leave()
                self.state.restarts += 1
                self.state.set("restarting", why)
                pause = backoff.next()
                self._tell("restarted", f"starts again in {pause:.0f} s: {why}", why=why)
                self.supervisor.sleep(pause, self.bundle.name)
        except StopRequested:
            self.supervisor.stop(self.bundle.name)
            self._leave()
            self.state.set("stopped")
        except Exception as error:
            self.supervisor.stop(self.bundle.name)
            self.fault = error
            self._leave()
            self.state.set("refused" if isinstance(error, RefusedError) else "stopped", str(error))
            self.say(f"{self.bundle.name}: {error}")

    def _session(self) -> str:
        """Run until something ends; returns what. Raises where trying again would not help."""
        try:
            self._greet()
            self._start()
            while True:
                self._look()
                self._pause(LOOK_S if self._away_since is None else LOOK_AWAY_S)
        except (RevokedError, StopRequested):
            raise
        except MovedError as error:
            return str(error)
        except LeanfedError as error:
            if not self._joined:
                raise
            return first_line(error)

    # The server

    def _greet(self) -> None:
        """Check that server and node fit together; wait for the server, without limit once the node has joined."""
        self.bundle = Bundle.open(self.bundle.path)
        self.server = self.options.server or self.bundle.server
        self.state.set("joining")
        if self.options.insecure:
            commands.check_loopback(commands.split_address(self.server)[0], "the server")
            return

        def pause(seconds: float) -> None:
            self.say(f"{self.bundle.name}: {self.server} does not answer yet; trying again in {seconds:.0f} s")
            self.supervisor.sleep(seconds, self.bundle.name)

        while True:
            try:
                wait_for_welcome(self.bundle, self.server, tries=self.options.max_retries, pause=pause)
                return
            except RefusedError as error:
                self._note_refusal(error)
                raise
            except UnreachableError as error:
                if not self._joined:
                    self._note_refusal(error)
                    raise
                self._away(error)
                self._check_address()

    def _look(self) -> None:
        """Ask the server how it sees this node, and say so where it has changed."""
        self._check_address()
        if self.options.insecure:
            self._note_joined({})
            return
        try:
            welcome = say_hello(self.bundle, self.server)
        except RevokedError as error:
            self._note_refusal(error)
            raise
        except (OSError, RefusedError) as error:
            self._away(error)
            return
        self._note_joined(welcome)
        silent = welcome.get("seen_s")
        if self._joined and silent is not None and silent > SILENT_S:
            raise ChildEndedError(f"The server has not heard of this node's SuperNode for {silent:.0f} s.")

    def _note_joined(self, welcome: Mapping[str, Any]) -> None:
        if self.watch.node_id is None:
            return
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            self._tell("server back", f"{self.server} answers again, after {seconds:.0f} s", seconds=round(seconds, 1))
        if self.state.state != "joined":
            write_text(self.number, str(self.watch.node_id))
            again = " again" if self._joined else ""
            facts = {"server": self.server, "client_id": self.bundle.client_id}
            self.bundle.audit.write("joined", **facts, insecure=self.options.insecure or None)
            self.say(f"{self.bundle.name} (client {self.bundle.client_id}) has joined {self.server}{again}")
            self._joined = True
            self.state.set("joined")

    def _away(self, error: Exception) -> None:
        """Note that the server does not answer, once."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._tell("server away", f"{self.server} does not answer ({error}); goes on trying", why=str(error))
        self.state.set("away", str(error))

    def _check_address(self) -> None:
        """Go to the new address where node.json was changed."""
        server = self.options.server or Bundle.open(self.bundle.path).server
        if server != self.server:
            raise MovedError(f"node.json names {server} now, and no longer {self.server}")

    def _leave(self) -> None:
        """Tell the server that the node is gone."""
        self._goodbye(self.watch.node_id)
        self.watch.node_id = None

    def _goodbye(self, node_id: int | None) -> None:
        if node_id is not None and not self.options.insecure and self._away_since is None:
            say_goodbye(self.bundle, self.server, node_id)
            self.number.unlink(missing_ok=True)

    def _note_refusal(self, error: LeanfedError) -> None:
        self.bundle.audit.write("server refused", server=self.server, why=str(error))

    def _tell(self, event: str, text: str, **facts: object) -> None:
        """A line for the terminal and one for the audit log."""
        self.bundle.audit.write(event, server=self.server, **facts)
        self.say(f"{self.bundle.name}: {text}")

    # The processes

    def _start(self) -> None:
        """Start SuperNode, then the SuperExec when SuperNode listens and what it will start is warm; wait to be in."""
        bundle, options, group = self.bundle, self.options, self.bundle.name
        env = commands.environment(private_folder(bundle.path / "flwr"))
        if self.number.exists():
            self._goodbye(int(self.number.read_text()))
        port = options.port or free_port()
        values = node_values(bundle, options)
        command = commands.supernode(bundle, server=self.server, port=port, config=values, insecure=options.insecure)
        self.supervisor.start(f"{group}-supernode", command, env, self.watch, group=group)
        held = WarmChild(f"{group}-warm", private_folder(bundle.path / "warm"), warm.CLIENT, group=group)
        if options.warm:
            held.start(self.supervisor, env)
        self._wait_for(lambda: listens("127.0.0.1", port), "SuperNode", START_S)
        env = commands.QUICK | env
        env = held.wait(self.supervisor, env, START_S) if options.warm else held.without(env)
        command = commands.node_superexec(bundle, port=port)
        command = held.forked(command) if options.warm else command
        self.supervisor.start(f"{group}-superexec", command, env, self._overhear, group=group)
        self._wait_for(lambda: self.watch.node_id is not None, "being let in", 10 * START_S)

    def _overhear(self, line: str) -> None:
        """Say in the terminal why the node cannot take part in a run."""
        if DECLINES in line:
            self.say(f"{self.bundle.name} cannot take part in the run: {line.split(DECLINES, 1)[1]}")

    def _wait_for(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        self.supervisor.wait_for(ready, what=what, seconds=seconds, group=self.bundle.name)

    def _pause(self, seconds: float) -> None:
        """Wait, but not longer than the processes live."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.supervisor.sleep(min(left, 0.5), self.bundle.name)


def node_values(bundle: Bundle, options: NodeOptions) -> Mapping[str, commands.Value]:
    """The node-config of a bundle."""
    values: dict[str, commands.Value] = {"client-id": bundle.client_id, "store": str(bundle.path / "store")}
    if options.data_dir is not None:
        values["data-dir"] = str(options.data_dir.resolve())
    if not options.insecure:
        values["identity"] = str(bundle.path)
    return values | ({} if options.data is None else {"data": options.data})
