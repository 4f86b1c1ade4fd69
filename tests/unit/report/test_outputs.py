"""What a report writes besides the page: figures and tables for papers, and the paper's values beside ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leanfed.report.data import report_data
from leanfed.report.figures import write_figures
from leanfed.report.page import plotly_script, without_wrapper
from leanfed.reproduction.catalogue import Scale
from leanfed.reproduction.paper.protocol import EQUAL, MNIST
from tests.unit.report.folders import write_run

RESULTS_FOLDER = Path(__file__).resolve().parents[3] / "results"
RESULTS = {
    "name": "table-mnist",
    "title": "Costs for MNIST-5k",
    "place": "Table IV",
    "numbers": [
        {"labels": {"method": "M", "partition": "Class-2", "target": "40 %", "quantity": quantity}, **values}
        for quantity, values in {
            "latency (s)": {"published": 1.0, "mean": 0.8},
            "latency over FedPer, equal": {"published": 0.5, "mean": 0.4},
        }.items()
    ],
}


def test_the_papers_time_stands_beside_a_run_of_the_catalogue(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/ours", name="M, Class-2")
    write_run(tmp_path / "runs/other", name="N, Class-2", algorithm={"name": "fedper"})
    (tmp_path / "results/table").mkdir(parents=True)
    (tmp_path / "results/table/results.json").write_text(json.dumps(RESULTS))
    rows = report_data([tmp_path / "runs"], targets=[0.4], results=tmp_path / "results")["targets"][0]["rows"]
    told = next(row["paper"] for row in rows if "paper" in row)
    # 0.4 is reached after two rounds of 0.4 s: a fifth sooner than the second that was published.
    assert told["difference"] == pytest.approx(-0.2)
    assert (told["seconds"], told["share"], told["our_share"]) == (1.0, 0.5, 0.4)
    assert sum("paper" in row for row in rows) == 1


@pytest.mark.parametrize("older", [False, True], ids=["catalogue's name", "older name"])
def test_the_committed_results_are_found_by_a_run_of_the_catalogue(tmp_path: Path, older: bool) -> None:
    job = MNIST.job("FedPer, equal", EQUAL["FedPer, equal"], "Class-2", 0, Scale(seeds=(0,)))
    settings = job.settings.resolved() | ({"name": "fedper, equal"} if older else {})
    run = write_run(tmp_path / "run", rounds=10, clients=100)
    (run / "settings.json").write_text(json.dumps(settings))
    numbers = json.loads((RESULTS_FOLDER / "mnist-cost/results.json").read_text())["numbers"]
    data = report_data([run], targets=[0.8, 0.9], results=RESULTS_FOLDER)
    assert data["flaws"] == []
    for target in data["targets"]:
        labels = {"method": "FedPer, equal", "partition": "Class-2", "target": f"{100 * target['target']:g} %"}
        told = target["rows"][0]["paper"]
        (number,) = [n for n in numbers if n["labels"] == {**labels, "quantity": "latency (s)"}]
        assert told["seconds"] == number["published"] > 0
        assert (told["share"], told["our_share"]) == (1.0, 1.0)  # FedPer beside itself
        ours = target["rows"][0]["mean"]["latency_s"]
        assert told["difference"] == pytest.approx(ours / told["seconds"] - 1)
        assert "MNIST" in told["about"]


def test_a_damaged_results_file_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    for name, text in (("cut", "{"), ("other", "{}")):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "results.json").write_text(text)
    flaws = report_data([tmp_path / "run"], results=tmp_path / "results")["flaws"]
    assert [Path(flaw["file"]).parent.name for flaw in flaws] == ["cut", "other"]
    assert flaws[1]["field"] == "numbers"


def test_figures_and_tables_for_papers(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"runs/a{seed}", seed=seed, name="a_b & 50 % $x$ {\\y}")
    write_run(tmp_path / "runs/other", name="_hidden", algorithm={"name": "fedper"})
    (tmp_path / "runs/other/evaluations.parquet").unlink()
    written = write_figures(report_data([tmp_path / "runs"]), tmp_path / "out", "pdf")
    names = {path.name for path in written}
    curves = {
        f"{y}-{x}.pdf" for y in ("accuracy", "loss", "worst-decile") for x in ("seconds", "joules", "bits", "rounds")
    }
    assert curves | {"bits.pdf", "time.pdf", "clients.pdf", "labels.pdf", "runs.tex", "targets.tex"} <= names
    assert sum(name.startswith("plan-") for name in names) == 2
    assert all(path.read_bytes().startswith(b"%PDF") for path in written if path.suffix == ".pdf")
    table = (tmp_path / "out/targets.tex").read_text()
    assert r"a\_b \& 50 \% \$x\$ \{\textbackslash{}y\}" in table
    assert r"\begin{tabular}" in table
    # 0.8 is reached a third of the way from 0.7 after round 3 to 1.0 after round 4.
    assert "3.333 (3.333)" in table  # sustained, and the first crossing


def test_the_plotting_script_stands_in_the_page_without_a_wrapper() -> None:
    script = plotly_script()
    assert script.startswith("/**\n* plotly.js v")  # the notice of its licence
    assert "Licensed under the MIT license" in script[:300]
    assert "factory" not in script[:400]
    assert script.rstrip().endswith("window.Plotly = Plotly;")


@pytest.mark.parametrize("script", ["var Plotly = {};", "/** a notice */\n(() => {\nreturn Plotly;\n}));", ""])
def test_a_plotting_script_with_another_wrapper_stays_as_it_is(script: str) -> None:
    assert without_wrapper(script) == script
