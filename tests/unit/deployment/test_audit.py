"""The audit log: one JSON object a line, for its owner alone, and not to be flooded."""

from __future__ import annotations

import json
import multiprocessing
import stat
from pathlib import Path

import pytest

from leanfed.deployment.door.audit import LONGEST_TEXT, Audit, Refusals
from leanfed.errors import StorageError


def test_a_line_holds_the_time_the_event_and_its_fields(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.write("joined", node="edge-0", client_id=0, key=None)
    row = json.loads(audit.path.read_text())
    assert row.pop("time").endswith("Z")
    assert row == {"event": "joined", "node": "edge-0", "client_id": 0}  # None is left out
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_a_strangers_text_stays_one_short_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.write("refused", path='/\n{"event": "joined"}' + "x" * 5000)
    (row,) = audit.read()
    assert row["event"] == "refused"
    assert len(row["path"]) == LONGEST_TEXT + 1


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.write("first")
    with audit.path.open("a") as file:
        file.write('{"time": "2026-01-01T00:00:00Z", "eve\n')
    audit.write("last")
    assert [row["event"] for row in audit.read()] == ["first", "last"]
    assert list(Audit(tmp_path / "none.jsonl").read()) == []


def _write_many(path: Path, writer: int) -> None:
    for number in range(50):
        Audit(path).write("event", writer=writer, number=number, filler="." * 200)


def test_processes_share_a_log_without_mixing_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_many, args=(path, writer)) for writer in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    rows = list(Audit(path).read())
    assert len(rows) == 150
    assert {(row["writer"], row["number"]) for row in rows} == {(w, n) for w in range(3) for n in range(50)}


def test_repeated_refusals_are_counted_not_written(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    refusals = Refusals(audit, quiet_s=3600)
    for _ in range(100):
        refusals.write("unknown key", "10.0.0.9")
    refusals.write("unknown key", "10.0.0.8")
    assert [row["peer"] for row in audit.read()] == ["10.0.0.9", "10.0.0.8"]
    refusals.quiet_s = 0  # the silence is over
    refusals.write("unknown key", "10.0.0.9")
    assert list(audit.read())[-1]["unwritten"] == 99


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no-such-folder"):
        Audit(tmp_path / "no-such-folder" / "audit.jsonl").write("joined")
