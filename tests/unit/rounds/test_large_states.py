"""States that are too large for memory or for one file: on disk while a run goes on, a file each in a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import leanfed as package
from leanfed.algorithms.contract import ClientState, ServerState
from leanfed.files import read_json
from leanfed.rounds import checkpoint
from leanfed.rounds import client_store as clients
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.loop import Progress
from leanfed.rounds.weights import write_weights
from leanfed.runs.settings import Settings
from leanfed.simulation.bench import peak_bytes, reset_peak_bytes
from tests.stops import Stop, stop_after

MIB = 1 << 20


def store_of(folder: Path, clients: int = 6, size: int = 3, limit: int = 0) -> ClientStore:
    return ClientStore(clients, lambda c: ClientState(torch.full((size,), float(c))), limit, folder)


def test_states_on_disk_come_back_after_their_pages_are_gone(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for client in (4, 2):
        store[client] = ClientState(torch.full((3,), 10.0 + client), {"residual": torch.tensor([float(client)])})
    assert store[4].private.tolist() == [14, 14, 14]
    assert store[2].memory["residual"].tolist() == [2]
    assert store[5].private.tolist() == [5, 5, 5]
    assert list(tmp_path.iterdir()) == []  # the file has no name, so that nothing is left behind


def test_states_on_disk_do_not_fill_memory(tmp_path: Path) -> None:
    store = store_of(tmp_path, clients=40, size=MIB)  # 4 MiB each, 160 MiB in all
    store[0] = store[0]
    before = reset_peak_bytes()
    for client in range(40):
        store[client] = ClientState(torch.full((MIB,), float(client)))
    assert [int(store[client].private[-1]) for client in range(40)] == list(range(40))
    assert peak_bytes() - before < 40 * MIB


def test_a_folder_that_cannot_hold_states_is_told(tmp_path: Path) -> None:
    with pytest.raises(package.errors.StorageError, match="Cannot write"):
        store_of(tmp_path / "missing")[0]


def test_the_weights_file_is_what_the_library_reads(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store[3] = ClientState(torch.tensor([1.0, 2.0, 3.0]), {"residual": torch.tensor([7.0, 8.0])})
    server = ServerState(torch.arange(5.0), {"velocity": torch.ones(5)})
    write_weights(tmp_path / "w.safetensors", Progress(1, server, store), range(6))
    read = load_file(tmp_path / "w.safetensors")
    assert sorted(read) == [
        *("client.private", "client.private.clients", "client.residual", "client.residual.clients"),
        *("server.memory.velocity", "server.shared"),
    ]
    assert read["server.shared"].tolist() == [0, 1, 2, 3, 4]
    assert read["client.private"][:, 0].tolist() == [0, 1, 2, 1, 4, 5]
    assert read["client.residual"].tolist() == [[7, 8]]
    assert read["client.residual.clients"].tolist() == [3]


def settings_of(**values: object) -> Settings:
    return Settings.from_values(
        {
            "rounds": 5,
            "seed": 5,
            "task": {"model": "tiny-norm", "partition": {"kind": "class", "classes_per_client": 2, "clients": 6}},
            "algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}},
            "participation": {"fraction": 0.5},
            "training": {"momentum": 0.5, "batch_size": 8},
            "evaluation": {"every": 2, "renew_statistics": 1},
            **values,
        }
    )


TASKS = [
    {"statistics": "private"},
    {"statistics": "shared"},
    {"statistics": "private", "augment": ["crop", "flip"]},
]


@pytest.mark.parametrize("large", [False, True], ids=["one file", "a file each"])
@pytest.mark.parametrize("task", TASKS, ids=["private", "shared", "augmented"])
def test_a_resumed_run_with_running_statistics_equals_an_unbroken_one(
    task: dict[str, object], large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of()
    settings = settings.model_copy(
        update={"task": settings.task.model_validate({**settings.task.model_dump(), **task})}
    )
    whole = package.run(settings, tmp_path / "whole")
    if large:
        monkeypatch.setattr(checkpoint, "LARGE_BYTES", 1)
        monkeypatch.setattr(clients, "MEMORY_LIMIT_BYTES", 0)
    for number, go in enumerate((1, 3)):
        with pytest.raises(Stop):
            if number == 0:
                package.run(settings, tmp_path / "broken", listen=stop_after(go))
            else:
                package.resume(tmp_path / "broken", listen=stop_after(go))
    resumed = package.resume(tmp_path / "broken")
    assert resumed.summary["sha256"] == whole.summary["sha256"]
    assert resumed.rounds.equals(whole.rounds)
    weights = load_file(tmp_path / "whole/weights.safetensors")
    assert weights["client.statistics"].shape[1] == 4 + 4 + 1 + 8 + 8 + 1
    assert ("server.memory.statistics" in weights) == (task["statistics"] == "shared")


def test_large_states_are_written_once_for_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LARGE_BYTES", 1)
    monkeypatch.setattr(checkpoint, "MOST_PARTS", 2)  # merging is for small states
    cohorts = [[0, 1], [1, 2], [4]]
    with pytest.raises(Stop):
        package.run(settings_of(participation={"cohorts": cohorts}), tmp_path / "run", listen=stop_after(3))
    folder = tmp_path / "run/checkpoint"
    names = sorted(path.name for path in folder.glob("client-*"))
    assert names == [f"client-00000{c}-00000{n}.safetensors" for c, n in ((0, 1), (1, 2), (2, 2), (4, 3))]
    manifest = read_json(folder / "manifest.json")
    assert manifest["clients"] == {name: [int(name[12])] for name in names}
    assert not any(name.startswith("client.") for name in load_file(folder / manifest["server"]))


def test_weights_are_left_out_when_nobody_wants_them(tmp_path: Path) -> None:
    settings = settings_of(rounds=1, run={"keep_weights": False})
    summary = package.run(settings, tmp_path / "run").summary
    assert not (tmp_path / "run/weights.safetensors").exists()
    assert sorted(summary["sha256"]) == ["clients.parquet", "evaluations.parquet", "rounds.parquet"]


def test_an_augmented_batch_is_the_same_whenever_it_is_drawn() -> None:
    from leanfed.runs.prepare import build_world

    settings = settings_of()
    task = settings.task.model_copy(update={"augment": ("crop", "flip")})
    plain, world = build_world(settings), build_world(settings.model_copy(update={"task": task}))
    first, again, other, untouched = (
        np.stack([batch.inputs.numpy() for batch in w.alone(w.new_clients()[1], 1, number, 1.0, 1.0).batches])
        for w, number in ((world, 4), (world, 4), (world, 5), (plain, 4))
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, untouched)
    labels = [[b.labels.tolist() for b in w.alone(w.new_clients()[1], 1, 4, 1.0, 1.0).batches] for w in (world, plain)]
    assert labels[0] == labels[1]  # the same samples, looked at differently
    assert replace(world, scratch=None) == world
