"""A tracker that is lost in mid-run is dropped with one note; the run ends as without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import leanfed
from leanfed.errors import InputError
from leanfed.results import RunFolder

Loss = Callable[[], None]


def settings(**track: str) -> leanfed.Settings:
    task = {"partition": {"kind": "iid", "clients": 3}}
    return leanfed.Settings(rounds=4, task=task, evaluation={"every": 1}, run={"track": track})


def run_and_lose(given: leanfed.Settings, folder: Path, lose: Loss) -> list[str]:
    """Run; after the first round `lose` is called. Returns what the user is told."""
    told: list[str] = []

    def listen(record: Any) -> None:
        if record.row["round"] == 0:
            lose()

    done = leanfed.run(given, folder, listen=listen, notify=told.append)
    assert done.rounds["round"].to_list() == [0, 1, 2, 3]
    events = list(RunFolder(folder).read_events())
    assert events[-1]["event"] == "finish"
    assert [event["text"] for event in events if event["event"] == "note"] == told
    return told


def put_a_file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder any more")


@pytest.mark.parametrize("tracker", ["csv", "tensorboard"])
def test_a_folder_that_goes_away_costs_the_tracker_and_not_the_run(tmp_path: Path, tracker: str) -> None:
    if tracker == "tensorboard":
        pytest.importorskip("tensorboard")
    logs, kept = tmp_path / "logs", tmp_path / "kept.csv"
    target = str(logs / "rounds.csv") if tracker == "csv" else str(logs)
    given = settings(**{"csv": str(kept), tracker: target})
    (told,) = run_and_lose(given, tmp_path / "run", lambda: put_a_file_in_its_place(logs))
    assert told.startswith(f"run.track.{tracker} = '{target}' cannot be written any more:")
    assert told.endswith("The run goes on without it.")
    if tracker != "csv":  # the others still hear of every round
        assert len(kept.read_text().splitlines()) == 5


class Mlflow(BaseHTTPRequestHandler):
    """As much of MLflow's REST interface as a run asks for."""

    batches: ClassVar[list[dict[str, Any]]] = []
    answers: ClassVar[dict[str, Any]] = {
        "experiments/get-by-name": {"experiment": {"experiment_id": "1", "name": "leanfed"}},
        "runs/search": {},
        "runs/create": {"run": {"info": {"run_id": "7", "run_uuid": "7", "status": "RUNNING"}, "data": {}}},
        "runs/log-batch": {},
        "runs/update": {"run_info": {"run_id": "7", "run_uuid": "7", "status": "FINISHED"}},
    }

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = "/".join(self.path.partition("?")[0].split("/")[-2:])
        if name == "runs/log-batch":
            self.batches.append(json.loads(body))
        content = json.dumps(self.answers.get(name, {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@contextmanager
def mlflow_server() -> Iterator[tuple[str, Loss]]:
    """An address, and how to end what answers there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mlflow)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def lose() -> None:
        server.shutdown()
        server.server_close()

    try:
        yield f"http://127.0.0.1:{server.server_port}", lose
    finally:
        lose()
        thread.join()


@pytest.mark.filterwarnings("ignore")  # of packages that MLflow brings
def test_a_server_that_ends_costs_the_tracker_and_not_the_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    Mlflow.batches.clear()
    with mlflow_server() as (address, lose):
        (told,) = run_and_lose(settings(mlflow=address), tmp_path / "run", lose)
    assert told.startswith(f"run.track.mlflow = '{address}' cannot be written any more:")
    steps = [metric["step"] for batch in Mlflow.batches for metric in batch.get("metrics", [])]
    assert set(map(int, steps)) == {0}


@pytest.mark.filterwarnings("ignore")
def test_a_run_goes_on_without_a_server_that_is_gone_but_does_not_begin_without_one(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")

    class Stop(Exception):
        pass

    def stop(record: object) -> None:
        raise Stop

    with mlflow_server() as (address, _), pytest.raises(Stop):
        leanfed.run(settings(mlflow=address), tmp_path / "run", listen=stop)
    told: list[str] = []
    assert leanfed.resume(tmp_path / "run", notify=told.append).rounds.height == 4
    assert [text.partition(" =")[0] for text in told] == ["run.track.mlflow"]
    with pytest.raises(InputError, match=r"run.track.mlflow = 'http.*cannot be written: .*or leave it out"):
        leanfed.run(settings(mlflow=address), tmp_path / "other")
    assert leanfed.run(settings(), tmp_path / "other").rounds.height == 4  # nothing was left in the way


def test_a_csv_file_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    def never(record: object) -> None:
        pytest.fail("a round was played")

    (tmp_path / "rounds.csv").mkdir()
    with pytest.raises(InputError, match=r"rounds\.csv"):
        leanfed.run(settings(csv=str(tmp_path / "rounds.csv")), tmp_path / "run", listen=never)


def test_a_run_without_a_folder_warns(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    given = settings(csv=str(tmp_path / "logs" / "rounds.csv"))
    with pytest.warns(UserWarning, match=r"run\.track\.csv .* The run goes on without it\.") as warned:
        leanfed.run(given, listen=lambda record: shutil.rmtree(tmp_path / "logs", ignore_errors=True))
    assert len(warned) == 1


WANDB = """
import os, signal, subprocess, sys
import leanfed

def lose(record):
    if record.row["round"] == 0:
        found = subprocess.run(["pgrep", "-P", str(os.getpid()), "wandb-core"], capture_output=True, text=True)
        os.kill(int(found.stdout), signal.SIGKILL)

task = {"partition": {"kind": "iid", "clients": 3}}
settings = leanfed.Settings(rounds=3, task=task, run={"track": {"wandb": "digits"}})
leanfed.run(settings, sys.argv[1] + "/whole")
print(leanfed.run(settings, sys.argv[1] + "/killed", listen=lose, notify=print).rounds.height)
"""


@pytest.mark.slow  # TensorBoard and MLflow are tried always
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="pgrep is not installed")
def test_wandb_hears_of_a_run_and_its_process_may_be_killed_in_the_next(tmp_path: Path) -> None:
    """In a process of their own: the package writes its files when the process ends."""
    pytest.importorskip("wandb")
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WANDB, str(tmp_path)],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    note, rounds = done.stdout.splitlines()
    assert note.startswith("run.track.wandb = 'digits' cannot be written any more: ")
    assert rounds == "3"
    assert "Traceback" not in done.stderr
    records = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda record: record.stat().st_mtime_ns)
    assert len(records) == 2
    assert b"worst_decile" in records[0].read_bytes()
