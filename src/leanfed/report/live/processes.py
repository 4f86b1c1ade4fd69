"""Stop and resume runs as processes of their own: this room never imports training code.

A run is stopped with SIGTERM: it finishes writing its last checkpoint, says how to go on, and ends; even when it is
killed outright, its folder is whole and resumes bit for bit. What may be stopped: runs resumed from the page, and
`leanfed run` or `leanfed resume` of the same user on this machine, told by the folder's lock and by the command of the
process that holds it. A process that does more than that one run (a demo, a reproduction, a notebook) is left alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from leanfed.errors import BusyError, InputError
from leanfed.files import LockOwner, lock_owner
from leanfed.results import RunFolder

STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a run that was asked to stop
VERBS = ("run", "resume")
LAST_WORDS = 2_000  # characters of a failed process's messages that are shown


@dataclass(frozen=True)
class Started:
    """A process that we started, and where its messages go."""

    process: subprocess.Popen[bytes]
    messages: IO[bytes]

    @property
    def running(self) -> bool:
        """Whether it has not ended; asking also buries it when it has."""
        return self.process.poll() is None


class Processes:
    """The runs that were resumed from here; they outlive the server."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self._started: dict[Path, Started] = {}
        self._data_dir = data_dir

    def starting(self, folder: Path) -> bool:
        """Whether a process of ours is on its way to this run, or at it."""
        started = self._started.get(folder)
        return started is not None and started.running

    def failure(self, folder: Path) -> str | None:
        """The last words of a process of ours that failed."""
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
        command = [sys.executable, "-m", "leanfed.cli", "resume", str(folder.path.resolve()), "--json"]
        command += [] if self._data_dir is None else ["--data-dir", str(self._data_dir)]
        messages = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process may write
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,  # Ctrl-C on the server is not for the run
        )
        self._started[folder.path] = Started(process, messages)

    def stop(self, folder: RunFolder) -> None:
        """Ask the run's process to end; refuses where that would end more than the run."""
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
    """Whether the process that holds a folder is a run and nothing else."""
    owner = lock_owner(folder)
    return owner is not None and _runs_only_this(owner)


def _runs_only_this(owner: LockOwner) -> bool:
    """Whether a process of this machine is `leanfed run` or `leanfed resume`, where the system tells (/proc)."""
    if not owner.here:
        return False
    try:
        words = Path(f"/proc/{owner.process}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return False
    called = [place for place, word in enumerate(words) if word == "leanfed.cli" or Path(word).name == "leanfed"]
    return bool(called) and words[called[0] + 1 : called[0] + 2] in [[verb] for verb in VERBS]


def _terminate(owner: LockOwner, folder: Path) -> None:
    """Signal the process that holds the folder, and no later one that was given its number."""
    try:
        handle = os.pidfd_open(owner.process)
    except OSError:
        return  # it has ended by itself
    try:
        if lock_owner(folder) == owner:  # the handle was opened while the lock was held: it is that process
            signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise InputError(f"{folder.name} is run by another user's {owner}; only they can stop it.") from None
    finally:
        os.close(handle)
