"""A whole fleet on this machine as real processes, started and stopped through `leanfed deploy`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEANFED = [sys.executable, "-m", "leanfed.cli"]
SETTINGS = """
name = "fleet"
seed = 3
rounds = {rounds}
[task.partition]
kind = "class"
classes_per_client = 3
clients = {nodes}
[algorithm]
name = "flpdsp"
k = 0.1
r = 0.8
sparsify.error_feedback = true
[evaluation]
every = 1
[run]
engine = "reference"
threads = 1
"""


@dataclass
class LocalFleet:
    """Server and nodes below one folder; every node is a process (group) of its own."""

    folder: Path
    nodes: int
    warm: bool = True
    node_options: dict[int, list[str]] = field(default_factory=dict)  # node -> more for its command line
    node_env: dict[int, dict[str, str]] = field(default_factory=dict)  # node -> what its environment has beside ours
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    node_python: str = sys.executable  # the interpreter of nodes, where another environment is tried

    @property
    def fleet(self) -> Path:
        return self.folder / "fleet"

    def settings(self, rounds: int) -> Path:
        path = self.folder / "settings.toml"
        path.write_text(SETTINGS.format(rounds=rounds, nodes=self.nodes))
        return path

    def make(self) -> None:
        """Keys and certificates, on free ports."""
        ports = [str(free_port()) for _ in range(2)]
        places = ["--host", "127.0.0.1", "--port", ports[0], "--control-port", ports[1]]
        self.call("deploy", "keys", str(self.fleet), "--nodes", str(self.nodes), *places)

    def start_server(self) -> None:
        self._start("server", "deploy", "server", str(self.fleet))
        self._wait_for("server", "ready")

    def start_node(self, number: int) -> None:
        temperature = "--warm" if self.warm else "--cold"
        folder = str(self.fleet / "nodes" / f"edge-{number}")
        more = [temperature, "--max-retries", "50", *self.node_options.get(number, [])]
        words = ("deploy", "node", folder, *more)
        self._start(f"node-{number}", *words, env=self.node_env.get(number), python=self.node_python)

    def start_nodes(self) -> None:
        for number in range(self.nodes):
            self.start_node(number)

    def run(self, settings: Path, out: Path, *changes: str) -> None:
        """Submit a run, and do not wait for it."""
        given = [part for change in changes for part in ("--fleet", change)]
        self.call("deploy", "run", str(self.fleet), str(settings), "--out", str(out), "--detach", *given)

    def resume(self, out: Path, *changes: str) -> None:
        given = [part for change in changes for part in ("--fleet", change)]
        self.call("deploy", "run", str(self.fleet), "--resume", str(out), "--detach", *given)

    def call(self, *arguments: str) -> str:
        done = subprocess.run([*LEANFED, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"leanfed {' '.join(arguments)} ended with {done.returncode}: {done.stderr}{done.stdout}"
            )
        return done.stdout

    def kill(self, name: str) -> None:
        """kill -9 of a process and of all below it, at once."""
        process = self.processes.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def cpu_s(self) -> float:
        """CPU-seconds of all processes so far, ended children of living ones included."""
        pids = {pid for process in self.processes.values() for pid in [process.pid, *descendants(process.pid)]}
        return sum(map(_cpu_s, pids))

    def stop(self) -> None:
        """End everything that was started here."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
        for name in list(self.processes):
            self.kill(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _start(
        self, name: str, *arguments: str, env: dict[str, str] | None = None, python: str = sys.executable
    ) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [python, *LEANFED[1:], *arguments],
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )

    def _wait_for(self, name: str, text: str, seconds: float = 300.0) -> None:
        def there() -> bool:
            if self.processes[name].poll() is not None:
                raise RuntimeError(f"{name} ended: {self.log(name)}")
            return text in self.log(name)

        wait_for(there, f"{text!r} from {name}", seconds)


@contextmanager
def local_fleet(
    folder: Path,
    nodes: int,
    *,
    warm: bool = True,
    node_options: dict[int, list[str]] | None = None,
    node_python: str = sys.executable,
) -> Iterator[LocalFleet]:
    """A fleet that is up; nothing of it is left afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet = LocalFleet(folder, nodes, warm, node_options or {}, node_python=node_python)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        fleet.make()
        fleet.start_server()
        fleet.start_nodes()
        yield fleet
    finally:
        fleet.stop()
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: object) -> None:
    """Leave by the way that stops the fleet."""
    sys.exit(128 + number)


def wait_for(there: Callable[[], bool], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not there():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {seconds:g} s")
        time.sleep(0.2)


def events(out: Path, event: str) -> list[dict[str, Any]]:
    """Events of a run folder by name; a torn last line is passed over."""
    path = out / "events.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return [row for row in rows if row["event"] == event]


def audit(fleet: LocalFleet, event: str) -> list[dict[str, Any]]:
    from leanfed.deployment.operations.folder import FleetFolder

    return [row for row in FleetFolder.open(fleet.fleet).audit.read() if row["event"] == event]


def free_port() -> int:
    """A port that nobody listens on, below those that a system gives to connections, which might take it meanwhile."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def descendants(pid: int) -> list[int]:
    """Processes below one, by their parents' numbers."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(_fields(path)[1]), []).append(int(path.parent.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def _cpu_s(pid: int) -> float:
    with suppress(OSError):
        fields = _fields(Path(f"/proc/{pid}/stat"))
        return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _fields(path: Path) -> list[str]:
    """What follows the program's name: state, parent, ..."""
    return path.read_text().rpartition(")")[2].split()
