"""Flower's programs kept warm: one process holds what they import, and forks a child for every start of one.

Flower starts a program for each message (`flwr-clientapp`) and each run (`flwr-serverapp`), and nearly all of its time
goes into imports. A small program of that name, first in the SuperExec's PATH, hands its arguments to the process here
instead; where that process is not running, it becomes the real one. The socket is in a folder for the owner alone, and
the caller's user is checked. A node's process also holds torch, the data and the model, and its SuperExec is a fork of
it: what both import is in memory once. gRPC begins in the children, never before a fork. The server's holds flwr only:
SuperLink gives up a program that has not called within 30 s of its start, which on a busy machine its imports alone can
take.

    prepare(folder, NAME)                                                  writes folder/bin/NAME
    python -m leanfed.deployment.operations.warm_programs FOLDER NAME      runs the process

The SuperExec is started with PATH=FOLDER/bin:...
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from leanfed import interpreter
from leanfed.deployment.operations.child import end_with
from leanfed.files import make_folder, owner_only, write_text

LONGEST_REQUEST = 1 << 20  # bytes
CLIENT, SERVER, SUPEREXEC = "flwr-clientapp", "flwr-serverapp", "flower-superexec"
BESIDE = {CLIENT: (SUPEREXEC,), SERVER: ()}  # what else is forked from a program's process, for as long as it lives
AHEAD = {  # what else a program will want; nothing that uses polars before a fork, whose threads do not survive it
    CLIENT: ("leanfed.deployment.learning.client_app", "leanfed.deployment.learning.work"),
    SERVER: (),
}
SOCKET = "warm.sock"
SHIM = """#!{python} -IS
import ctypes, json, os, socket, sys

if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM: it ends with the SuperExec that started it
server, here = socket.socket(socket.AF_UNIX), os.getcwd()
try:
    os.chdir({folder!r})  # the path of a socket may not be long
    server.connect({socket!r})
except OSError:
    os.chdir(here)
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
request = json.dumps({{"program": {name!r}, "argv": sys.argv[1:], "cwd": here, "env": dict(os.environ)}}).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], [1, 2])
server.sendall(request)
answer = server.recv(1)
sys.exit(answer[0] if answer else 1)
"""


def prepare(folder: Path, name: str) -> Path:
    """Write the small program; returns the folder that goes first into the SuperExec's PATH."""
    real = Path(sys.executable).parent / name
    text = SHIM.format(python=sys.executable, folder=str(folder), socket=SOCKET, real=str(real), name=name)
    with owner_only():
        path = make_folder(folder / "bin") / name
        write_text(path, text)
        path.chmod(0o700)
    return path.parent


