"""`leanfed reproduce` from the command line to the last file, stopped and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import leanfed.reproduction.paper  # noqa: F401  (fills the catalogue)
from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Job, Line, Measured, Outcome, Scale
from leanfed.reproduction.judging import Less, key_of
from leanfed.reproduction.paper.protocol import curve_of
from leanfed.reproduction.reproduce import Request, Watch, reproduce
from leanfed.runs.settings import Settings
from tests.integration.conftest import Leanfed
from tests.planted import executed, plant

FINAL = "final accuracy"


def cell(method: str) -> dict[str, str]:
    return {"method": method, "quantity": FINAL}


def tiny_jobs(scale: Scale) -> list[Job]:
    return [
        Job(
            {"method": name},
            Settings.from_values(
                {
                    "name": f"{name} tiny",
                    "seed": seed,
                    "rounds": 4 if scale.quick else 12,
                    "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
                    "algorithm": {"name": name},
                    "evaluation": {"every": 2},
                    "run": {"threads": 1},
                }
            ),
        )
        for seed in scale.seeds
        for name in ("fedper", "fedavg")
    ]


def tiny_measure(outcomes: list[Outcome], scale: Scale) -> Measured:
    curves = [(outcome.job, curve_of(outcome)) for outcome in outcomes]
    return Measured(
        [(cell(job.labels["method"]), job.settings.seed, curve.accuracy[-1]) for job, curve in curves],
        [Line("(a) tiny", job.labels["method"], curve.spent["latency_s"], curve.accuracy) for job, curve in curves],
    )


TINY = Entry(
    title="A tiny comparison",
    place="not in the paper",
    claims=(Claim("FedAvg ends below FedPer + 1", "yes", Less(cell("fedavg"), cell("fedper"), slack=1.0)),),
    jobs=tiny_jobs,
    measure=tiny_measure,
    published={key_of(cell("fedper")): 0.98},
    form=Form(rows=("method",), columns=("quantity",), panels=("(a) tiny",)),
)


@pytest.fixture
def tiny() -> Iterator[str]:
    ENTRIES.add("tiny", TINY)
    yield "tiny"
    ENTRIES.remove("tiny")


def test_a_quick_entry_from_the_command_line_to_the_last_file(leanfed: Leanfed, tiny: str, tmp_path: Path) -> None:
    ended = leanfed("reproduce", tiny, "--quick", "--processes", "1")
    assert ended.returncode == 0, ended.stderr
    assert "2 runs are missing" in ended.stderr
    assert "a quick version" in ended.stdout
    folder = tmp_path / "results" / "quick" / tiny
    results = json.loads((folder / "results.json").read_text())
    assert (results["version"], results["runs_missing"], results["seeds"]) == ("quick", 0, [0])
    fedper = next(number for number in results["numbers"] if number["labels"]["method"] == "fedper")
    assert fedper["published"] == 0.98
    assert fedper["mean"] == fedper["ours"][0] == fedper["range"][1]
    assert results["claims"][0]["verdict"] == "holds"
    assert pl.read_parquet(folder / "numbers.parquet")["value"].null_count() == 0
    assert pl.read_parquet(folder / "curves.parquet")["label"].n_unique() == 2
    assert (folder / "figure.png").stat().st_size > 10_000
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert r"\begin{tabular}" in (folder / "table.tex").read_text()
    page = (folder.parent / "RESULTS.md").read_text()
    assert page.startswith("# Quick results")
    assert "**holds**" in page
    assert not (tmp_path / "RESULTS.md").exists()


@pytest.mark.usefixtures("undrawn")
def test_finished_runs_are_not_run_again(leanfed: Leanfed, tiny: str, tmp_path: Path) -> None:
    first = leanfed("reproduce", tiny, "--quick", "--processes", "1", "--json")
    (tmp_path / "runs" / "reproduce").rename(tmp_path / "elsewhere")
    again = leanfed("reproduce", tiny, "--quick", "--no-train", "--runs", "elsewhere", "--json")
    keep = ("numbers", "claims", "runs_missing")
    entries = [json.loads(ended.stdout)["entries"][0] for ended in (first, again)]
    assert [entries[0][key] for key in keep] == [entries[1][key] for key in keep]
    nothing = json.loads(leanfed("reproduce", tiny, "--quick", "--no-train", "--runs", "none", "--json").stdout)
    assert nothing["entries"][0]["runs_missing"] == 2
    assert nothing["entries"][0]["claims"][0]["verdict"] == "not judged"


@pytest.mark.usefixtures("undrawn")
def test_seeds_are_added_on_a_machine_without_the_first_ones(tiny: str, tmp_path: Path) -> None:
    first = reproduce(Request([tiny], tmp_path / "here", tmp_path / "out", 1, processes=1))[0]
    known = Request([tiny], tmp_path / "there", tmp_path / "out", 2, train=False)
    assert reproduce(known)[0]["runs_missing"] == 2
    both = reproduce(replace(known, train=True, processes=1))[0]
    assert both["runs_missing"] == 0
    assert len(list((tmp_path / "there").glob("*/summary.json"))) == 2  # only the second seed was trained there
    for before, after in zip(first["numbers"], both["numbers"], strict=True):
        assert after["ours"][0] == before["ours"][0]
        assert len(after["ours"]) == 2
    assert len(list((tmp_path / "out" / "runs").glob("*.zip"))) == 4


def test_results_are_judged_again_without_runs(leanfed: Leanfed, tiny: str, tmp_path: Path) -> None:
    leanfed("reproduce", tiny, "--quick", "--processes", "1")
    file = tmp_path / "results" / "quick" / tiny / "results.json"
    drawn = [file.parent / name for name in ("figure.png", "figure.pdf", "curves.parquet")]
    before, pictures = file.read_text(), [path.read_bytes() for path in drawn]
    drawn[0].unlink()
    leanfed("reproduce", tiny, "--quick", "--judge-only")
    assert file.read_text() == before
    assert [path.read_bytes() for path in drawn] == pictures  # drawn anew from the points
    ENTRIES.remove(tiny)
    ENTRIES.add(
        tiny, replace(TINY, claims=(Claim("the reverse", "no", Less(cell("fedper"), cell("fedavg"), slack=-1)),))
    )
    leanfed("reproduce", tiny, "--quick", "--judge-only")
    after = json.loads(file.read_text())
    assert [claim["verdict"] for claim in after["claims"]] == ["fails"]
    assert after["numbers"] == json.loads(before)["numbers"]


@pytest.mark.waits
@pytest.mark.usefixtures("undrawn")
def test_a_reproduction_that_is_killed_goes_on(tiny: str, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; import tests.integration.test_reproduce as t;"
        "t.ENTRIES.add('tiny', t.TINY); t.reproduce(t.Request(['tiny'], Path('runs'), Path('out'), 2, processes=2))"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    try:
        until = time.monotonic() + 500  # a busy machine takes its time to start two processes
        while not list(tmp_path.glob("runs/*/checkpoint/manifest.json")):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    begun = {path.parent for path in tmp_path.glob("runs/*/settings.json")}
    assert begun
    assert not (tmp_path / "out").exists()
    request = Request([tiny], tmp_path / "runs", tmp_path / "out", 2, processes=1)
    deadline = time.monotonic() + 60
    while True:  # its workers end with it, which frees their folders
        results = reproduce(request)[0]
        if not results["failures"] or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert results["runs_missing"] == 0
    whole = reproduce(Request([tiny], tmp_path / "unbroken", tmp_path / "out2", 2, processes=1))[0]
    assert results["numbers"] == whole["numbers"]


@pytest.mark.usefixtures("undrawn")
def test_runs_are_carried_out_in_several_processes(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plant(tmp_path))
    told: list[int] = []
    watch = Watch(begin=lambda runs, rounds, seconds: told.append(rounds), tell=lambda: told.append(1))
    results = reproduce(Request([tiny], tmp_path / "runs", tmp_path, quick=True, processes=2), watch)[0]
    assert results["runs_missing"] == 0
    assert told == [8, *[1] * 8]
    assert executed(tmp_path) == []


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_cannot_be_carried_out_is_told(leanfed: Leanfed, tmp_path: Path) -> None:
    def jobs(scale: Scale) -> list[Job]:
        good = tiny_jobs(Scale((0,), quick=True))[0]
        task = {"partition": {"kind": "class", "classes_per_client": 2, "clients": 4}}
        return [good, Job({"method": "few"}, Settings.from_values({"name": "few", "task": task}))]

    ENTRIES.add("broken", Entry("broken", "nowhere", jobs=jobs, measure=tiny_measure, form=TINY.form))
    try:
        ended = leanfed("reproduce", "broken", "--quick", "--processes", "1")
    finally:
        ENTRIES.remove("broken")
    assert ended.returncode == 1
    assert "few: 4 clients with 2 classes each cannot own all 10 classes" in ended.stderr.replace("\n", " ")
    assert json.loads((tmp_path / "results/quick/broken/results.json").read_text())["runs_missing"] == 1


@pytest.mark.usefixtures("undrawn")
def test_entries_without_training_are_whole(leanfed: Leanfed, tmp_path: Path) -> None:
    ended = leanfed("reproduce", "bandwidth", "parameters", "--quick", "--json")
    entries = {entry["name"]: entry for entry in json.loads(ended.stdout)["entries"]}
    ten = next(n for n in entries["bandwidth"]["numbers"] if n["labels"]["bandwidth"] == "10 MHz")
    assert ten["published"] == 0.74
    assert 0.3 < ten["mean"] < 1.0


def test_the_list_names_every_entry(leanfed: Leanfed) -> None:
    rows = json.loads(leanfed("reproduce", "--list", "--json").stdout)
    assert [row["name"] for row in rows] == list(ENTRIES)
    assert "mnist-cost" in leanfed("reproduce", "--list").stdout


def test_an_unknown_entry_is_refused(leanfed: Leanfed) -> None:
    ended = leanfed("reproduce", "mnist-costs")
    assert ended.returncode == 2
    assert "did you mean 'mnist-cost'" in ended.stderr
