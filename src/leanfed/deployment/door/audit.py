"""The audit log: who joined, what was accepted or refused and why. JSON lines, owner-only, on disk at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from leanfed.files import explained

LONGEST_TEXT = 300  # characters: a stranger chooses what is logged about it, but not how much


class Audit:
    """Appends to one audit log; any number of processes may share the file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def write(self, event: str, **fields: Any) -> None:
        """Append `{"time", "event", **fields}` and wait until the disk has it; fields that are None are left out."""
        kept = {name: _short(value) for name, value in fields.items() if value is not None}
        line = json.dumps({"time": _now(), "event": event, **kept}, default=str) + "\n"
        with explained(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                lock_descriptor(descriptor, poll_interval=0.002)
                os.write(descriptor, line.encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self) -> Iterator[dict[str, Any]]:
        """The lines so far, oldest first; a torn line (power cut) is passed over."""
        if not self.path.exists():
            return
        with explained(self.path, "read"), self.path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if isinstance(row, dict):
                    yield row


class Refusals:
    """Writes refusals, and at most one line per kind and `quiet_s` seconds, so that a stranger cannot fill the disk."""

    def __init__(self, audit: Audit, *, quiet_s: float = 10.0, kinds: int = 1000) -> None:
        self.audit = audit
        self.quiet_s = quiet_s
        self.kinds = kinds
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def write(self, why: str, peer: str, **fields: Any) -> None:
        """Log that `peer` was refused; the line after a silence says how many were not written (`unwritten`)."""
        now = time.monotonic()
        written, unwritten = self._last.get((why, peer), (-self.quiet_s, 0))
        if now - written < self.quiet_s:
            self._last[why, peer] = (written, unwritten + 1)
            return
        if len(self._last) >= self.kinds:
            self._last = {key: seen for key, seen in self._last.items() if now - seen[0] < self.quiet_s}
        self._last[why, peer] = (now, 0)
        self.audit.write("refused", why=why, peer=peer, unwritten=unwritten or None, **fields)


def _now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(value: Any) -> Any:
    return value[:LONGEST_TEXT] + "…" if isinstance(value, str) and len(value) > LONGEST_TEXT else value
