"""Many clients, of which a round sees few and a test a panel: the same bits on every engine and after every stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import leanfed as package
from leanfed.files import read_json, sha256_of
from leanfed.results import RunFolder
from leanfed.rounds import checkpoint
from leanfed.rounds.evaluation import Evaluation
from leanfed.runs.export import client_model
from leanfed.runs.prepare import build_world
from leanfed.runs.settings import Settings
from leanfed.tasks.split import flatten
from tests.rank_jobs import on_ranks, whole_run
from tests.stops import Stop, stop_after

MANY: dict[str, Any] = {
    "rounds": 6,
    "task": {"partition": {"kind": "drawn", "clients": 50_000, "samples_per_client": 20, "classes_per_client": 2}},
    "algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}},
    "training": {"batch_size": 4},
    "participation": {"fraction": 0.0002},
    "evaluation": {"every": 2, "clients": 12, "per_client": True},
    "run": {"threads": 1, "engine": "streamed"},
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "run"
    package.run(Settings.from_values(MANY), folder)
    return folder


def same(folder: Path, expected: Path) -> bool:
    names = ("weights.safetensors", "rounds.parquet", "clients.parquet", "evaluations.parquet")
    return all(sha256_of(folder / name) == sha256_of(expected / name) for name in names)


def test_only_the_panel_is_tested_and_only_who_was_seen_is_kept(unbroken: Path) -> None:
    run = package.read(unbroken)
    world = read_json(unbroken / "world.json")
    assert len(world["panel"]) == 12 == len(world["samples"]) == len(world["label_counts"])
    evaluations = RunFolder(unbroken).read_table("evaluations")
    assert evaluations.filter(evaluations["round"] == 5)["client"].to_list() == world["panel"]
    tested = run.rounds.filter(run.rounds["accuracy"].is_not_null())
    assert tested["round"].to_list() == [1, 3, 5]
    assert (tested["interval"] > 0).all()
    assert run.rounds["interval"].null_count() == 3
    took_part = set(run.clients["client"].to_list())
    assert len(took_part) >= 50
    kept = load_file(unbroken / "weights.safetensors")["client.private.clients"].tolist()
    assert kept == sorted(took_part | set(world["panel"]))
    alone = {c: a for c, a in zip(run.clients["client"], run.clients["accuracy"], strict=True) if a is not None}
    assert set(alone) <= set(world["panel"])


@pytest.mark.parametrize("engine", ["reference", "streamed"])
def test_engines_agree(engine: str, unbroken: Path, tmp_path: Path) -> None:
    package.run(Settings.from_values({**MANY, "run": {"threads": 2, "engine": engine}}), tmp_path / "run")
    assert same(tmp_path / "run", unbroken)


def test_a_stopped_run_goes_on_and_old_files_are_merged(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_PARTS", 2)
    monkeypatch.setattr(checkpoint, "MERGED_BYTES", 30 * 4 * 61_706)  # about the clients of three rounds
    with pytest.raises(Stop):
        package.run(Settings.from_values(MANY), tmp_path / "run", listen=stop_after(5))
    parts = read_json(tmp_path / "run" / "checkpoint" / "manifest.json")["clients"]
    assert 1 < len(parts) <= 4
    assert max(map(len, parts.values())) <= 40
    package.resume(tmp_path / "run")
    assert same(tmp_path / "run", unbroken)


@pytest.mark.waits
def test_ranks_agree(unbroken: Path, tmp_path: Path) -> None:
    assert on_ranks(2, tmp_path, whole_run, MANY, str(tmp_path / "run")) == [6, None]
    assert same(tmp_path / "run", unbroken)


def test_a_client_that_was_never_seen_has_its_initial_head(unbroken: Path) -> None:
    seen = load_file(unbroken / "weights.safetensors")["client.private.clients"].tolist()
    stranger = next(client for client in range(50_000) if client not in seen)
    world, model = client_model(RunFolder(unbroken), stranger)
    assert torch.equal(flatten(model, world.split.private), world.task.initial_private(world.split, stranger))


def test_the_interval_is_that_of_a_draw_without_replacement() -> None:
    """On panels of a known population, 95 % of the intervals hold its mean, give or take."""
    rng = np.random.default_rng(0)
    everyone = rng.uniform(size=400)
    held = 0
    for _ in range(400):
        panel = rng.choice(400, 300, replace=False)  # so many that the factor 1 - M / N is felt
        tested = Evaluation(everyone[panel], everyone[panel], np.full(300, 1 / 300), of_clients=400)
        assert tested.interval is not None and tested.accuracy is not None
        held += abs(tested.accuracy - everyone.mean()) <= tested.interval
    assert 0.91 * 400 <= held <= 0.985 * 400


def test_all_tested_clients_leave_no_doubt() -> None:
    assert Evaluation(np.ones(3), np.ones(3), np.full(3, 1 / 3)).interval is None
    world = build_world(Settings.from_values({"evaluation": {"clients": 100}}))
    assert not world.sampled
