"""The lock on a folder: who holds it, and that it ends with its process."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leanfed.errors import BusyError, StorageError
from leanfed.files import LockOwner, folder_lock, lock_owner

HOLD = """
import sys
from pathlib import Path
from leanfed.files import folder_lock
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
    assert lock_owner(tmp_path) is None  # the lock itself was tried


def test_a_file_system_without_locks_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("leanfed.files.lock_descriptor", refuse)
    with pytest.raises(StorageError, match=r"Cannot lock .*\.lock: Function not implemented"), folder_lock(tmp_path):
        pass
