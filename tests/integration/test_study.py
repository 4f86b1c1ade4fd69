"""Studies, seeds and limits of what a run may spend, on two-round runs."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import leanfed
from leanfed.cli.app import app
from leanfed.errors import InputError, SettingsError
from leanfed.files import read_json
from leanfed.runs.study import missing, read_study

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
SMALL = {"rounds": 4, "task": {"partition": {"kind": "iid", "clients": 3}}, "evaluation": {"every": 3}}


def block() -> str:
    return re.search(r"<!-- study -->\n```toml\n(.*?)```", PAGE, re.DOTALL)[1]


def cli(*words: str) -> Any:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_study_of_the_page_is_carried_out_once(tmp_path: Path) -> None:
    text = block().replace("rounds = 100", "rounds = 2").replace("every = 10", "every = 1")
    (tmp_path / "study.toml").write_text(text.replace("seeds = [0, 1, 2]", "seeds = [0, 1]"))
    study, jobs = read_study(tmp_path / "study.toml")
    assert (len(jobs), study.reference) == (8, "FedPer")
    assert jobs[-1].settings.algorithm.k == 0.1
    assert jobs[-1].settings.task.partition.label() == "Class-2"
    out = tmp_path / "out"
    first = json.loads(cli("study", str(tmp_path / "study.toml"), "--out", str(out), "--json"))
    assert missing(jobs, out / "runs") == []
    assert [row["method"] for row in first["rows"]] == ["FedPer", "FLPDSP"] * 2
    ours = first["rows"][1]
    gaps = [ours["each"][seed] - first["rows"][0]["each"][seed] for seed in ("0", "1")]
    assert ours["difference"]["mean"] == pytest.approx(sum(gaps) / 2)
    assert ours["difference"]["p"] in (0.5, 1.0)
    assert ours["upload_bits"] < first["rows"][0]["upload_bits"]
    assert sum(first["ranks"].values()) == pytest.approx(3.0)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    shown = cli("study", str(tmp_path / "study.toml"), "--out", str(out))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")} == stamps  # nothing was done again
    assert "minus FedPer" in shown
    assert "±" in (out / "table.md").read_text(encoding="utf-8")
    assert r"\begin{tabular}" in (out / "table.tex").read_text(encoding="utf-8")
    rows = list(csv.DictReader((out / "runs.csv").read_text().splitlines()))
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert len(rows) == 8
    assert (out / "curves-1.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = [1]", "Extra inputs are not permitted. A study has name"),
        ("seeds = []", "seeds: Tuple should have at least 1 item"),
        ('reference = "x"\n[methods.a]\nrounds = 2', "reference = 'x' is none of the methods a"),
        ("[grid]\nrounds = []", "grid.'rounds' has no values"),
        ("[methods.a]\nround = 2", "method 'a'.*unknown setting 'round'"),
        ("rounds =", "not valid TOML"),
    ],
)
def test_a_study_that_cannot_be_is_explained(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_study(tmp_path / "study.toml")


def test_a_run_ends_with_the_round_that_reaches_its_limit_and_is_tested_there(tmp_path: Path) -> None:
    whole = leanfed.run(leanfed.Settings(**SMALL))
    seconds = whole.rounds["latency_s"].to_list()
    for key, column in (
        ("stop_at_seconds", "latency_s"),
        ("stop_at_joules", "energy_j"),
        ("stop_at_bits", "upload_bits"),
    ):
        limit = sum(whole.rounds[column].to_list()[:2]) * 0.999  # reached in the second round
        cut = leanfed.run(leanfed.Settings(**SMALL, run={key: limit}))
        assert cut.rounds.height == 2
        assert cut.rounds["accuracy"].is_not_null().to_list() == [False, True]  # though only every third is due
        assert cut.rounds["train_loss"].to_list() == whole.rounds["train_loss"].to_list()[:2]
    kept = leanfed.run(leanfed.Settings(**SMALL, run={"stop_at_seconds": sum(seconds[:2])}), tmp_path / "run")
    for name in ("summary.json", "rounds.parquet"):  # killed between the last checkpoint and its end
        (tmp_path / "run" / name).unlink()
    assert leanfed.resume(tmp_path / "run").rounds.equals(kept.rounds)


def test_several_seeds_are_runs_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("rounds = 1\n[task.partition]\nkind = 'iid'\nclients = 3\n")
    words = ("run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out"), "--seeds", "0,2")
    told = json.loads(cli(*words, "--json"))
    (group,) = told["groups"]
    each = [read_json(tmp_path / f"out/seed-{seed}/summary.json")["accuracy"] for seed in (0, 2)]
    assert sorted(group["seeds"]) == [0, 2]
    assert group["accuracy"]["mean"] == pytest.approx(sum(each) / 2)
    shown = cli(*words)  # finished seeds are kept
    assert "means over seeds" in shown
    with pytest.raises(SettingsError, match="no list of seeds"):
        cli(*words[:-1], "a")


def test_a_study_without_a_finished_run_has_no_tables(tmp_path: Path) -> None:
    text = block().replace("rounds = 100", "rounds = 2")
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(InputError, match="is finished there. Leave --no-train out"):
        cli("study", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out"), "--no-train")
    assert "[methods.NAME]" in cli("study", "--help")