def first_in_path(folder: Path, name: str, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a SuperExec that finds the small program first."""
    return {**env, "PATH": os.pathsep.join([str(prepare(folder, name)), env.get("PATH", os.defpath)])}


def command(folder: Path, name: str) -> list[str]:
    """How the process is started."""
    return interpreter.command("leanfed.deployment.operations.warm_programs", str(folder), name)


@dataclass
class ForkedProgram:
    """A child at work, and who waits for it."""

    pid: int
    name: str
    caller: socket.socket
    report: int  # what the child leaves for its siblings comes through here


@dataclass
class ForkServer:
    """Forks a child per request; between requests it loads what the last child had to load."""

    folder: Path
    name: str
    programs: dict[int, ForkedProgram] = field(default_factory=dict)  # pid -> program
    loaded: str = ""
    _known: dict[str, Callable[[], object]] = field(default_factory=dict)  # name -> program, once it is loaded

    def run(self) -> None:
        """Take requests until SIGTERM or SIGINT."""
        beside = {name: _program(name) for name in BESIDE[self.name]}
        self._known = {**beside, self.name: _import_all(self.name)}
        listener = self._listen()
        watcher = selectors.DefaultSelector()
        watcher.register(listener, selectors.EVENT_READ)
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        watcher.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in watcher.select():
                if key.fileobj is listener:
                    self._start(listener, watcher)
                elif isinstance(key.data, ForkedProgram):
                    with suppress(ProcessLookupError):  # the caller is gone, and so is the need for an answer
                        os.kill(key.data.pid, signal.SIGTERM)
                    watcher.unregister(key.fileobj)
                else:
                    with suppress(BlockingIOError):
                        os.read(woken, 4096)
            self._reap(watcher)

    def _listen(self) -> socket.socket:
        """A socket for the owner alone, in a folder for the owner alone."""
        with owner_only():
            os.chdir(make_folder(self.folder))
            Path(SOCKET).unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(SOCKET)
            Path(SOCKET).chmod(0o600)
        listener.listen(8)
        return listener

    def _start(self, listener: socket.socket, watcher: selectors.BaseSelector) -> None:
        """Read one request and fork for it."""
        caller, _ = listener.accept()
        caller.settimeout(5.0)
        try:
            request, descriptors = _read_request(caller, self._known)
        except (OSError, ValueError) as error:
            print(f"warm: a request was refused: {error}", file=sys.stderr, flush=True)
            caller.close()
            return
        report, channel = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            end_with(parent, signal.SIGKILL)  # training does not outlive the node, however it ends
            listener.close()
            os.close(report)
            self._run(request, descriptors, channel)
        for descriptor in (*descriptors, channel):
            os.close(descriptor)
        program = ForkedProgram(pid, request["program"], caller, report)
        self.programs[pid] = program
        print(f"warm: {program.name} {pid}", flush=True)
        watcher.register(caller, selectors.EVENT_READ, program)

    def _reap(self, watcher: selectors.BaseSelector) -> None:
        """Answer for children that have ended, then load what they had to."""
        while self.programs:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            program = self.programs.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):
                program.caller.sendall(bytes([code if 0 <= code < 256 else 1]))
            with suppress(KeyError):
                watcher.unregister(program.caller)
            program.caller.close()
            with os.fdopen(program.report, "rb") as report:
                used = report.read(LONGEST_REQUEST).decode()
            busy = any(other.name == self.name for other in self.programs.values())
            if used and used != self.loaded and not busy:
                self._load(used)

    def _load(self, used: str) -> None:
        """Data and model of the last child, for those to come."""
        from leanfed.deployment.learning.config import NodeConfig
        from leanfed.deployment.learning.work import bench_of

        self.loaded = used
        wanted = json.loads(used)
        try:
            bench_of(wanted["settings"], NodeConfig.model_validate(wanted["node"]))
        except Exception as error:
            print(f"warm: nothing could be loaded ahead: {error}", file=sys.stderr, flush=True)

    def _run(self, request: dict[str, Any], descriptors: list[int], channel: int) -> NoReturn:
        """Be the program; the process ends here."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            for descriptor, target in zip(descriptors, (1, 2), strict=True):
                os.dup2(descriptor, target)
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            name = request["program"]
            sys.argv = [name, *request["argv"]]
            Path("/proc/self/comm").write_text(name)  # as `ps` shows it
            try:
                self._known[name]()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            _report(channel)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _read_request(caller: socket.socket, known: Collection[str]) -> tuple[dict[str, Any], list[int]]:
    """Program, arguments, folder, environment and the two outputs of a caller of our own user."""
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        raise ValueError(f"it comes from user {uid}")
    head, descriptors, _, _ = socket.recv_fds(caller, 4, 2)
    size = int.from_bytes(head, "big")
    if len(head) != 4 or len(descriptors) != 2 or size > LONGEST_REQUEST:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError(f"it is not one of ours ({size} bytes)")
    text = b""
    while len(text) < size and (part := caller.recv(size - len(text))):
        text += part
    request = json.loads(text)
    name = request.get("program") if isinstance(request, dict) else None
    if name not in known:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError(f"it asks for {name!r}")
    return request, descriptors


def _report(channel: int) -> None:
    """Tell the parent what this child computed with."""
    work = sys.modules.get("leanfed.deployment.learning.work")
    if work is not None and work.used:
        settings, node = work.used[-1]
        with os.fdopen(channel, "wb") as report:
            report.write(json.dumps({"settings": settings, "node": node.model_dump()}).encode())


def _import_all(name: str) -> Callable[[], object]:
    """The program, with all that it will want in memory."""
    main = _program(name)
    for module in AHEAD[name]:
        import_module(module)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # a thread pool does not survive a fork
    gc.freeze()  # children need not look through, and so copy, what they never free
    return main


def _program(name: str) -> Callable[[], object]:
    """The function that a console script calls."""
    (program,) = entry_points(group="console_scripts", name=name)
    main: Callable[[], object] = program.load()
    return main


def _stop(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    ForkServer(Path(sys.argv[1]), sys.argv[2]).run()
