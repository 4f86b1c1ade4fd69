"""The comparison with other frameworks: what is compared, what is refused, and the table that a page holds."""

from __future__ import annotations

import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.peers.contenders.plain import recomputed
from benchmarks.peers.environments import NotRun
from benchmarks.peers.field import BASE, FIELD
from benchmarks.peers.lenet import batches_of, flat_weights, started, train
from benchmarks.peers.race import ROOT, Runner, without_paths
from benchmarks.peers.run import command_of, deviation, new_row, summarised
from benchmarks.peers.table import OPENING, peers_table, provisional, read_results, with_table
from benchmarks.peers.turns import Flat, GivenRound, read_round

from leanfed.errors import InputError
from leanfed.tasks.models import build_model

SETTINGS = {
    "weights": 61_706,
    "clients": 100,
    "batch_size": 32,
    "local_steps": [1, 5],
    "repeats": 5,
    "rounds_per_turn": 3,
    "tolerance": 1e-4,
}


def results(load: float = 0.1, **seconds: list[float]) -> dict[str, Any]:
    rows = []
    for contender in FIELD:
        row = new_row(contender, 1)
        if contender.name in seconds:
            row.update(seconds=seconds[contender.name], versions={contender.package: "1.2.3"})
        else:
            row["reason"] = "did not run: no reason"
        rows.append(row)
    return {
        "format": 1,
        "machine": {"cores": 2, "processor": "one"},
        "load_average": {"start": [load, 0, 0], "end": [1, 1, 1]},
        "settings": SETTINGS,
        "rows": summarised(rows),
    }


def tiny(steps: int = 2, clients: int = 2) -> GivenRound:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((clients, steps, 3, 1, 32, 32)).astype(np.float32)
    weights = {name: value.detach().numpy() for name, value in build_model("lenet5", 10, 0).named_parameters()}
    return GivenRound(inputs, rng.integers(0, 10, (clients, steps, 3)), weights, 0.1)


def test_a_ratio_is_the_median_of_the_ratios_of_each_turn() -> None:
    found = results(leanfed=[1.0, 2.0, 1.0, 4.0, 1.0], pfl=[3.0, 4.0, 3.0, 40.0, 2.5])
    rows = {row["contender"]: row for row in found["rows"]}
    assert rows["pfl"]["ratio"] == 3.0  # of 3, 2, 3, 10, 2.5; the medians' would be 3 as well, the means' is 5.8
    assert rows["pfl"]["median_s"] == 3.0
    assert rows[BASE]["ratio"] == 1.0
    assert rows["flwr"]["median_s"] is None


def test_the_table_has_three_digits_and_a_reason_for_every_missing_number() -> None:
    table = peers_table(results(leanfed=[0.0874] * 5, pfl=[1.2345] * 5))
    lines = table.splitlines()
    assert "| leanfed, `fedavg` 1.2.3 | 87.4 | 1.00 | – | – |" in lines
    assert "| pfl-research 1.2.3 | 1,230 | 14.1 | – | – |" in lines
    assert "Flower 1.41.0 has no number: did not run: no reason." in lines
    assert {line.count("|") for line in lines if line.startswith("|")} == {6}


def test_numbers_of_a_busy_machine_are_called_provisional() -> None:
    assert "Provisional: the machine was busy (load average 7.9" in peers_table(results(load=7.9, leanfed=[1.0] * 5))
    assert "Provisional" not in peers_table(results(leanfed=[1.0] * 5))


def test_a_page_holds_the_table_between_its_marks() -> None:
    page = f"before\n{OPENING}\nold\n<!-- /peers -->\nafter\n"
    assert with_table(page, "new") == f"before\n{OPENING}\nnew\n<!-- /peers -->\nafter\n"
    with pytest.raises(InputError, match="must have <!-- peers -->"):
        with_table("no marks", "new")


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text('{"format": 0}')
    with pytest.raises(InputError, match="format 0, but this table reads 1"):
        read_results(tmp_path / "peers.json")


