"""Processes that live and die together: started in the foreground, logged, stopped by signal, no orphan left."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType

from leanfed.deployment.operations.folder import private_folder
from leanfed.errors import LeanfedError
from leanfed.interpreter import command

GRACE_S = 10.0  # between SIGTERM and SIGKILL
LAST_LINES = 12
LOG_BYTES, LOG_FILES = 5_000_000, 3


class ChildEndedError(LeanfedError):
    """A process that should have stayed is gone; the others were stopped."""


class StopRequested(Exception):
    """SIGTERM or SIGINT came: the user wants to stop, nothing failed."""


@dataclass
class Child:
    """One process and its last lines of output."""

    name: str
    process: subprocess.Popen[str]
    wave: int
    group: str
    pump: threading.Thread | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"


class Supervisor:
    """Starts children in named groups, watches them, and stops all when the block ends or a signal comes.

    Threads may each keep a group of their own; signals are the main thread's.
    """

    def __init__(self, logs: Path, echo: Callable[[str], None] | None = None) -> None:
        self.logs = private_folder(logs)
        self.echo = echo
        self.children: list[Child] = []
        self._stop = threading.Event()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Supervisor]:
        """Within the block signals ask to stop; after it no child is left."""
        umask = os.umask(0o077)  # whatever the children write is for their owner
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        except StopRequested:
            pass
        finally:
            self._end(list(self.children))
            for number, handler in before.items():
                signal.signal(number, handler)
            os.umask(umask)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
        *,
        wave: int = 0,
        group: str = "",
    ) -> Child:
        """Start a process in a session of its own; its lines go to NAME.log and to `on_line`. High waves stop first."""
        shim = command("leanfed.deployment.operations.child", str(os.getpid()))
        process = subprocess.Popen(
            [*shim, *argv],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches us alone; we stop them in order
        )
        child = Child(name, process, wave, group)
        self.children.append(child)
        child.pump = threading.Thread(target=self._pump, args=(child, on_line), daemon=True)
        child.pump.start()
        return child

    def check(self, group: str = "") -> None:
        """Raise StopRequested after a signal and ChildEndedError after the end of a child of the group."""
        if self._stop.is_set():
            raise StopRequested
        for child in self.members(group):
            how = child.ended()
            if how is not None:
                time.sleep(0.2)  # its last lines are on their way
                lines = "\n".join(f"  {line}" for line in child.last) or "  (nothing)"
                raise ChildEndedError(
                    f"{child.name} ended with {how}; the rest was stopped. Its last lines:\n{lines}\n"
                    f"More is in {self.logs / (child.name + '.log')}."
                )

    def members(self, group: str) -> list[Child]:
        """The children of a group."""
        return [child for child in self.children if child.group == group]

    def wait_for(self, ready: Callable[[], bool], *, what: str, seconds: float, group: str = "") -> None:
        """Wait until `ready`, as long as all children of the group live."""
        end = time.monotonic() + seconds
        while not ready():
            self.check(group)
            if time.monotonic() > end:
                raise LeanfedError(f"{what} was not ready after {seconds:.0f} s. Its log is in {self.logs}.")
            self._stop.wait(0.2)

    def sleep(self, seconds: float, group: str = "") -> None:
        """Wait, but not after a signal or the end of a child of the group."""
        self._stop.wait(seconds)
        self.check(group)

    def run(self, tick: Callable[[], None] | None = None, every: float = 1.0) -> None:
        """Watch until a signal or a child's end; call `tick` in between."""
        while True:
            self.check()
            if tick is not None:
                tick()
            self._stop.wait(every)

    def request_stop(self) -> None:
        """Let everything that waits here stop, as a signal does."""
        self._stop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _pump(self, child: Child, on_line: Callable[[str], None] | None) -> None:
        """Copy a child's lines to its log, which is turned over at 5 MB."""
        log = RotatingFileHandler(self.logs / f"{child.name}.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES)
        log.setFormatter(logging.Formatter("%(message)s"))
        assert child.process.stdout is not None
        with child.process.stdout as lines, contextlib.closing(log):
            for line in lines:
                text = line.rstrip("\n")
                child.last.append(text)
                log.emit(logging.LogRecord(child.name, logging.INFO, "", 0, text, None, None))
                if self.echo is not None:
                    self.echo(f"{child.name}: {text}")
                if on_line is not None:
                    on_line(text)

    def stop(self, group: str = "") -> None:
        """End a group's processes, so that it may be started again."""
        self._end(self.members(group))

    def _end(self, children: Sequence[Child]) -> None:
        """SIGTERM to every process group, wave by wave; SIGKILL to what is left of a wave after the grace."""
        for wave in sorted({child.wave for child in children}, reverse=True):
            stopping = [child for child in children if child.wave == wave]
            for child in stopping:
                _signal_group(child.process.pid, signal.SIGTERM)
            end = time.monotonic() + GRACE_S
            for child in stopping:
                _wait_group(child, end)
                _signal_group(child.process.pid, signal.SIGKILL)
                child.process.wait()
                if child.pump is not None:
                    child.pump.join(GRACE_S)  # its last lines are written
        for child in children:
            self.children.remove(child)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False where it has no process left."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _wait_group(child: Child, end: float) -> None:
    """Wait until the whole group is gone, children of the child included."""
    while time.monotonic() < end:
        child.process.poll()  # collects the leader, who would otherwise keep the group alive
        if not _signal_group(child.process.pid, 0):
            return
        time.sleep(0.05)
