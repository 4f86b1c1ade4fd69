"""Processes that live and die together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from leanfed.deployment.door.audit import Audit
from leanfed.deployment.operations.log_watch import RUNTIME, STALE, LogWatch
from leanfed.deployment.operations.supervise import ChildEndedError, Supervisor

PYTHON = sys.executable
STAY = "import time; print('up', flush=True); time.sleep(600)"
# A child with a child of its own, which ignores SIGTERM, as a training process might.
STUBBORN = f"""
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); " + {STAY!r}])
print("inner", inner.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie of another parent is dead, too.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait(condition: object, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def test_when_one_child_ends_the_others_are_stopped_and_its_last_words_are_told(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    with (
        pytest.raises(ChildEndedError, match=r"(?s)second ended with code 7.*no such luck.*second.log") as raised,
        supervisor(),
    ):
        first = supervisor.start("first", [PYTHON, "-c", STAY], os.environ)
        supervisor.start("second", [PYTHON, "-c", "print('no such luck'); raise SystemExit(7)"], os.environ)
        supervisor.run(every=0.05)
    assert raised.value.exit_code == 1
    assert not alive(first.process.pid)
    assert "no such luck" in (tmp_path / "logs" / "second.log").read_text()


def test_a_signal_stops_all_and_is_no_fault(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    before = signal.getsignal(signal.SIGTERM)
    lines: list[str] = []
    with supervisor():
        child = supervisor.start("child", [PYTHON, "-c", STAY], os.environ, lines.append)
        supervisor.wait_for(lambda: lines == ["up"], what="child", seconds=30)
        os.kill(os.getpid(), signal.SIGTERM)
        supervisor.run(every=0.05)
        pytest.fail("run returns only by an exception")
    assert not alive(child.process.pid)
    assert signal.getsignal(signal.SIGTERM) is before


def test_grandchildren_are_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leanfed.deployment.operations.supervise.GRACE_S", 0.5)
    supervisor = Supervisor(tmp_path / "logs")
    lines: list[str] = []
    with supervisor():
        supervisor.start("stubborn", [PYTHON, "-c", STUBBORN], os.environ, lines.append)
        supervisor.wait_for(lambda: {"up"} < set(lines), what="inner", seconds=30)
    (inner,) = (int(line.split()[1]) for line in lines if line.startswith("inner"))
    assert wait(lambda: not alive(inner))


def test_high_waves_stop_first(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    said: list[str] = []
    code = "import signal, sys, time; signal.signal(15, lambda *_: (print('bye', flush=True), sys.exit()))\n" + STAY
    with supervisor():
        for wave, name in enumerate(("superlink", "superexec", "door")):
            supervisor.start(
                name, [PYTHON, "-c", code], os.environ, lambda text, name=name: said.append(f"{name} {text}"), wave=wave
            )
        supervisor.wait_for(lambda: len(said) == 3, what="all", seconds=30)
    assert wait(lambda: len(said) == 6)
    assert said[3:] == ["door bye", "superexec bye", "superlink bye"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
        import os, sys, time
        from pathlib import Path
        from leanfed.deployment.operations.supervise import Supervisor
        supervisor = Supervisor(Path({str(tmp_path)!r}) / "logs")
        with supervisor():
            child = supervisor.start("child", [sys.executable, "-c", {STAY!r}], os.environ)
            supervisor.wait_for(lambda: list(child.last) == ["up"], what="child", seconds=30)
            print(child.process.pid, flush=True)
            supervisor.run()
    """
    parent = subprocess.Popen([PYTHON, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait(lambda: not alive(child))


def test_flowers_own_refusals_become_audit_lines(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    watch = LogWatch(audit, "SuperLink, loopback")
    for line in (
        '2026-11-16T01:44:23Z INFO [uvicorn.access] 127.0.0.1:1 - "POST /v1/control/list-nodes HTTP/1.1" 200',
        "ERROR :     [/v1/runtime/acquire-task][ApiError:1009] SuperExec authentication failed for AcquireTask.",
        "ERROR :     [/v1/runtime/pull-task-input][ApiError:1008] Runtime task-token authentication failed.",
        "ERROR :     [/v1/fleet/push-messages][ApiError:2007] SuperNode 1, exception: Run is finished.",
        "INFO :      SuperNode ID: 13405084305073661132",
    ):
        watch(line)
    assert [(row["why"], row["path"], row["status"]) for row in audit.read()] == [
        (RUNTIME, "/v1/runtime/acquire-task", 401),
        (STALE, "/v1/runtime/pull-task-input", 401),
    ]
    assert watch.node_id == 13405084305073661132
