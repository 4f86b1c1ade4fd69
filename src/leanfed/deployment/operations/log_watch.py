"""Refusals that only Flower's own logs show, turned into lines of the audit log."""

from __future__ import annotations

import re

from leanfed.deployment.door.audit import Audit, Refusals

# [/v1/runtime/acquire-task][ApiError:1234] SuperExec authentication failed for ...
FAULT = re.compile(r"\[(?P<path>/v1/runtime/[\w/-]+)\]\[ApiError:\d+\] (?P<detail>.*authentication failed.*)")
# INFO :      SuperNode ID: 123
JOINED = re.compile(r"SuperNode ID: (?P<id>\d+)")
DECLINES = "leanfed declines: "  # how a line of a node's begins that says why it cannot take part in a run
RUNTIME = "unauthenticated call to the runtime API"
STALE = "call to the runtime API with a task's token that does not count: the task has ended, or it is a stranger"


class LogWatch:
    """Reads the lines of SuperLink or SuperNode as they come."""

    def __init__(self, audit: Audit, where: str) -> None:
        self.refusals = Refusals(audit)
        self.where = where
        self.node_id: int | None = None  # once a SuperNode has joined

    def __call__(self, line: str) -> None:
        """Write a refusal where the line tells of one."""
        if (found := FAULT.search(line)) is not None:
            why = STALE if "task-token" in found["detail"] else RUNTIME
            self.refusals.write(why, "loopback", path=found["path"], status=401, where=self.where)
        elif (found := JOINED.search(line)) is not None:
            self.node_id = int(found["id"])
