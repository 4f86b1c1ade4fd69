"""`deploy status`: the fleet at a glance, from the roster, SuperLink, the newest run folder and the audit log."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from leanfed.deployment.operations.control import Control, NodeState
from leanfed.deployment.operations.folder import FleetFolder
from leanfed.deployment.operations.keys import expiry
from leanfed.deployment.operations.launch import open_control
from leanfed.deployment.operations.roster import Roster
from leanfed.errors import LeanfedError, StorageError
from leanfed.results import RunFolder


def status(fleet: FleetFolder, hours: float = 24.0) -> dict[str, Any]:
    """Server, nodes, runs, rounds, and refusals of the last hours, as one JSON object."""
    server, online, runs = _server(fleet)
    return {
        "fleet": fleet.name,
        "server": server,
        "certificate_ends": expiry(fleet.server / "server.crt").isoformat(),
        "nodes": Roster.load(fleet.registry).rows(online),
        "runs": runs,
        "rounds": _rounds(fleet.path / "runs"),
        "refusals": refusals(fleet, hours),
    }


def refusals(fleet: FleetFolder, hours: float) -> list[dict[str, Any]]:
    """Reasons and how often, the most frequent first: of the door, of SuperLink, and of the server's own checks."""
    since = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
    counts: Counter[tuple[str, str]] = Counter()
    for row in fleet.audit.read():
        if row.get("event") == "refused" and str(row.get("time")) >= since[:19]:
            who = str(row.get("node", row.get("peer", "")))
            counts[str(row.get("why")), who] += 1 + int(row.get("unwritten", 0))
    return [{"why": why, "who": who, "times": times} for (why, who), times in counts.most_common()]


def _server(fleet: FleetFolder) -> tuple[str, dict[str, str] | None, list[dict[str, Any]]]:
    if not fleet.running.exists():
        return "not running", None, []
    try:
        with open_control(fleet) as control:
            states = {node.fingerprint: _state(node) for node in control.nodes()}
            return "running", states, _runs(control)
    except LeanfedError as error:
        return f"does not answer: {error}", None, []


def _state(node: NodeState) -> str:
    return f"{node.status} since {node.until[:19]}" if node.until else node.status


def _runs(control: Control) -> list[dict[str, Any]]:
    return [{"run_id": run.run_id, "status": run.status, "outcome": run.outcome or None} for run in control.runs()]


def _rounds(runs: Path) -> dict[str, Any] | None:
    """How far the newest run has come."""
    folders = [path for path in runs.iterdir() if (path / "settings.json").is_file()] if runs.is_dir() else []
    if not folders:
        return None
    newest = RunFolder(max(folders, key=lambda path: path.stat().st_mtime))
    done, accuracy = 0, None
    with suppress(StorageError):  # no round has ended yet
        table = newest.read_table("rounds")
        done, known = table.height, table["accuracy"].drop_nulls()
        accuracy = known[-1] if len(known) else None
    facts = {"run": str(newest.path), "rounds": newest.read_settings().get("rounds"), "done": done}
    return facts | {"accuracy": accuracy, "finished": newest.finished}
