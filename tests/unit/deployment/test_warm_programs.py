"""A warm node: the small program, the process behind it, and what happens when that is gone."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leanfed.deployment.operations import warm_programs as warm

pytestmark = pytest.mark.waits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running fork server in a folder whose path is too long for a socket."""
    folder = tmp_path_factory.mktemp("warm") / ("long" * 25)
    process = subprocess.Popen(warm.command(folder, warm.CLIENT))
    try:
        end = time.monotonic() + 120
        while not (folder / warm.SOCKET).exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def test_the_small_program_is_the_real_one(folder: Path) -> None:
    program = warm.prepare(folder, warm.CLIENT) / warm.CLIENT
    assert stat.S_IMODE(program.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / warm.SOCKET).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    real = Path(sys.executable).parent / warm.CLIENT
    texts = [
        subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout for path in (program, real)
    ]
    assert texts[0] == texts[1]
    assert "--runtime-api-address" in texts[0]
    wrong = subprocess.run([program, "--no-such-option"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "--token-file is required" in wrong.stderr) == (2, True)


def test_the_superexec_is_forked_from_what_the_app_has_imported(folder: Path) -> None:
    program = warm.prepare(folder, warm.SUPEREXEC) / warm.SUPEREXEC
    real = Path(sys.executable).parent / warm.SUPEREXEC
    texts = [
        subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout for path in (program, real)
    ]
    assert texts[0] == texts[1]
    assert "--superexec-auth-secret-file" in texts[0]


def test_a_long_lived_program_ends_with_who_asked_for_it(folder: Path, tmp_path: Path) -> None:
    """As a supervisor stops it: SIGTERM to the small program, and the fork follows."""
    (tmp_path / "secret").write_text("0" * 64)
    (tmp_path / "secret").chmod(0o600)
    words = ["--runtime-api-address", "127.0.0.1:9", "--insecure", "--superexec-auth-secret-file"]
    program = warm.prepare(folder, warm.SUPEREXEC) / warm.SUPEREXEC
    caller = subprocess.Popen([program, *words, tmp_path / "secret"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert caller.stdout is not None
    assert caller.stdout.readline()  # it is up, and tries to reach its SuperNode
    (fork,) = forks_named(warm.SUPEREXEC)
    other = warm.prepare(folder, warm.CLIENT) / warm.CLIENT
    assert subprocess.run([other, "--help"], capture_output=True, check=False).returncode == 0  # beside it
    caller.terminate()
    caller.wait(30)
    end = time.monotonic() + 60
    while fork in forks_named(warm.SUPEREXEC):
        assert time.monotonic() < end
        time.sleep(0.1)
    caller.stdout.close()


def forks_named(name: str) -> list[int]:
    """Grandchildren of this process with a name."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    found = []
    for child in children:
        for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == name[:15]:
                found.append(int(pid))
    return found


def test_what_is_not_there_is_not_forked(folder: Path) -> None:
    program = warm.prepare(folder, warm.CLIENT) / warm.CLIENT
    stranger = program.parent / "flower-superlink"
    stranger.write_text(program.read_text().replace(f"'{warm.CLIENT}'", "'flower-superlink'"))
    stranger.chmod(0o700)
    assert subprocess.run([stranger, "--help"], capture_output=True, check=False).returncode == 1


def test_nonsense_on_the_socket_harms_nobody(folder: Path) -> None:
    here = Path.cwd()
    os.chdir(folder)
    try:
        for nonsense in (b"", b"\xff" * 64, (5).to_bytes(4, "big") + b"hello"):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(warm.SOCKET)
                caller.sendall(nonsense)
    finally:
        os.chdir(here)
    program = warm.prepare(folder, warm.CLIENT) / warm.CLIENT
    assert subprocess.run([program, "--help"], capture_output=True, check=False).returncode == 0


def test_without_the_process_the_real_program_runs(tmp_path: Path) -> None:
    program = warm.prepare(tmp_path, warm.CLIENT) / warm.CLIENT
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, "--runtime-api-address" in done.stdout) == (0, True)


def test_the_superexec_finds_it_first(tmp_path: Path) -> None:
    env = warm.first_in_path(tmp_path, warm.CLIENT, {"PATH": "/usr/bin", "HOME": "/root"})
    assert env["PATH"] == f"{tmp_path}/bin:/usr/bin"
    assert env["HOME"] == "/root"
