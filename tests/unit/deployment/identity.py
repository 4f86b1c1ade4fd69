"""Outside Flower's processes a message does not know which run it belongs to; here it is run 1 of node 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.supercore.task_identity import TaskIdentity


@contextmanager
def as_run_one() -> Iterator[None]:
    """Messages within belong to run 1."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None
