"""Fixtures shared by all tests: one decoded cache for all workers, one torch thread, small worlds on real digits."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

# A busy machine is slow, not wrong: no deadline. The gate repeats its examples; a desk looks for new ones.
settings.register_profile("leanfed", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("leanfed")
os.environ["LEANFED_CACHE"] = str(Path(tempfile.gettempdir()) / f"leanfed-test-cache-{os.getuid()}")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start: threads that wait for each other spin
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # the discard port: no test asks the hub by mistake
torch.set_num_threads(1)
# No test meets a power cut, so none waits for the disk; tests/chaos/faults.c and tests/stops.py see what is flushed.
os.fsync = lambda descriptor: None

from leanfed.algorithms.base import Algorithm, Training  # noqa: E402
from leanfed.rounds.aggregation import Aggregation, WeightedMean  # noqa: E402
from leanfed.rounds.selection import Participation  # noqa: E402
from leanfed.rounds.world import World  # noqa: E402
from leanfed.tasks.models import MODELS, ModelSpec  # noqa: E402
from leanfed.tasks.partition import PartitionSettings  # noqa: E402
from leanfed.tasks.task import Task, TaskSettings, build_task  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that mostly wait for other processes first: one worker waits while the others compute."""
    waiting = ("fleet", "waits")
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in waiting))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of every search for cycles, and search seldom: 8 % of unit tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


class TinyNorm(nn.Module):
    """Two convolutions with batch normalisation, one shared and one private, and a classifier."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 4, 5, stride=3, bias=False), nn.BatchNorm2d(4)  # 32x32 -> 10x10
        self.conv2, self.norm2 = nn.Conv2d(4, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8)  # -> 4x4
        self.fc = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 32, 32) -> (batch, classes)."""
        x = torch.relu(self.norm1(self.conv1(images)))
        return self.fc(torch.relu(self.norm2(self.conv2(x))).flatten(1))


MODELS.add("tiny-norm", ModelSpec(TinyNorm, input_shape=(1, 32, 32), default_split="norm1"))
CLASS_2 = PartitionSettings(kind="class", classes_per_client=2, clients=5)


@pytest.fixture(scope="session")
def digits() -> Task:
    """Five clients with two digits each, from the embedded data."""
    return build_task(TaskSettings(partition=CLASS_2), seed=3)


@pytest.fixture(scope="session")
def world_of(digits: Task) -> Callable[..., World]:
    """A world on the five clients for an algorithm and, if given, training settings."""

    def make(
        algorithm: Algorithm,
        *,
        participation: dict[str, Any] | None = None,
        aggregation: Aggregation | None = None,
        **training: Any,
    ) -> World:
        who, rule = Participation(**(participation or {})), aggregation or WeightedMean()
        return World(digits, algorithm, Training(**training), who, aggregation=rule)

    return make


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The root of the real data sets; tests that need it are skipped without one."""
    root = os.environ.get("LEANFED_DATA")
    if not root:
        pytest.skip("LEANFED_DATA is not set")
    return Path(root)
