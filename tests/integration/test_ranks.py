"""A run has the same bits on any number of ranks, survives the death of one, and refuses what cannot be spread.

Ranks are forked from one warm process; torchrun, network namespaces and kills at random instants are in
test_torchrun.py.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from leanfed.algorithms import ALGORITHMS
from leanfed.files import read_json, sha256_of
from leanfed.results import RunFolder
from leanfed.rounds.ranks import ALONE
from leanfed.runs.carry_out import resume, run
from leanfed.runs.launch import launch
from leanfed.runs.settings import Settings
from leanfed.streams import stream
from tests.rank_jobs import merged, on_ranks, own_folder, own_settings, resnet18, states, tiny_norm, whole_run

pytestmark = pytest.mark.waits
ROOT = Path(__file__).resolve().parents[2]
# Error feedback and momentum, masks, memories of the server and of clients, personal models beside the shared one.
FEW = [
    ("flpdsp", "batched"),
    ("flpdsp", "streamed"),
    ("fedmask", "batched"),
    ("scaffold", "batched"),
    ("apfl", "batched"),
]
RUN: dict[str, Any] = {
    "rounds": 4,
    "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
    "training": {"batch_size": 4, "learning_rate": 0.1},
    "participation": {"fraction": 0.8},
    "evaluation": {"every": 2},
    "theory": {"every": 2, "probes": 2, "samples": 8},
    "algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}},
    "run": {"engine": "streamed", "threads": 1},
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    folder = tmp_path_factory.mktemp("one") / "run"
    run(Settings.from_values(RUN), folder, progress=False)
    return folder


def same(folder: Path, expected: Path) -> bool:
    """Whether two finished runs have the same weights and rows."""
    names = ("weights.safetensors", "rounds.parquet", "clients.parquet", "evaluations.parquet")
    return all(sha256_of(folder / name) == sha256_of(expected / name) for name in names)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in RunFolder(folder).read_events() if event["event"] == name]


@pytest.mark.parametrize("size", [2, 3])
def test_states_and_rows_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    assert merged(on_ranks(size, tmp_path, states, FEW)) == states(ALONE, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_method_has_the_same_states_on_any_number_of_ranks(size: int, tmp_path: Path) -> None:
    cases = [(method, engine) for method in ALGORITHMS for engine in ("batched", "streamed")]
    assert merged(on_ranks(size, tmp_path, states, cases, patience_s=900)) == states(ALONE, cases)


@pytest.mark.parametrize("statistics", ["private", "shared"])
def test_running_statistics_are_those_of_one_process(statistics: str, tmp_path: Path) -> None:
    assert merged(on_ranks(2, tmp_path, tiny_norm, statistics)) == tiny_norm(ALONE, statistics)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("statistics", ["private", "shared"])
def test_resnet18_has_the_same_states_on_any_number_of_ranks(size: int, statistics: str, tmp_path: Path) -> None:
    found = merged(on_ranks(size, tmp_path, resnet18, statistics, patience_s=900))
    assert found == resnet18(ALONE, statistics)


def test_a_killed_rank_costs_no_bit_and_another_number_goes_on(one: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second = on_ranks(2, tmp_path, whole_run, RUN, str(folder), (1, 2))
    assert second is None  # it was killed in its third round,
    assert first[0] == 1  # the other says that it lost it,
    assert "The 2 ranks lost each other" in first[1]
    assert read_json(folder / "checkpoint/manifest.json")["round"] == 2  # and the last checkpoint is whole.
    assert on_ranks(3, tmp_path, whole_run, RUN, str(folder)) == [4, None, None]
    assert same(folder, one)
    assert [event["count"] for event in events(folder, "ranks")] == [2, 3]
    assert len(events(folder, "finish")) == 1
    assert on_ranks(2, tmp_path, whole_run, RUN, str(folder)) == [4, None]  # it is read back: torchrun may start anew


@pytest.mark.slow
def test_kills_at_random_instants_cost_no_bit(one: Path, tmp_path: Path) -> None:
    """Twenty kills of a random rank among 2 to 4 (or before the first checkpoint), then one process ends the run."""
    folder, rng, killed = tmp_path / "run", stream(5, "kills"), 0
    while killed < 20:
        size = int(rng.integers(2, 5))
        victim = (int(rng.integers(size)), float(rng.uniform(0.05, 3.0)))
        answers = on_ranks(size, tmp_path, whole_run, RUN, str(folder), victim=victim)
        killed += answers[victim[0]] is None
        if (folder / "summary.json").is_file():
            assert same(folder, one)
            shutil.rmtree(folder)
    if not (folder / "settings.json").is_file():
        pytest.skip("the last kill came before the run had settings")
    resume(folder, progress=False)
    assert same(folder, one)


def test_one_process_goes_on_where_ranks_stopped_and_the_reverse(one: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    on_ranks(3, tmp_path, whole_run, RUN, str(folder), (2, 2))
    resume(folder, progress=False)
    assert same(folder, one)


def test_an_error_of_one_rank_is_said_once_by_all(tmp_path: Path) -> None:
    wild = {**RUN, "training": {"batch_size": 4, "learning_rate": 1000.0}, "theory": {}}
    told = on_ranks(2, tmp_path, whole_run, wild, str(tmp_path / "run"))
    assert [code for code, _, _ in told] == [2, 2]
    assert told[0][1] == told[1][1]
    assert "diverge" in told[0][1]
    assert [silent for _, _, silent in told] == [False, True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"aggregation": {"name": "median"}, "algorithm": {"name": "fedper"}},
            "over 2 ranks: the aggregation rule Median looks at every upload",
        ),
        ({"privacy": {"unit": "client", "noise_multiplier": 1.0}}, "privacy.unit = 'client' clips every upload"),
        ({"adversary": {"kind": "sign-flip"}}, "adversary.kind = 'sign-flip' looks at every upload"),
        ({"run": {"engine": "batched-torch"}}, "rounds a client's numbers differently in chunks of another size"),
    ],
)
def test_what_cannot_be_spread_is_refused_before_anything_is_written(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    told = on_ranks(2, tmp_path, whole_run, RUN | changes, str(tmp_path / "run"))
    assert [code for code, _, _ in told] == [2, 2]
    assert words in told[0][1]
    assert not (tmp_path / "run").exists()


def test_ranks_with_different_settings_are_refused(tmp_path: Path) -> None:
    told = on_ranks(2, tmp_path, own_settings, RUN, str(tmp_path / "run"), "rounds")
    assert [code for code, _, _ in told] == [2, 2]
    assert "has rounds = '5', but rank 0" in told[0][1]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_a_rank_cannot_see_is_refused(tmp_path: Path) -> None:
    told = on_ranks(2, tmp_path, own_folder, RUN, str(tmp_path / "run"))
    assert [code for code, _, _ in told] == [2, 2]
    assert "run-1 on" in told[0][1]
    assert "a file system that all machines share" in told[0][1]
    assert not (tmp_path / "run-1").exists()


def test_a_folder_with_another_run_is_refused(one: Path, tmp_path: Path) -> None:
    told = on_ranks(2, tmp_path, whole_run, {**RUN, "seed": 9}, str(one))
    assert told[0][:2] == [2, f"{one} holds a run of other settings. Choose another folder, or remove this one."]


def test_the_example_for_slurm_is_a_script_that_runs_the_documented_command() -> None:
    script = ROOT / "examples/slurm_ranks.sh"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert "-m leanfed run" in script.read_text()


def test_the_launcher_ends_as_its_ranks_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(2, ["plan", str(tmp_path / "missing.json")]) == 2
    assert "started anew" not in capfd.readouterr().err
