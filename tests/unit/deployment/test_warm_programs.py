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
