"""Texts of any kind are read or explained; the lock on a folder says who holds it and ends with its process."""

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

from leanfed.errors import BusyError, LeanfedError, StorageError
from leanfed.files import LockOwner, folder_lock, lock_owner, parse_json, parse_toml, read_json, read_text

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


def test_text_is_utf_8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffrate = 1\r\nname = 'ä'\r\n".encode())
    assert read_text(tmp_path / "a") == "rate = 1\nname = 'ä'\n"
    (tmp_path / "b").write_bytes("rate = 1\nname = 'ä'".encode("latin-1"))
    with pytest.raises(StorageError, match=r"b is not UTF-8 text: byte 0xe4 in line 2\. Save it as UTF-8"):
        read_text(tmp_path / "b")
    (tmp_path / "c").write_bytes("rate = 1".encode("utf-16"))
    with pytest.raises(StorageError, match="looks like UTF-16"):
        read_text(tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested more than 64 levels"),
        ("[" * 70 + "]" * 70, "nested more than 64 levels"),
        ("[" + "9" * 5_000 + "]", "it holds a whole number of more than 300 digits"),
        ("[" + "9" * 400 + "]", "a whole number of more than 300 digits"),
        ("{", "Expecting"),
    ],
)
def test_what_no_reader_can_take_is_a_value_error(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    if words != "Expecting":
        with pytest.raises(ValueError, match=words):
            parse_toml(f"a = {text}")
    (tmp_path / "value.json").write_text(text)
    with pytest.raises(StorageError, match=r"value\.json is not valid JSON"):
        read_json(tmp_path / "value.json")


@pytest.mark.parametrize("content", [b"\xff\xfea", b"name = '\xe4'", b"a = " + b"[" * 5_000, b"a = " + b"9" * 5_000])
@pytest.mark.parametrize("name", ["s.toml", "s.json", "p.json", "f.csv"])
def test_files_of_any_bytes_are_explained(tmp_path: Path, name: str, content: bytes) -> None:
    from leanfed.allocation.problem import Problem
    from leanfed.runs.settings import Settings
    from leanfed.wireless.fleet import FleetSettings
    from leanfed.wireless.fleet_file import read_fleet

    readers = {"s": Settings.from_toml, "p": Problem.from_json, "f": lambda path: read_fleet(path, FleetSettings())}
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LeanfedError, match=name):
        readers[name[0]](tmp_path / name)
