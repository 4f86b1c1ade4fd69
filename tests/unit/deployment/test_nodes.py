"""A node that is kept running: how long it waits, and what it says of itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leanfed.deployment.operations import keys
from leanfed.deployment.operations import warm_programs as warm
from leanfed.deployment.operations.backoff import Backoff
from leanfed.deployment.operations.folder import Bundle
from leanfed.deployment.operations.node_state import NodeState, node_status
from leanfed.locks import folder_lock


def test_pauses_double_up_to_a_minute_and_begin_again_after_calm() -> None:
    now = [0.0]
    backoff = Backoff(clock=lambda: now[0])
    pauses = []
    for _ in range(9):
        pauses.append(backoff.next())
        now[0] += pauses[-1] + 1.0  # it ran for a second
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    now[0] += 120.0
    assert backoff.next() == 1


def test_a_node_tells_the_truth_also_after_its_process_was_killed(tmp_path: Path) -> None:
    fleet = keys.make_fleet(tmp_path / "fleet", nodes=["edge-0"])
    bundle = Bundle.open(fleet.bundle("edge-0"))
    assert node_status(bundle.path)["state"] == "never started"
    state = NodeState(bundle)
    with folder_lock(bundle.path):
        state.set("joined")
        state.set("away", "Connection refused")
    gone = node_status(bundle.path)
    assert (gone["state"], gone["why"]) == ("not running", "it was away when its process ended")
    state.set("stopped")
    assert node_status(bundle.path)["state"] == "stopped"
    assert json.loads((bundle.path / "state.json").read_text())["pid"] == os.getpid()


@pytest.mark.waits
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_forked_program_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    """kill -9 of the fork server while a program of its works: nothing lives on."""
    code = f"""
import sys, time
from pathlib import Path
from leanfed.deployment.operations import warm_programs as warm
server = warm.ForkServer(Path({str(tmp_path / "warm")!r}), "flwr-clientapp")
warm._import_all = lambda name: lambda: (print("at work", flush=True), time.sleep(600))
server.run()
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    socket = tmp_path / "warm" / warm.SOCKET
    wait(socket.exists)
    caller = subprocess.Popen(
        [warm.prepare(tmp_path / "warm", warm.CLIENT) / warm.CLIENT], stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == "at work\n"
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait(lambda: not Path(f"/proc/{child}").exists())
    assert caller.wait(30) == 1
    caller.stdout.close()


def wait(condition: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "too long"
        time.sleep(0.05)
