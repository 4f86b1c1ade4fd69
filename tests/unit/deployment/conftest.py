"""Outside Flower's processes a message does not know which run it belongs to; here it is run 1 of node 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr")

from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None
