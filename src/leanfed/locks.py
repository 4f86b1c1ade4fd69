"""Locks on folders, which end with their process, and mean something to other machines that see the folder."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import lock_descriptor

from leanfed.errors import BusyError
from leanfed.files import explained

BEAT_S = 4.0  # from one sign of life of a lock's holder to the next: its file's time of change
SILENT_S = 3 * BEAT_S  # a holder on another machine without one for so long has ended
RECENT_S = 60.0  # a sign of life this near, by the clocks of two machines, is taken for one
RELEASED = 0  # the time (since 1970) of a lock that was released


class LockOwner(NamedTuple):
    """The process that holds a folder's lock."""

    process: int
    host: str

    @property
    def here(self) -> bool:
        """Whether it runs on this machine, so that its process number is meaningful."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends, even by a crash.

    Not every file system that machines share also shares locks. So a holder shows that it lives by touching the file,
    and who takes over from another machine's process looks first whether it still does. No clocks are compared.
    """
    path = folder / ".lock"
    with explained(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with explained(path, "lock"):
            locked = lock_descriptor(descriptor, blocking=False)
            owner = _read_owner(descriptor)
        if not locked or (owner is not None and not owner.here and _beats(path)):
            raise BusyError(
                f"{folder} is in use by {owner or 'an unknown process'}. "
                "Wait for it to end, stop it, or choose another folder."
            )
        with explained(path):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            # The first byte stays empty: it is the one that Windows locks, and no other process can read it there.
            os.write(descriptor, f" {os.getpid()} {socket.gethostname()}\n".encode())
        with _signs_of_life(path):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def _signs_of_life(path: Path) -> Iterator[None]:
    """Touch a lock's file now and then, and mark it when it is released."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            with suppress(OSError):  # removed with its folder, or a disk that is gone: the run itself will say so
                os.utime(path)

    thread = threading.Thread(target=beat, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            os.utime(path, (RELEASED, RELEASED))


def _beats(path: Path) -> bool:
    """Whether another machine's process still touches a lock's file; one that was released is not waited for."""
    first = path.stat().st_mtime_ns
    ends = time.monotonic() + (SILENT_S if first != RELEASED else 0)
    while time.monotonic() < ends:
        time.sleep(BEAT_S / 8)
        if path.stat().st_mtime_ns != first:
            return True
    return False


def lock_owner(folder: Path) -> LockOwner | None:
    """The process that holds a folder's lock, or None.

    A process that has ended holds no lock. The lock itself is tried only if the process is alive or on another machine,
    since it may have released the lock; so looking at a stopped run never blocks a process that resumes it. One on
    another machine may hold a lock that this machine does not see: then its last sign of life counts.
    """
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # it may be a pipe
    except OSError:
        return None
    owner = None
    try:
        owner = _read_owner(descriptor)
        if owner is None or (owner.here and not _alive(owner.process)):
            return None
        if not lock_descriptor(descriptor, blocking=False):
            return owner
        return None if owner.here or abs(time.time() - os.fstat(descriptor).st_mtime) > RECENT_S else owner
    except OSError:  # a file system that does not lock files opened for reading
        return owner
    finally:
        os.close(descriptor)


def _read_owner(descriptor: int) -> LockOwner | None:
    os.lseek(descriptor, 1, os.SEEK_SET)
    match os.read(descriptor, 300).decode(errors="replace").split():
        case [process, host] if process.isdigit():
            return LockOwner(int(process), host)
    return None


def _alive(process: int) -> bool:
    if sys.platform == "win32":
        return True  # no signal can test for a process here; the lock decides
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
