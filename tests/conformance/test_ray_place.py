"""Runs on a real Ray cluster of two nodes: a worker is killed, then a node, and the bits are those of a quiet run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leanfed.files import sha256_of
from leanfed.locks import lock_owner
from leanfed.runs.carry_out import run
from leanfed.runs.places import Terms, place_of
from leanfed.runs.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own


def settings_of(name: str, rounds: int) -> Settings:
    values = {
        "name": name,
        "rounds": rounds,
        "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
        "training": {"batch_size": 4},
        "run": {"threads": 1, "engine": "streamed"},
    }
    return Settings.from_values(values)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that carries out nothing, and two nodes of one processor each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra [ray])")
    from ray.cluster_utils import Cluster

    try:
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        made.nodes = [made.add_node(num_cpus=1) for _ in range(2)]
        ray.init(address=made.address, log_to_driver=False)
    except Exception as error:  # whatever keeps it from starting is not what is tested
        pytest.skip(f"Ray cannot start here: {error}")
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_killed_worker_and_a_removed_node_change_nothing(cluster: Any, tmp_path: Path) -> None:
    folders = {name: tmp_path / "runs" / name for name in ("a", "b", "c")}
    worker: list[int] = []
    node: list[int] = []
    done: list[Path] = []

    def tell() -> None:
        if not worker and (owner := lock_owner(folders["a"])) is not None:
            worker.append(owner.process)
            os.kill(owner.process, signal.SIGKILL)
        elif worker and not node and folders["a"] in done and lock_owner(folders["c"]) is not None:
            node.append(1)
            cluster.remove_node(cluster.nodes.pop(), allow_graceful=False)

    work = [(settings_of(name, 400 if name == "c" else 60), folder) for name, folder in folders.items()]
    assert place_of("ray", Terms()).carry_out(work, tell, done.append) == []
    assert (len(worker), len(node), sorted(done)) == (1, 1, sorted(folders.values()))
    for (settings, folder), name in zip(work, folders, strict=True):
        run(settings, tmp_path / "quiet" / name)
        assert sha256_of(folder / "weights.safetensors") == sha256_of(tmp_path / "quiet" / name / "weights.safetensors")
