"""Stop and resume runs as separate processes: this package never imports training code.

A run is stopped with SIGTERM: it finishes writing its last checkpoint, prints how to resume, and ends; even if it is
killed, its folder is consistent and resumes bit for bit. Only these can be stopped: runs resumed from the page, and
`leanfed run` or `leanfed resume` of the same user on this machine, recognised by the folder's lock and the command of
the process that holds it. A process that does more than one run (a demo, a reproduction, a notebook) is not stopped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from leanfed.errors import BusyError, InputError
from leanfed.interpreter import command, environment
from leanfed.locks import LockOwner, lock_owner
from leanfed.results import RunFolder

STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a run that was asked to stop
VERBS = ("run", "resume")
LAST_WORDS = 2_000  # last characters of a failed process's output that are shown


@dataclass(frozen=True)
class Started:
    """A process that we started, and the file of its output."""

    process: subprocess.Popen[bytes]
    messages: IO[bytes]
    settings: Path | None = None  # a file of a folder of its own, which goes when the process has ended

    @property
    def running(self) -> bool:
        """Whether it is still running; also reaps the process if it has ended."""
        if self.process.poll() is None:
            return True
        if self.settings is not None:
            shutil.rmtree(self.settings.parent, ignore_errors=True)
        return False


class Processes:
    """The runs resumed by this server; they continue after it ends."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self._started: dict[Path, Started] = {}
        self.data_dir = data_dir

    def starting(self, folder: Path) -> bool:
        """Whether a process that we started is still working on this run."""
        started = self._started.get(folder)
        return started is not None and started.running

    def failure(self, folder: Path) -> str | None:
        """The last output of a process that we started and that failed; else None."""
        started = self._started.get(folder)
        if started is None or started.running or started.process.returncode in (0, *STOPPED):
            return None
        started.messages.seek(0)
        words = started.messages.read().decode(errors="replace").strip()
        return words[-LAST_WORDS:] or f"the process ended with code {started.process.returncode}"

    def resume(self, folder: RunFolder) -> None:
        """Start `leanfed resume` on an unfinished run."""
        if folder.finished:
            raise InputError(f"{folder.path.name} has finished; there is nothing to resume.")
        owner = lock_owner(folder.path)
        if owner is not None or self.starting(folder.path):
            raise BusyError(f"{folder.path.name} is being run already{f' by {owner}' if owner else ''}.")
        self._begin(folder.path, "resume", str(folder.path.resolve()))

    def start(self, settings: Path, folder: Path) -> None:
        """Start `leanfed run` on settings that were checked."""
        self._begin(folder, "run", str(settings), "--out", str(folder.resolve()), settings=settings)

    def _begin(self, folder: Path, *words: str, settings: Path | None = None) -> None:
        """Start a process that outlives this one; its output is kept for as long as it may fail."""
        where = [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        messages = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process may write
        process = subprocess.Popen(
            command("leanfed.cli", *words, "--json", *where),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,  # so that Ctrl-C on the server does not stop the run
        )
        self._started[folder] = Started(process, messages, settings)

    def stop(self, folder: RunFolder) -> None:
        """Ask the run's process to end; refuses if that would end more than the run."""
        if self.starting(folder.path):
            self._started[folder.path].process.terminate()
            return
        owner = lock_owner(folder.path)
        if owner is None:
            raise InputError(f"{folder.path.name} is not running, so it cannot be stopped.")
        if not _runs_only_this(owner):
            raise InputError(
                f"{folder.path.name} is run by {owner}, which is not a `leanfed run` or `leanfed resume` and "
                "may be doing more than this run. Stop it where it was started; the run can be resumed here."
            )
        _terminate(owner, folder.path)


def stoppable(folder: Path) -> bool:
    """Whether the process that holds a folder's lock does nothing but this run."""
    owner = lock_owner(folder)
    return owner is not None and _runs_only_this(owner)


def _runs_only_this(owner: LockOwner) -> bool:
    """Whether a process on this machine is `leanfed run` or `leanfed resume`, according to /proc."""
    if not owner.here:
        return False
    try:
        words = Path(f"/proc/{owner.process}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return False
    called = [place for place, word in enumerate(words) if word == "leanfed.cli" or Path(word).name == "leanfed"]
    return bool(called) and words[called[0] + 1 : called[0] + 2] in [[verb] for verb in VERBS]


def _terminate(owner: LockOwner, folder: Path) -> None:
    """Signal the process that holds the lock, but never a later process with the same number."""
    try:
        handle = os.pidfd_open(owner.process)
    except OSError:
        return  # it has ended already
    try:
        if lock_owner(folder) == owner:  # the handle was opened while the lock was held: it is that process
            signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise InputError(f"{folder.name} is run by another user's {owner}; only they can stop it.") from None
    finally:
        os.close(handle)
