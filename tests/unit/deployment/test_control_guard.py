"""SuperLink's control API: open to who has the owner's secret, and to nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from leanfed.deployment.door.audit import Audit
from leanfed.deployment.operations.superlink import HEADER, OUTSIDE, ControlGuard, Extension

SECRET = b"f" * 64


async def superlink(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def ask(audit: Path, path: str, headers: dict[str, str]) -> int:
    async def call() -> int:
        guard = ControlGuard(superlink, SECRET, Audit(audit))
        transport = httpx.ASGITransport(guard, client=("127.0.0.1", 4242))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="https://server") as client:
            return (await client.post(path, headers=headers)).status_code

    return asyncio.run(call())


@pytest.mark.parametrize("headers", [{}, {HEADER: ""}, {HEADER: "f" * 63}, {HEADER: "e" * 64}])
def test_without_the_secret_no_call_of_the_control_api_passes(tmp_path: Path, headers: dict[str, str]) -> None:
    audit = tmp_path / "audit.jsonl"
    assert ask(audit, "/v1/control/start-run", headers) == 401
    (row,) = Audit(audit).read()
    assert (row["event"], row["why"], row["path"]) == ("refused", OUTSIDE, "/v1/control/start-run")
    assert row["peer"] == "127.0.0.1"


def test_with_the_secret_it_passes_and_the_other_apis_are_not_its_business(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    assert ask(audit, "/v1/control/start-run", {HEADER: SECRET.decode()}) == 200
    assert ask(audit, "/v1/fleet/pull-messages", {}) == 200  # by node keys
    assert ask(audit, "/v1/runtime/acquire-task", {}) == 200  # by the SuperExec's secret
    assert list(Audit(audit).read()) == []


def test_every_run_is_written_down(tmp_path: Path) -> None:
    class Run:
        run_id, fab_hash = 7, "abc"

    audit = Audit(tmp_path / "audit.jsonl")
    Extension(SECRET, audit).on_run_started(Run(), "cli")
    (row,) = audit.read()
    assert (row["event"], row["run_id"], row["app"]) == ("run taken", 7, "abc")