def test_the_results_in_the_repository_are_whole_and_pages_hold_them() -> None:
    held = read_results()
    names = [contender.name for contender in FIELD]
    steps = held["settings"]["local_steps"]
    assert [(row["contender"], row["local_steps"]) for row in held["rows"]] == [(n, s) for s in steps for n in names]
    assert held["rows"] == summarised(deepcopy(held["rows"]))
    for row in held["rows"]:
        assert row["reason"] or (len(row["seconds"]) >= 5 and row["deviation"] <= held["settings"]["tolerance"])
        assert row["reason"] or not row["pinned"] or row["versions"][row["package"]] == row["pinned"]
    assert provisional(held) == ("Provisional" in peers_table(held))
    assert not re.search(r"/(tmp|home|root|work)/", repr(held))
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        if OPENING in text:
            assert with_table(text, peers_table(held)) == text, f"python -m benchmarks.peers.table {page.name}"


def test_every_installed_contender_is_pinned_to_one_version() -> None:
    for contender in FIELD:
        if contender.installed:
            lines = [line.partition("#")[0].strip() for line in contender.requirements.read_text().splitlines()]
            assert lines[0].partition("[")[0].partition("==")[0] == contender.package
            assert all(re.fullmatch(r"[\w\[\]-]+==[\w.]+", line) for line in lines)


def test_the_plain_model_is_leanfeds_and_a_round_is_the_mean_of_its_clients(tmp_path: Path) -> None:
    given = tiny()
    given.write(tmp_path / "round.npz")
    read = read_round(tmp_path / "round.npz")
    clients = []
    for client in range(2):
        model = build_model("lenet5", 10, 0)  # leanfed's own
        train(model, batches_of(read, client), 0.1)
        clients.append(flat_weights(read, model.state_dict()))
    assert np.allclose(recomputed(read), np.mean(clients, axis=0), atol=1e-6)
    assert sum(value.numel() for value in started(read).parameters()) == 61_706


def test_a_round_that_computes_something_else_gets_no_number() -> None:
    start: Flat = np.zeros(4, dtype=np.float32)
    wanted = start + np.float32(1e-3)
    assert deviation(wanted + np.float32(5e-6), wanted, start) == pytest.approx(5e-6, rel=0.01)
    with pytest.raises(NotRun, match="off by 5e-05"):  # below 1e-4, but a twentieth of what the round moves
        deviation(wanted + np.float32(5e-5), wanted, start)
    with pytest.raises(NotRun, match="off by 0.001"):
        deviation(start, wanted, start)
    with pytest.raises(NotRun, match="finite"):
        deviation(wanted * np.float32("nan"), wanted, start)


def test_a_contender_takes_its_turns_and_its_weights_are_those_of_the_round(tmp_path: Path) -> None:
    given, file = tiny(), tmp_path / "round.npz"
    given.write(file)
    plain = next(contender for contender in FIELD if contender.name == "plain")
    runner = Runner("plain", command_of(plain, Path(sys.executable), 2), file, [1, 2])
    try:
        assert set(runner.versions()) == {"torch"}
        seconds, weights = runner.turn()
        assert len(seconds) == 1
        assert np.allclose(weights, recomputed(given), atol=1e-6)
        assert len(runner.turn()[0]) == 2
    finally:
        runner.close()


def test_a_contender_that_cannot_run_gives_its_reason(tmp_path: Path) -> None:
    tiny().write(tmp_path / "round.npz")
    command = [sys.executable, "-m", "benchmarks.peers.contenders", "no_such_module"]
    runner = Runner("none", command, tmp_path / "round.npz", [1])
    try:
        with pytest.raises(NotRun, match="did not run: ModuleNotFoundError: No module named"):
            runner.versions()
    finally:
        runner.close()
    assert without_paths("cannot import 'a' from 'b' (/some/where/b.py)") == "cannot import 'a' from 'b'"


def test_the_readme_says_how_much_longer_a_round_of_others_takes() -> None:
    ratios = {row["contender"]: row["ratio"] for row in read_results()["rows"] if row["local_steps"] == 1}
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| time of one round")]
    said = [cell.strip() for cell in line.split("|")[2:-1]]
    assert said == ["1", *(f"× {ratios[name]:.2g}" for name in ("flwr", "pfl")), "not measured"] + [
        f"× {ratios[name]:.2g}" for name in ("fedlab", "fedjax")
    ]
