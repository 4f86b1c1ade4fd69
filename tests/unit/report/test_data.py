"""The data object of a page: numbers that can be checked by hand, groups, and folders that are not whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from leanfed.errors import StorageError
from leanfed.report.curves import RunCurve, band, mean_of
from leanfed.report.data import report_data
from leanfed.report.packing import clean, floats, matrix, script_json, thinned, unpacked, whole
from leanfed.report.page import render_page
from tests.unit.report.folders import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs/one")


def the_run(path: Path) -> dict[str, Any]:
    shown: dict[str, Any] = report_data([path])["runs"][0]
    return shown


def test_the_slowest_client_says_where_the_time_goes(run: Path) -> None:
    part = the_run(run)["time"]
    assert unpacked(part["round"]).tolist() == [1, 2, 3, 4]
    assert unpacked(part["client"]).tolist() == [1] * 4
    assert unpacked(part["computation"]) == pytest.approx([0.2] * 4)
    assert unpacked(part["communication"]) == pytest.approx([0.2] * 4)
    assert unpacked(part["downlink"]).tolist() == [0.0] * 4


def test_what_is_left_of_a_round_is_the_broadcast(run: Path) -> None:
    rounds = pl.read_parquet(run / "rounds.parquet").with_columns(pl.col("latency_s") + 0.05)
    rounds.write_parquet(run / "rounds.parquet")
    assert unpacked(the_run(run)["time"]["downlink"]) == pytest.approx([0.05] * 4)


def test_energy_adds_up_over_rounds(run: Path) -> None:
    part = the_run(run)["energy"]
    assert unpacked(part["spent"]) == pytest.approx([0.04, 0.08])
    assert unpacked(part["dearest"]) == pytest.approx([0.01, 0.02])
    assert unpacked(part["rounds"]).tolist() == [4, 4]
    assert part["budget_j"] == 0.3


def test_bits_are_counted_four_ways(run: Path) -> None:
    assert the_run(run)["bits"] == {"paper": 960.0, "exact": 800.0, "wire": None, "dense": 2560.0, "uploads": 8.0}


def test_devices_stand_where_their_gain_says(run: Path) -> None:
    part = the_run(run)["cell"]
    last = part["snapshots"][-1]
    assert last["round"] == 4
    assert unpacked(last["distance"]) == pytest.approx([50.0, 100.0], rel=1e-5)
    assert last["excluded"] == [{"client": 0, "why": "the round's 0.13 s end before its 0.22 s"}]
    assert last["accuracy"]["round"] == 4


def test_a_map_leaves_cells_empty_where_nobody_took_part(run: Path) -> None:
    clients = pl.read_parquet(run / "clients.parquet").filter(~((pl.col("round") == 1) & (pl.col("client") == 0)))
    clients.write_parquet(run / "clients.parquet")
    share = unpacked(the_run(run)["heat"]["share"])
    assert np.isnan(share).tolist() == [[False, True, False, False], [False] * 4]
    assert np.nanmax(share) == pytest.approx(50.0)


def test_the_worst_decile_is_the_mean_of_the_worst_tenth(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", clients=20)
    part = the_run(path)["clients"]
    assert part["worst"] == 2
    worst = np.sort(unpacked(part["accuracy"]))[:2].mean()
    assert part["worst_decile"] == pytest.approx(worst, abs=1e-6)


def test_costs_of_a_target_are_interpolated(run: Path) -> None:
    row = report_data([run], targets=[0.55])["targets"][0]["rows"][0]
    # 0.1, 0.4, 0.7, 1.0 after rounds 1 to 4: 0.55 is half-way from round 2 to round 3; a round takes 0.4 s.
    assert row["mean"]["rounds"] == pytest.approx(2.5)
    assert row["mean"]["latency_s"] == pytest.approx(1.0)
    assert row["mean"]["gigabits"] == pytest.approx(2.5)
    assert (row["reached"], row["of"]) == (1, 1)
    assert row["first"] == row["mean"]  # the curve only rises


def test_seeds_make_a_band_between_the_lowest_and_the_highest() -> None:
    x = np.array([1.0, 2.0, 3.0])
    curves = [RunCurve({"rounds": x}, {"accuracy": x / 10 + shift}) for shift in (0.0, 0.2)]
    drawn = band(curves, "rounds", "accuracy")
    assert drawn is not None
    assert drawn.mean == pytest.approx([0.2, 0.3, 0.4])
    assert drawn.high - drawn.low == pytest.approx([0.2] * 3)


def test_seeds_with_other_times_are_compared_where_all_of_them_are() -> None:
    curves = [RunCurve({"latency_s": np.array([0.0, end])}, {"accuracy": np.array([0.0, 1.0])}) for end in (1.0, 2.0)]
    drawn = band(curves, "latency_s", "accuracy")
    assert drawn is not None
    assert (drawn.x[0], drawn.x[-1]) == (0.0, 1.0)
    assert drawn.mean[-1] == pytest.approx(0.75)
    assert band(curves, "latency_s", "loss") is None


def test_a_seed_that_never_got_there_leaves_no_mean() -> None:
    assert mean_of([1.0, 3.0]) == 2.0
    assert mean_of([1.0, None]) is None


def test_runs_that_differ_only_in_seed_are_one_method(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", seed=seed, name=f"method, seed {seed}")
    write_run(tmp_path / "b", name="other", algorithm={"name": "fedper"})
    groups = report_data([tmp_path])["groups"]
    assert [(group["label"], group["runs"]) for group in groups] == [("method", [0, 1, 2]), ("other", [3])]


def test_methods_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for name in ("fedper", "fedavg"):
        write_run(tmp_path / name, name="same", algorithm={"name": name})
    write_run(tmp_path / "more", name="same", algorithm={"name": "fedper"}, training={"learning_rate": 0.5})
    labels = [group["label"] for group in report_data([tmp_path])["groups"]]
    assert len(set(labels)) == 3
    assert "same (FedAvg)" in labels


def test_a_folder_named_twice_is_shown_once(run: Path) -> None:
    assert len(report_data([run, run, run.parent])["runs"]) == 1


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no run"):
        report_data([tmp_path])


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def garble(name: str, content: bytes = b"\x00not a file\xff") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def without_column(table: str, column: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / f"{table}.parquet"
        pl.read_parquet(path).drop(column).write_parquet(path)

    return change


def as_text(table: str, column: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / f"{table}.parquet"
        pl.read_parquet(path).with_columns(pl.lit("x").alias(column)).write_parquet(path)

    return change


def without_field(file: str, field: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        value = json.loads((folder / file).read_text())
        del value[field]
        (folder / file).write_text(json.dumps(value))

    return change


def with_field(file: str, **fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **fields}))

    return change


DAMAGE = {
    "old: no world": (drop("world.json"), "world.json", None),
    "old: no fleet": (drop("fleet.parquet"), "fleet.parquet", None),
    "old: no evaluations": (drop("evaluations.parquet"), "evaluations.parquet", None),
    "old: no command": (without_field("environment.json", "command"), None, None),
    "settings are garbage": (garble("settings.json"), "settings.json", None),
    "settings are cut": (cut("settings.json"), "settings.json", None),
    "settings are a list": (garble("settings.json", b"[1]"), "settings.json", None),
    "rounds are garbage": (garble("rounds.parquet"), "rounds.parquet", None),
    "rounds are cut": (cut("rounds.parquet"), "rounds.parquet", None),
    "clients are cut": (cut("clients.parquet"), "clients.parquet", None),
    "summary is garbage": (garble("summary.json"), "summary.json", None),
    "environment is garbage": (garble("environment.json"), "environment.json", None),
    "world is garbage": (garble("world.json"), "world.json", None),
    "events are garbage": (garble("events.jsonl"), "events.jsonl", None),
    "no accuracy": (without_column("rounds", "accuracy"), "rounds.parquet", "accuracy"),
    "accuracy is text": (as_text("rounds", "accuracy"), "rounds.parquet", "accuracy"),
    "no k": (without_column("clients", "k"), "clients.parquet", "k"),
    "client is text": (as_text("clients", "client"), "clients.parquet", "client"),
    "no gain": (without_column("fleet", "gain"), "fleet.parquet", "gain"),
    "no download bits": (without_column("rounds", "download_bits"), "rounds.parquet", "download_bits"),
    "no labels": (without_field("world.json", "label_counts"), "world.json", "label_counts"),
    "labels are text": (with_field("world.json", label_counts=[["x"]]), "world.json", "label_counts"),
    "labels are uneven": (with_field("world.json", label_counts=[[1], [1, 2]]), "world.json", "label_counts"),
    "sources are a number": (with_field("world.json", sources=3), None, None),
    "name is a number": (with_field("settings.json", name=5, seed="x", rounds="many"), None, None),
    "task is a number": (with_field("settings.json", task=1, radio=2, allocation=3), None, None),
}


@pytest.mark.parametrize("case", DAMAGE, ids=str)
def test_damage_names_its_file_and_field_and_costs_nothing_else(tmp_path: Path, case: str) -> None:
    change, file, field = DAMAGE[case]
    broken, sound = write_run(tmp_path / "runs/broken"), write_run(tmp_path / "runs/sound", seed=1)
    change(broken)
    data = report_data([tmp_path / "runs"])
    assert [run["path"] for run in data["runs"]] == [str(broken), str(sound)]
    told = json.dumps([data["flaws"], data["runs"][0]])
    if file is not None:
        assert str(broken / file) in told
    if field is not None:
        assert re.search(rf"{file}[^\"]*'{field}'", told)
    whole_run = the_run(sound)
    assert {name: data["runs"][1][name] for name in whole_run if name not in ("group", "label")} == {
        name: value for name, value in whole_run.items() if name not in ("group", "label")
    }
    assert not any(str(sound) in json.dumps(flaw) for flaw in data["flaws"])
    assert "leanfed" in render_page(data)


@given(npst.arrays(float, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(-1e6, 1e6)))
def test_a_packed_matrix_comes_back_within_half_a_step(values: Any) -> None:
    packed = matrix(values)
    assert unpacked(packed) == pytest.approx(values, abs=packed["step"] * 0.51 + 1e-9)


def test_empty_cells_stay_empty() -> None:
    values = np.array([[np.nan, 1.0], [2.0, np.nan]])
    assert np.isnan(unpacked(matrix(values))).tolist() == [[True, False], [False, True]]
    assert np.isnan(unpacked(matrix(np.full((1, 2), np.nan)))).all()


def test_columns_come_back() -> None:
    assert unpacked(whole([0, 7, 2**31])).tolist() == [0, 7, 2**31]
    assert np.isnan(unpacked(floats([1.5, np.nan]))).tolist() == [False, True]


@given(st.integers(1, 10_000), st.integers(2, 300))
def test_thinning_keeps_the_ends_and_the_order(count: int, most: int) -> None:
    places = thinned(count, most)
    assert (places[0], places[-1]) == (0, count - 1)
    assert (np.diff(places) > 0).all()
    assert len(places) <= most


@given(st.text())
def test_no_text_ends_its_script(text: str) -> None:
    told = script_json({"name": text, "number": float("nan")})
    assert "<" not in told
    assert ">" not in told
    read = json.loads(told)
    assert read == {"name": text, "number": None}


def test_what_json_cannot_hold_becomes_plain() -> None:
    assert clean({"a": np.float64(1.5), "b": np.array([1, 2]), "c": (float("inf"),), "d": Path("x")}) == {
        "a": 1.5,
        "b": [1, 2],
        "c": [None],
        "d": "x",
    }


def on_devices(folder: Path) -> Path:
    """A run by hand whose server also measured: 2 s a round, 1,000 bytes of 1,100 from each of two clients."""
    rounds, clients = (pl.read_parquet(folder / f"{name}.parquet") for name in ("rounds", "clients"))
    told = {"elapsed_s": 2.0, "message_bytes": 2_200.0, "tested": 2.0, "refused": 0.0, "late": 1.0, "lost": 0.0}
    rounds.with_columns(pl.lit(v).alias(k) for k, v in told.items()).write_parquet(folder / "rounds.parquet")
    mine = {"elapsed_s": 1.5, "ready_s": 0.1, "train_s": 0.2, "test_s": 0.3, "upload_s": 0.4, "frame_bytes": 1_000.0}
    clients.with_columns(pl.lit(v).alias(k) for k, v in mine.items()).write_parquet(folder / "clients.parquet")
    return folder


def test_a_real_fleets_measurements_stand_beside_the_prediction(run: Path) -> None:
    assert the_run(run)["measured"] == {"absent": True}
    part = the_run(on_devices(run))["measured"]
    assert unpacked(part["round"]).tolist() == [1, 2, 3, 4]
    assert unpacked(part["predicted_s"]) == pytest.approx([0.4] * 4)
    assert unpacked(part["measured_s"]).tolist() == [2.0] * 4
    assert unpacked(part["predicted_kb"]) == pytest.approx([1e9 / 8e3] * 4)
    assert unpacked(part["coded_kb"]) == pytest.approx([2.0] * 4)
    assert unpacked(part["sent_kb"]) == pytest.approx([2.2] * 4)
    spent = {name: unpacked(values) for name, values in part["stages"].items()}
    assert {name: float(values[0]) for name, values in spent.items()} == pytest.approx(
        {"ready": 0.1, "train": 0.2, "test": 0.3, "upload": 0.4, "rest": 0.5}
    )
    assert part["unheard"] == {"refused": 0.0, "late": 4.0, "lost": 0.0}


def test_what_a_real_fleet_keeps_to_itself_is_no_flaw(run: Path) -> None:
    on_devices(run)
    for name in ("world.json", "fleet.parquet"):
        (run / name).unlink()
    data = report_data([run])
    assert data["flaws"] == []
    assert "keep this to themselves" in data["runs"][0]["labels"]["missing"]
    assert "real fleet" in data["runs"][0]["cell"]["missing"]
