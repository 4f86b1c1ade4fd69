"""The lock on a folder says who holds it, ends with its process, and is honoured by other machines."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leanfed.errors import BusyError, StorageError
from leanfed.locks import LockOwner, folder_lock, lock_owner

HOLD = """
import sys
from pathlib import Path
from leanfed.locks import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder until its input ends."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_lock_says_who_holds_it_and_dies_with_its_process(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        owner = LockOwner(process.pid, socket.gethostname())
        assert owner.here
        assert lock_owner(tmp_path) == owner
        words = f"in use by process {process.pid} on {socket.gethostname()}"
        with pytest.raises(BusyError, match=words), folder_lock(tmp_path):
            pass
        process.kill()
        process.wait()
        assert lock_owner(tmp_path) is None
        with folder_lock(tmp_path):
            assert lock_owner(tmp_path) == LockOwner(os.getpid(), socket.gethostname())
    assert lock_owner(tmp_path) is None  # released by a process that lives on


def test_a_holder_on_another_machine_is_not_looked_for_on_this_one(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        (tmp_path / ".lock").write_text(" 999999999 elsewhere\n")
        owner = lock_owner(tmp_path)
        assert owner == LockOwner(999999999, "elsewhere")
        assert not owner.here
    assert lock_owner(tmp_path) is None  # it was released


def test_a_file_system_without_locks_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("leanfed.locks.lock_descriptor", refuse)
    with pytest.raises(StorageError, match=r"Cannot lock .*\.lock: Function not implemented"), folder_lock(tmp_path):
        pass


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life that come and are waited for a hundred times sooner."""
    monkeypatch.setattr("leanfed.locks.BEAT_S", 0.04)
    monkeypatch.setattr("leanfed.locks.SILENT_S", 1.0)


@contextmanager
def elsewhere(lock: Path) -> Iterator[None]:
    """A holder on a machine whose locks this one does not see: it only touches its file."""
    lock.write_text(" 7 elsewhere\n")
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(0.01):
            os.utime(lock)

    thread = threading.Thread(target=touch)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("hasty")
def test_a_folder_that_lives_on_another_machine_is_in_use_although_its_lock_is_not_seen(tmp_path: Path) -> None:
    with elsewhere(tmp_path / ".lock"):
        assert lock_owner(tmp_path) == LockOwner(7, "elsewhere")
        with pytest.raises(BusyError, match="in use by process 7 on elsewhere"), folder_lock(tmp_path):
            pass
    with folder_lock(tmp_path):  # taken over when there is no sign of life any more
        assert lock_owner(tmp_path) == LockOwner(os.getpid(), socket.gethostname())


def test_a_folder_that_was_released_elsewhere_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setattr("socket.gethostname", lambda: "elsewhere")
        with folder_lock(tmp_path):
            pass
    monkeypatch.setattr("leanfed.locks.SILENT_S", 3_600.0)
    with folder_lock(tmp_path):
        pass


def test_a_sign_of_life_of_yesterday_is_none(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.write_text(" 7 elsewhere\n")
    os.utime(lock, (time.time() - 86_400,) * 2)
    assert lock_owner(tmp_path) is None


@pytest.mark.usefixtures("hasty")
def test_a_holder_shows_signs_of_life_until_it_ends(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with folder_lock(tmp_path):
        before, ends = lock.stat().st_mtime_ns, time.monotonic() + 60
        while lock.stat().st_mtime_ns == before:
            assert time.monotonic() < ends
            time.sleep(0.01)
    assert lock.stat().st_mtime_ns == 0
    assert "signs of life" not in {thread.name for thread in threading.enumerate()}
