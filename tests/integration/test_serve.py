"""`leanfed serve` as a process of its own: runs listed, followed, stopped and resumed, over real HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from leanfed.files import sha256_of
from leanfed.locks import folder_lock
from leanfed.report.live.progress import find_run_folders, standing
from leanfed.results import RunFolder
from tests.integration.conftest import Leanfed
from tests.planted import executed, plant

OUTSIDE = (
    "none",
    "",
    "..",
    "../secret.json",
    "%2e%2e/secret.json",
    "deep/../../secret.json",
    "way-out",
    "way-out/runs",
    "/etc",
)
pytestmark = pytest.mark.waits
PATIENCE_S = 120  # a busy machine is slow, not wrong


@contextmanager
def process(
    *arguments: str | Path, start: Sequence[str] = (sys.executable, "-m", "leanfed.cli"), **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A `leanfed` process that is gone afterwards."""
    command = [*start, *map(str, arguments)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@contextmanager
def served(folder: Path, *options: str, **more: Any) -> Iterator[dict[str, Any]]:
    """A server on a free port; its announcement."""
    with process("serve", folder, "--port", "0", "--json", *options, **more) as server:
        line = server.stdout.readline()
        assert line, server.stderr.read()
        yield {**json.loads(line), "process": server}


@contextmanager
def talking(folder: Path, *options: str, **more: Any) -> Iterator[httpx.Client]:
    with served(folder, *options, **more) as told:
        url = told["url"].partition("?")[0]
        with httpx.Client(base_url=url, timeout=PATIENCE_S, follow_redirects=False) as client:
            yield client


def raw(client: httpx.Client, path: str) -> tuple[int, str]:
    """A path exactly as written: other clients tidy it up before they send it."""
    connection = HTTPConnection(client.base_url.host, client.base_url.port, timeout=PATIENCE_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    told = answer.status, answer.read().decode()
    connection.close()
    return told


def wait_for(holds: Callable[[], Any]) -> Any:
    """The first true answer."""
    limit = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.05)
    return found


def messages(client: httpx.Client, path: str) -> Iterator[Any]:
    """Server-sent events, decoded."""
    with client.stream("GET", path) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


@pytest.fixture
def finished(leanfed: Leanfed, settings_file: Path, tmp_path: Path) -> Path:
    """A folder with one finished run, one that was stopped early, and one that is damaged."""
    assert leanfed("run", settings_file, "--out", "runs/deep/done", "--json").returncode == 0
    broken = tmp_path / "runs/broken"
    broken.mkdir()
    (broken / "settings.json").write_text("{")
    return tmp_path / "runs"


def test_pages_runs_and_what_is_not_there(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"password": 1}')
    (finished / "way-out").symlink_to(tmp_path)
    with talking(finished) as client:
        assert "deep/done" in client.get("/").text
        rows = {row["name"]: row for row in next(messages(client, "/events"))}
        assert sorted(rows) == ["broken", "deep/done"]
        done = rows["deep/done"]
        assert (done["state"], done["round"], done["rounds"], done["can_stop"], done["can_resume"]) == (
            *("finished", 6, 6),
            *(False, False),
        )
        assert rows["broken"]["state"] == "unreadable"
        assert "settings.json is not valid JSON" in rows["broken"]["trouble"]
        data = client.get("/data/deep/done").json()
        assert data["runs"][0]["rounds"] == 6
        assert "deep/done" in client.get("/run/deep/done").text
        assert client.get("/run/broken").status_code == 200
        for prefix in ("run", "data", "events"):
            for name in OUTSIDE:
                status, text = raw(client, f"/{prefix}/{name}")
                assert status == 404, (prefix, name)
                assert "password" not in text
        for name in ("../server.py", "%2e%2e/server.py", "none.js", "", "__init__.py"):
            assert raw(client, f"/static/{name}")[0] == 404
        assert "Plotly" in client.get("/static/plotly.min.js").text
        refused = client.post("/stop/deep/done", json={})
        assert (refused.status_code, "is not running" in refused.json()["error"]) == (400, True)
        refused = client.post("/resume/deep/done", json={})
        assert (refused.status_code, "has finished" in refused.json()["error"]) == (400, True)
        assert client.get("/stop/deep/done").status_code == 405
        for content in ("{", "[" * 50_000, '{"clients": ' + "9" * 5_000 + "}", b"\xff\xfe"):
            headers = {"content-type": "application/json"}
            assert client.post("/api/plan", content=content, headers=headers).status_code == 400
        assert "clients: must be a number" in client.post("/api/plan", json={"clients": "many"}).json()["error"]


def test_the_token_is_enforced_away_from_loopback(finished: Path) -> None:
    with served(finished, "--host", "0.0.0.0") as told, httpx.Client(timeout=PATIENCE_S) as client:
        url = told["url"].replace("0.0.0.0", "127.0.0.1")
        bare = url.partition("?")[0]
        for path in ("", "planner", "events", "data/deep/done", "static/core.js"):
            assert client.get(bare + path).status_code == 401
        assert client.post(bare + "resume/deep/done", json={}).status_code == 401
        assert client.get(bare, headers={"authorization": f"Bearer {told['token']}"}).status_code == 200
        assert client.get(url, follow_redirects=True).status_code == 200  # the link of the terminal; leaves a cookie
        assert client.get(bare + "planner").status_code == 200
        assert client.get(bare, headers={"host": "evil.example"}).status_code == 421


def test_a_run_is_followed_stopped_and_resumed_bit_for_bit(
    leanfed: Leanfed, settings_file: Path, tmp_path: Path
) -> None:
    rounds = "rounds=60"
    whole = json.loads(leanfed("run", settings_file, "--set", rounds, "--out", "whole", "--json").stdout)
    runs = tmp_path / "runs"
    runs.mkdir()
    plant(tmp_path)  # resumed runs start where the server did, and must not run what lies there
    start = (sys.executable, "-P", "-m", "leanfed.cli")
    live = process("run", settings_file, "--set", rounds, "--out", runs / "live", start=start)
    with talking(runs, start=start) as client, live as run:
        wait_for(lambda: client.get("/data/live").status_code == 200 and client.get("/data/live").json())
        followed = messages(client, "/events/live")
        first = next(followed)
        later = next(followed)
        assert first["state"] == "running"
        assert first["can_stop"]
        assert (later["round"], later["version"]) > (first["round"], "")
        assert client.post("/resume/live", json={}).status_code == 400  # it is being run already
        assert client.post("/stop/live", json={}).status_code == 200
        _, told = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 128 + signal.SIGTERM
        assert "go on with: leanfed resume" in told
        stopped = wait_for(lambda: (row := client.get("/data/live").json()) and row)
        assert 0 < stopped["runs"][0]["rounds"] < 60

        assert client.post("/resume/live", json={}).json()["state"] == "starting"
        assert client.post("/resume/live", json={}).status_code == 400
        assert client.post("/stop/live", json={}).status_code == 200  # one that the page started, on its way
        wait_for(lambda: next(messages(client, "/events/live"))["state"] == "stopped")
        assert client.post("/resume/live", json={}).status_code == 200
        ended = wait_for(lambda: (row := next(messages(client, "/events/live")))["state"] == "finished" and row)
        assert (ended["round"], ended["trouble"]) == (60, None)
    summary = json.loads((runs / "live/summary.json").read_text())
    assert summary["sha256"] == whole["sha256"]
    assert sha256_of(runs / "live/rounds.parquet") == whole["sha256"]["rounds.parquet"]
    assert executed(tmp_path) == []


def test_a_run_that_cannot_go_on_says_why(leanfed: Leanfed, settings_file: Path, tmp_path: Path) -> None:
    assert leanfed("run", settings_file, "--out", "runs/a", "--json").returncode == 0
    folder = RunFolder(tmp_path / "runs/a")
    folder.summary.unlink()
    for state in folder.checkpoint.glob("state-*"):  # of the newest save and of the one before
        state.write_bytes(b"damaged")
    with talking(tmp_path / "runs") as client:
        assert client.post("/resume/a", json={}).status_code == 200
        row = wait_for(lambda: (row := next(messages(client, "/events/a")))["trouble"] and row)
        assert "is missing or damaged" in row["trouble"]
        assert (row["state"], row["can_resume"]) == ("stopped", True)


def test_a_process_that_does_more_than_the_run_is_left_alone(
    leanfed: Leanfed, settings_file: Path, tmp_path: Path
) -> None:
    assert leanfed("run", settings_file, "--out", "runs/a", "--json").returncode == 0
    folder = RunFolder(tmp_path / "runs/a")
    folder.summary.unlink()
    with folder_lock(folder.path):  # held by this very process, which is a test runner
        assert standing("a", folder).state == "running"
        with talking(tmp_path / "runs") as client:
            row = next(messages(client, "/events/a"))
            assert (row["state"], row["can_stop"], row["can_resume"]) == ("running", False, False)
            refused = client.post("/stop/a", json={})
            assert refused.status_code == 400
            assert (
                f"process {os.getpid()} on {socket.gethostname()}, which is not a `leanfed run`"
                in refused.json()["error"]
            )
    assert standing("a", folder).state == "stopped"


def test_ctrl_c_ends_the_server_at_once_with_pages_open(finished: Path) -> None:
    with served(finished) as told, httpx.Client(base_url=told["url"], timeout=PATIENCE_S) as client:
        stream = messages(client, "/events")
        next(stream)
        began = time.monotonic()
        told["process"].send_signal(signal.SIGINT)
        _, said = told["process"].communicate(timeout=PATIENCE_S)
        assert "Traceback" not in said
        assert time.monotonic() - began < 30


def test_bad_addresses_exit_with_2(leanfed: Leanfed, tmp_path: Path) -> None:
    for arguments, message in (
        (["serve", "nowhere"], "is not a folder"),
        (["serve", ".", "--host", "192.0.2.1", "--port", "0"], "Cannot listen on 192.0.2.1"),
    ):
        done = leanfed(*arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_served_folder_may_be_one_run(finished: Path) -> None:
    assert list(find_run_folders(finished / "deep/done")) == ["done"]
    assert list(find_run_folders(finished)) == ["broken", "deep/done"]


def test_prometheus_can_scrape_the_runs(finished: Path) -> None:
    with talking(finished) as client:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert 'leanfed_run_readable{run="broken"} 0.0' in answer.text
        assert 'leanfed_round_accuracy{run="deep/done"}' in answer.text
