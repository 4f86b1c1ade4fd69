"""Every test here speaks as run 1 of node 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr")

from tests.unit.deployment.identity import as_run_one


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with as_run_one():
        yield
