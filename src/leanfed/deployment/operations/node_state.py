"""What a node says of itself: a small file in its folder, true also where its processes were killed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leanfed.deployment.operations.folder import Bundle
from leanfed.errors import StorageError
from leanfed.files import read_json, write_json
from leanfed.locks import lock_owner

STATE = "state.json"


@dataclass
class NodeState:
    """Writes the state of a running node; a state that does not change is not written again."""

    bundle: Bundle
    state: str = ""
    restarts: int = 0

    def set(self, state: str, why: str | None = None) -> None:
        """joining, joined, away (the server does not answer), restarting, refused or stopped."""
        if state == self.state:
            return
        self.state = state
        now = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"state": state, "since": now, "why": why, "restarts": self.restarts, "pid": os.getpid()}
        write_json(self.bundle.path / STATE, facts)


def node_status(folder: Path) -> dict[str, Any]:
    """A node's own state, by its folder; `not running` where no process holds it, whatever was written last."""
    bundle = Bundle.open(folder)
    facts: dict[str, Any] = {"node": bundle.name, "client_id": bundle.client_id, "server": bundle.server}
    try:
        written = read_json(bundle.path / STATE)
    except StorageError:
        written = {"state": "never started"}
    if lock_owner(bundle.path) is None and written["state"] not in ("never started", "stopped", "refused"):
        written = {**written, "state": "not running", "why": f"it was {written['state']} when its process ended"}
    return facts | {name: written.get(name) for name in ("state", "since", "why", "restarts")}
