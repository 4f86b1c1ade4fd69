"""Ranks as users start them: by torchrun, by `leanfed run --ranks`, and on two machines, as network namespaces are."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leanfed.files import write_json
from leanfed.runs.carry_out import run
from leanfed.runs.settings import Settings
from tests.integration.test_ranks import RUN, same

pytestmark = pytest.mark.slow
LONG = {**RUN, "rounds": 60, "evaluation": {"every": 20}, "theory": {"every": 30, "probes": 2, "samples": 8}}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
# Two machines on one: an outer namespace, and a second one behind a pair of virtual interfaces.
MACHINES = """
set -e
ip link set lo up
unshare -n sleep 600 &
other=$!
trap 'kill $other' EXIT
sleep 1
ip link add here type veth peer name there netns $other
ip addr add 10.99.0.1/24 dev here
ip link set here up
nsenter -t $other -n ip addr add 10.99.0.2/24 dev there
nsenter -t $other -n ip link set there up
nsenter -t $other -n ip link set lo up
export MASTER_ADDR=10.99.0.1 MASTER_PORT=29517 WORLD_SIZE=2
RANK=1 GLOO_SOCKET_IFNAME=there nsenter -t $other -n "$@" &
RANK=0 GLOO_SOCKET_IFNAME=here "$@"
wait $!
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "run"
    run(Settings.from_values(LONG), folder, progress=False)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.json"
    write_json(path, Settings.from_values(LONG).resolved())
    return path


def leanfed_run(file: Path, folder: Path) -> list[str]:
    return ["leanfed", "run", str(file), "--out", str(folder)]


def children(process: int) -> list[int]:
    told = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in told.split()]


def wait_for(found: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not found.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert found.exists()


def test_torchrun_survives_the_death_of_a_rank(one: Path, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "-m", *leanfed_run(file, folder)]
    process = subprocess.Popen([*TORCHRUN, *words])
    wait_for(folder / "checkpoint/manifest.json", process)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    assert process.wait(600) == 0
    assert same(folder, one)


def test_ranks_of_one_command_survive_the_death_of_the_first(one: Path, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-m", *leanfed_run(file, folder), "--ranks", "2"])
    wait_for(folder / "checkpoint/manifest.json", process)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    assert process.wait(600) == 0
    assert same(folder, one)


def test_two_machines_have_the_bits_of_one(one: Path, file: Path, tmp_path: Path) -> None:
    allowed = shutil.which("unshare") and subprocess.run(["unshare", "-Urn", "true"], check=False).returncode == 0
    if not allowed or not shutil.which("nsenter"):
        pytest.skip("this machine allows no network namespaces")
    folder = tmp_path / "run"
    words = [sys.executable, "-m", *leanfed_run(file, folder)]
    subprocess.run(["unshare", "-Urn", "bash", "-c", MACHINES, "machines", *words], check=True, timeout=600)
    assert same(folder, one)
