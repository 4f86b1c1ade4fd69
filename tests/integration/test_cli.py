"""The command line as a user meets it: what it prints, what it refuses, how it exits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import leanfed as package
from leanfed.errors import SettingsError
from leanfed.runs.settings import Settings
from tests.integration.conftest import Leanfed


def test_run_resume_and_compare(leanfed: Leanfed, settings_file: Path, tmp_path: Path) -> None:
    done = leanfed("run", settings_file, "--out", "runs/a", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["rounds"] == 6
    assert (
        leanfed("run", settings_file, "--out", "runs/b", "--set", "algorithm={name='fedavg'}", "--seed", "6").returncode
        == 0
    )
    again = leanfed("resume", "runs/a", "--json")
    assert json.loads(again.stdout)["sha256"] == summary["sha256"]
    compared = leanfed("compare", "runs", "--target", "0.5", "--picture", "figures/c.png")
    assert compared.returncode == 0, compared.stderr
    assert "worst decile" in compared.stdout
    assert "majority guess" in compared.stdout
    assert "to 50% accuracy" in compared.stdout
    assert (tmp_path / "figures/c.png").stat().st_size > 10_000
    rows = json.loads(leanfed("compare", "runs/a", "runs/b", "--json").stdout)["runs"]
    assert [row["algorithm"] for row in rows] == ["flpdsp", "fedavg"]


def test_a_damaged_run_is_left_out_of_a_comparison(leanfed: Leanfed, settings_file: Path, tmp_path: Path) -> None:
    package.run(Settings.from_toml(settings_file, ["rounds=2"]), tmp_path / "runs/whole")
    for name, file in (("cut", "rounds.parquet"), ("torn", "settings.json"), ("rows", None), ("strange", None)):
        shutil.copytree(tmp_path / "runs/whole", tmp_path / "runs" / name)
        if file:
            (tmp_path / "runs" / name / file).write_bytes(b"PAR1 cut short")
    (tmp_path / "runs/rows/rounds.parquet").unlink()
    for rows in (tmp_path / "runs/rows/checkpoint").glob("rows-*"):
        rows.write_bytes(rows.read_bytes()[:100])
    (tmp_path / "runs/strange/settings.json").write_text('{"name": 3, "algorithm": []}')
    done = leanfed("compare", "runs", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [row["name"] for row in told["runs"]] == ["small"]
    left_out = [Path(reason.split(" is left out")[0]).name for reason in told["left_out"]]
    assert left_out == ["cut", "rows", "strange", "torn"]
    assert done.stderr.count("is left out") == 4
    alone = leanfed("compare", "runs/cut")
    assert alone.returncode == 2
    assert "No run can be compared" in alone.stderr


def test_a_dry_run_says_what_how_long_and_how_big_and_writes_nothing(
    leanfed: Leanfed, settings_file: Path, tmp_path: Path
) -> None:
    told = json.loads(leanfed("run", settings_file, "--dry-run", "--json").stdout)
    assert (told["clients"], told["participants"], told["rounds"]) == (6, 4, 6)
    assert told["shared_size"] == 50_692
    assert told["estimated_seconds"] > 0
    # Server, six heads, six residuals and six velocities.
    assert told["checkpoint_bytes"] == 4 * (50_692 + 6 * (2 * 11_014 + 50_692))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small.toml"]


def test_the_demo_ends_with_a_table_a_picture_and_its_folder(leanfed: Leanfed, tmp_path: Path) -> None:
    for folder in ("runs/demo", "runs/demo-2"):
        done = leanfed("demo", "--rounds", "2")
        assert done.returncode == 0, done.stderr
        assert f"picture: {folder}/accuracy.png" in done.stdout
        assert (tmp_path / folder / "accuracy.png").is_file()
        made = {"accuracy.png", "report.html", "fedavg", "fedper", "flpdsp"}
        assert {p.name for p in (tmp_path / folder).iterdir()} == made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "small.toml", "--out", "x", "--set", "task.partition.clients=1000"],
            "1000 clients with at least 10 samples",
        ),
        (
            ["run", "small.toml", "--out", "x", "--set", "task.partition.classes_per_client=11"],
            "more than the 10 classes",
        ),
        (["run", "small.toml", "--out", "x", "--set", "algorithm.k=0"], "a keep rate must be above 0"),
        (["run", "small.toml", "--out", "x", "--set", "algorithm.r=1.5"], "a keep rate must be above 0"),
        (["run", "small.toml", "--out", "x", "--set", "task.dataset=mnst"], "did you mean 'mnist'"),
        (["run", "small.toml", "--out", "x", "--set", "task.model=lenet"], "did you mean 'lenet5'"),
        (["run", "small.toml", "--out", "x", "--set", "task.split=conv9"], "no layer 'conv9'"),
        (["run", "small.toml", "--out", "x", "--set", "algorithm.k=[0.1,0.2]"], "lists 2 rates for 6 clients"),
        (["run", "small.toml", "--out", "x", "--set", "rondes=3"], "did you mean 'rounds'"),
        (["run", "small.toml", "--out", "small.toml/x"], "Cannot create folder"),
        (["run", "small.toml"], "Add --out DIR"),
        (
            ["run", "small.toml", "--out", "x", "--set", "algorithm.k=1e-6"],
            "algorithm.k = 1e-06 leaves none of the 50692",
        ),
        (["plan", "--fleet", "paper", "--solver", "fixed", "--k", "nan"], "--k is nan"),
        (["run", "none.toml", "--out", "x"], "No such file"),
        (
            ["run", "small.toml", "--out", "x", "--set", "task.dataset=mnist", "--data-dir", "."],
            "leanfed data --fetch mnist",
        ),
        (["resume", "x"], "not a run folder"),
        (["compare", "x"], "not a folder"),
        (["compare", ".", "--picture", "x.exe"], "--picture x.exe ends in '.exe', but must end in .png"),
        (["compare", ".", "--picture", "a/b/x.png"], "there is no folder a"),
        (["report", ".", "--out", "a/b/x.html"], "there is no folder a"),
        (["run", "small.toml", "--out", "x", "--seeds", "1-0"], "1-0 is empty. Give the smaller number first"),
        (["run", "small.toml", "--out", "x", "--seeds", "0-9999999999"], "10000000000 seeds. At most"),
        (["run", "small.toml", "--out", "x", "--seeds", "0", "--seed", "3"], "--seed and --seeds are both given"),
        (["run", "small.toml", "--dry-run", "--seeds", "garbage"], "no list of seeds"),
        (["run", "small.toml", "--out", "x", "--set", ".=3"], "has a part without a name"),
        (["run", "small.toml", "--out", "x", "--set", "rounds=0"], "small.toml with --set: rounds is 0"),
        (["compare", ".", "--target", "nan"], "--target is nan"),
        (["report", ".", "--target", "inf"], "--target is inf"),
        (["export", "x"], "x is no run folder"),
        (["export", "x", "--out", "a/b/x.onnx"], "there is no folder a"),
        (["plan", "--fleet", "paper", "--payload", "exat"], "did you mean 'exact'"),
        (["plan", "small.toml", "--model", "resnet18"], "--model is for --fleet, but small.toml holds its clients"),
        (["plan", "small.toml", "--seed", "3"], "--seed is for --fleet, but small.toml holds its clients"),
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(
    leanfed: Leanfed, settings_file: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = leanfed(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small.toml"]


def test_a_limit_can_be_left_out_on_the_command_line_and_in_a_file(settings_file: Path) -> None:
    settings = Settings.from_toml(settings_file, ["allocation.deadline_s=none", "allocation.energy_budget_j='none'"])
    assert (settings.allocation.deadline_s, settings.allocation.energy_budget_j) == (None, None)
    with pytest.raises(SettingsError, match="learning_rate is 'none', but must be a number"):
        Settings.from_toml(settings_file, ["training.learning_rate=none"])


def test_a_truncated_parquet_file_exits_with_2(leanfed: Leanfed, settings_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "data/ylecun/mnist/mnist/train-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1 cut short")
    done = leanfed("run", settings_file, "--out", "x", "--set", "task.dataset=mnist", "--data-dir", "data")
    assert done.returncode == 2
    assert "not a readable Parquet file" in done.stderr
    assert not (tmp_path / "x").exists()
    listed = leanfed("data", "--verify", "--data-dir", "data")
    assert listed.returncode == 2
    assert "damaged" in listed.stdout


def test_ctrl_c_stops_with_a_word_and_the_run_goes_on_later(
    leanfed: Leanfed, settings_file: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "leanfed.cli", "run", str(settings_file), "--set", "rounds=500", "--out", "run"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    while not (tmp_path / "run/checkpoint/manifest.json").exists():
        assert process.poll() is None, "it ended before it could be stopped"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=600)  # a busy machine is slow, not wrong
    assert process.returncode == 130
    assert "go on with: leanfed resume run" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("words", [("data",), ("schema",), ("run", "--help")])
def test_a_reader_that_leaves_early_is_no_fault(words: tuple[str, ...], tmp_path: Path) -> None:
    """`leanfed data | true`: what a shell shows for any program that is cut off like that, and not a word."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "leanfed", *words]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=600)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_data_lists_every_split(leanfed: Leanfed) -> None:
    rows = json.loads(leanfed("data", "--json", "--data-dir", "nowhere").stdout)
    assert {row["dataset"] for row in rows} >= {"mnist-5k", "mnist", "cifar10", "svhn", "mrpc"}
    assert {row["here"] for row in rows if row["dataset"] == "mnist"} == {"no"}


def test_every_positional_argument_has_help(leanfed: Leanfed) -> None:
    for verb in ("run", "resume", "study", "report", "plan"):
        shown = leanfed(verb, "--help").stdout
        words = shown.partition("Arguments")[2].partition("Options")[0]
        assert len(words.split()) > 8, f"{verb}: {words}"


def test_every_verb_has_help_with_an_example(leanfed: Leanfed) -> None:
    verbs = ["demo", "run", "resume", "compare", "data", "models", "schema", "plan", "bench", "serve"]
    for verb in [*verbs, "bench engine", "bench codec", "bench plan", "bench scale", "bench rules"]:
        assert "Example: leanfed" in leanfed(*verb.split(), "--help").stdout, verb


def test_the_schema_is_json(leanfed: Leanfed) -> None:
    assert json.loads(leanfed("schema").stdout)["title"] == "Settings"


def test_a_note_is_shown_where_heads_would_be_erased(leanfed: Leanfed, settings_file: Path) -> None:
    done = leanfed(
        "run", settings_file, "--out", "x", "--set", "rounds=1", "--set", "algorithm.prune.score=random-redrawn"
    )
    assert "erases heads" in done.stderr
