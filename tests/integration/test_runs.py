"""Runs that stop and go on; folders that stay whole."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import leanfed as package
from leanfed.errors import BusyError, InfeasibleError, InputError, StorageError
from leanfed.locks import folder_lock
from leanfed.results import RunFolder, find_runs
from leanfed.rounds import checkpoint, costs
from leanfed.rounds.loop import RoundRecord
from leanfed.runs import play
from leanfed.runs.settings import Settings
from tests.integration.conftest import SETTINGS
from tests.stops import Stop, killed_at_flush, stop_after

DEAD = {(0, 3), *((2, device) for device in range(6))}  # (round, device) without a link


@pytest.fixture
def settings(settings_file: Path) -> Settings:
    return Settings.from_toml(settings_file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> package.Run:
    """The unbroken run of these settings."""
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "small.toml").write_text(SETTINGS)
    return package.run(Settings.from_toml(folder / "small.toml"), folder / "whole")


@pytest.mark.parametrize("stops", [[1], [3], [2, 4, 5], [6]])
def test_a_resumed_run_equals_an_unbroken_one(
    settings: Settings, whole: package.Run, tmp_path: Path, stops: list[int]
) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "broken", listen=stop_after(stops[0]))
    for rounds in stops[1:]:
        with pytest.raises(Stop):
            package.resume(tmp_path / "broken", listen=stop_after(rounds))
    resumed = package.resume(tmp_path / "broken")
    assert resumed.summary["sha256"] == whole.summary["sha256"]
    assert resumed.rounds.equals(whole.rounds)


def with_theory(settings: Settings) -> Settings:
    values = settings.resolved()
    return Settings.from_values(
        {**values, "training": {"momentum": 0.0}, "theory": {"every": 2, "probes": 2, "samples": 20}}
    )


def test_a_resumed_run_that_measures_the_theory_equals_an_unbroken_one(settings: Settings, tmp_path: Path) -> None:
    measuring = with_theory(settings)
    whole = package.run(measuring, tmp_path / "whole")
    with pytest.raises(Stop):
        package.run(measuring, tmp_path / "broken", listen=stop_after(3))
    resumed = package.resume(tmp_path / "broken")
    assert resumed.summary["sha256"] == whole.summary["sha256"]
    assert resumed.rounds.equals(whole.rounds)
    assert package.run(measuring).rounds.equals(whole.rounds)
    measured = whole.rounds.filter(pl.col("gradient_norm_sq").is_not_null())
    assert measured["round"].to_list() == [0, 2, 4]
    assert (measured["bound_corrected"] > measured["gradient_norm_sq_mean"]).all()
    assert whole.summary["bound_corrected"] == measured["bound_corrected"][-1]


def test_measuring_the_theory_leaves_the_training_alone(settings: Settings, tmp_path: Path) -> None:
    measuring = with_theory(settings)
    values = measuring.resolved()
    plain = package.run(Settings.from_values({**values, "theory": {"every": 0}}), tmp_path / "plain")
    probed = package.run(measuring, tmp_path / "probed")
    assert "gradient_norm_sq" not in plain.rounds.columns
    for file in ("weights.safetensors", "clients.parquet"):
        assert plain.summary["sha256"][file] == probed.summary["sha256"][file]


@pytest.mark.parametrize("every", [2, 4, 100])
def test_the_checkpoint_interval_does_not_change_the_result(
    settings: Settings, whole: package.Run, tmp_path: Path, every: int
) -> None:
    seldom = settings.model_copy(update={"run": settings.run.model_copy(update={"checkpoint_every": every})})
    with pytest.raises(Stop):
        package.run(seldom, tmp_path / "seldom", listen=stop_after(5))
    assert package.resume(tmp_path / "seldom").summary["sha256"] == whole.summary["sha256"]


def test_merging_many_files_does_not_change_the_result(
    settings: Settings, whole: package.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_PARTS", 2)
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "merged", listen=stop_after(5))
    assert len(json.loads((tmp_path / "merged/checkpoint/manifest.json").read_text())["rows"]) <= 2
    assert package.resume(tmp_path / "merged").summary["sha256"] == whole.summary["sha256"]


def test_only_changed_clients_are_written(settings: Settings, tmp_path: Path) -> None:
    alone = Settings.from_values({**settings.resolved(), "rounds": 3, "participation": {"cohorts": [[0], [1], [2]]}})
    package.run(alone, tmp_path / "run")
    manifest = json.loads((tmp_path / "run/checkpoint/manifest.json").read_text())
    assert sorted(manifest["clients"].values()) == [[0], [1], [2]]


def test_a_run_in_memory_has_the_same_rows(settings: Settings, whole: package.Run) -> None:
    floating = package.run(settings)
    assert whole.rounds.equals(floating.rounds)
    assert whole.clients.equals(floating.clients)
    assert floating.folder is None


def test_a_folder_holds_what_is_promised(settings: Settings, settings_file: Path, tmp_path: Path) -> None:
    package.run(settings, tmp_path / "run", given=settings_file.read_text())
    folder = RunFolder(tmp_path / "run")
    assert folder.given.read_text() == settings_file.read_text()
    assert Settings.from_values(folder.read_settings()) == settings
    rounds, clients = folder.read_table("rounds"), folder.read_table("clients")
    assert rounds["round"].to_list() == list(range(6))
    assert rounds["accuracy"].is_not_null().to_list() == [False, True] * 3  # not more often than asked
    assert clients.height == rounds["participants"].sum() == 6 * 4
    assert clients.filter(pl.col("accuracy").is_not_null()).height == 3 * 4
    events = [event["event"] for event in folder.read_events()]
    assert events == ["start", "engine", *["round"] * 6, "finish"]
    assert json.loads(folder.environment.read_text())["versions"]["torch"]


def test_an_unfinished_folder_can_be_read(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(4))
    assert RunFolder(tmp_path / "run").read_table("rounds").height == 4


def test_a_torn_event_line_is_passed_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log("start")
    with folder.events.open("a") as file:
        file.write('{"event": "ro')
    assert [event["event"] for event in folder.read_events()] == ["start"]


def test_a_second_process_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(1))
    with folder_lock(tmp_path / "run"), pytest.raises(BusyError, match="in use by process"):
        package.resume(tmp_path / "run")
    assert package.resume(tmp_path / "run").rounds.height == 6


def test_a_used_folder_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(1))
    with pytest.raises(StorageError, match="an unfinished run; go on with `leanfed resume"):
        package.run(settings, tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    with pytest.raises(StorageError, match="not empty and not a run folder"):
        package.run(settings, tmp_path / "other")


@pytest.mark.parametrize("flush", range(1, 13))
def test_a_run_that_is_killed_while_its_folder_is_made_can_be_taken_up(
    settings: Settings, settings_file: Path, tmp_path: Path, flush: int
) -> None:
    short, path = settings.model_copy(update={"rounds": 2}), tmp_path / "run"
    whole, given = package.run(short), settings_file.read_text()
    with killed_at_flush(flush):
        package.run(short, path, given=given)
    taken_up = package.resume(path) if (path / "settings.json").is_file() else package.run(short, path, given=given)
    assert taken_up.rounds.equals(whole.rounds)
    promised = {"settings.toml", "settings.json", "environment.json", "world.json", "fleet.parquet", "events.jsonl"}
    assert promised <= {file.name for file in path.iterdir()}
    assert not list(path.rglob(".*.partial"))
    assert "start" in [event["event"] for event in RunFolder(path).read_events()]


def test_what_a_making_left_is_taken_over_and_a_users_own_files_are_not(settings: Settings, tmp_path: Path) -> None:
    short = settings.model_copy(update={"rounds": 1})
    left, own = tmp_path / "left", tmp_path / "own"
    for name in (".lock", "settings.toml", "environment.json", "world.json", ".fleet.parquet.4711.partial"):
        (left / name).parent.mkdir(exist_ok=True)
        (left / name).write_text("{}")
    with pytest.raises(StorageError, match=r"stopped before it had settings.* `leanfed run CONFIG.toml --out"):
        package.resume(left)
    package.run(short, left)
    assert not (left / "settings.toml").exists()  # it was another run's
    assert json.loads((left / "world.json").read_text())["label_counts"]
    own.mkdir()
    (own / "settings.toml").write_text("mine")
    with pytest.raises(StorageError, match="not empty and not a run folder"):
        package.run(short, own)
    assert (own / "settings.toml").read_text() == "mine"


def test_half_written_files_are_swept_and_others_are_left(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(1))
    ours = [tmp_path / "run" / name for name in (".summary.json.12.partial", "checkpoint/.manifest.json.3.partial")]
    others = [tmp_path / "run" / name for name in (".page.html.12.partial", "notes.partial", ".world.json.partial")]
    for file in (*ours, *others):
        file.write_text("half")
    package.resume(tmp_path / "run")
    assert not any(file.exists() for file in ours)
    assert all(file.exists() for file in others)


def test_a_run_into_a_folder_in_use_says_so(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(1))
    with folder_lock(tmp_path / "run"), pytest.raises(BusyError, match="in use by process"):
        package.run(settings, tmp_path / "run")


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["state-000003.safetensors", "rows-000003.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    settings: Settings, whole: package.Run, tmp_path: Path, name: str
) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(3))
    flip_a_bit(tmp_path / "run/checkpoint" / name)
    heard: list[str] = []
    resumed = package.resume(tmp_path / "run", notify=heard.append)
    assert resumed.summary["sha256"] == whole.summary["sha256"]
    assert name in heard[0]
    assert "goes on from the checkpoint before, round 2" in heard[0]
    assert heard == [event["text"] for event in RunFolder(tmp_path / "run").read_events() if "text" in event]


@pytest.mark.parametrize("names", [("state-000001.safetensors",), ("manifest.json", "manifest-before.json")])
def test_a_damaged_checkpoint_without_another_is_refused_by_name(
    settings: Settings, tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(len(names)))
    for name in names:
        flip_a_bit(tmp_path / "run/checkpoint" / name)
    with pytest.raises(StorageError, match=rf"{names[-1]} is .*Restore .* or start a new run"):
        package.resume(tmp_path / "run")


@pytest.mark.parametrize("removed", ["manifest*.json", "*"])
def test_a_run_without_its_manifest_is_not_silently_begun_again(
    settings: Settings, tmp_path: Path, removed: str
) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(3))
    for file in (tmp_path / "run/checkpoint").glob(removed):
        file.unlink()
    with pytest.raises(StorageError, match=r"manifest.json.* Restore"):
        package.resume(tmp_path / "run")


def test_a_checkpoint_of_the_format_before_is_taken_up(settings: Settings, whole: package.Run, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(3))
    (tmp_path / "run/checkpoint/manifest-before.json").unlink()
    manifest = tmp_path / "run/checkpoint/manifest.json"
    values = json.loads(manifest.read_text())
    del values["digest"]
    manifest.write_text(json.dumps({**values, "format": 2}))
    assert package.resume(tmp_path / "run").summary["sha256"] == whole.summary["sha256"]


def test_a_run_does_not_go_on_with_other_data(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stop):
        package.run(settings, tmp_path / "run", listen=stop_after(2))
    monkeypatch.setattr(play, "fingerprint", lambda task: "other")
    with pytest.raises(StorageError, match="made with other data"):
        package.resume(tmp_path / "run")


def test_a_device_that_cannot_be_reached_sits_the_round_out(settings: Settings, tmp_path: Path) -> None:
    rows = [
        f"{number},{device},{0 if (number, device) in DEAD else 1e-9},0.2,1e9"
        for number in (0, 2)
        for device in range(6)
    ]
    (tmp_path / "fleet.csv").write_text("\n".join(["round,device,gain,power_w,cpu_hz", *rows]))
    radio = {"fleet_file": str(tmp_path / "fleet.csv")}
    values = {**settings.resolved(), "rounds": 3, "participation": {}, "radio": radio}
    run = package.run(Settings.from_values(values), tmp_path / "run")
    assert run.rounds["participants"].to_list() == [5, 5, 0]
    assert run.summary["energy_j"] > 0
    plans = [event for event in RunFolder(tmp_path / "run").read_events() if event["event"] == "plan"]
    assert [[entry["client"] for entry in plan["excluded"]] for plan in plans] == [[3], [3], list(range(6))]
    assert "would take inf s" in plans[0]["excluded"][0]["why"]
    (tmp_path / "fleet.csv").write_text("device,gain,power_w,cpu_hz\n" + "\n".join(f"{n},0,0.2,1e9" for n in range(6)))
    with pytest.raises(InfeasibleError, match="No client can take part in round 0: client 0 cannot, its round would"):
        package.run(Settings.from_values(values), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_cost_without_end_does_not_keep_a_run_from_ending(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs.Accountant, "out_of_reach", lambda self, plan: {})  # as an older version would
    rows = [f"{device},{0 if device == 3 else 1e-9},0.2,1e9" for device in range(6)]
    (tmp_path / "fleet.csv").write_text("\n".join(["device,gain,power_w,cpu_hz", *rows]))
    radio = {"fleet_file": str(tmp_path / "fleet.csv")}
    values = {**settings.resolved(), "rounds": 2, "radio": radio}
    run = package.run(Settings.from_values(values), tmp_path / "run")
    assert run.summary["latency_s"] is None
    assert run.summary["accuracy"] > 0


def test_a_loss_that_explodes_stops_the_run_with_advice(settings: Settings, tmp_path: Path) -> None:
    """Where nothing is sent, whose range would tell first."""
    wild = {**settings.resolved(), "rounds": 40, "training": {"learning_rate": 100}, "algorithm": {"name": "local"}}
    with pytest.raises(InputError, match=r"The training loss of round \d+ is .* at learning rate 100\. Lower"):
        package.run(Settings.from_values(wild), tmp_path / "run")


def test_a_full_disk_stops_the_run_and_loses_nothing(settings: Settings, tmp_path: Path) -> None:
    whole = package.run(settings, tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up(record: RoundRecord) -> None:
        if record.progress.round == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    try:
        with pytest.raises(StorageError, match="Cannot write"):
            package.run(settings, tmp_path / "full", listen=fill_up)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert package.resume(tmp_path / "full").summary["sha256"] == whole.summary["sha256"]


def test_folders_of_runs_are_found(settings: Settings, tmp_path: Path) -> None:
    for name in ("a", "b"):
        package.run(settings.model_copy(update={"rounds": 1}), tmp_path / "all" / name)
    assert [folder.path.name for folder in find_runs([tmp_path / "all"])] == ["a", "b"]
    with pytest.raises(StorageError, match="holds no run"):
        find_runs([tmp_path])


def kill_and_resume(settings_file: Path, tmp_path: Path, kills: int) -> None:
    """Kill -9 a run at random instants, resuming each time, and compare with an unbroken one."""
    chance = random.Random(11)
    settings = Settings.from_toml(settings_file, ["rounds=40"])
    whole = package.run(settings, tmp_path / "whole")
    command = [sys.executable, "-m", "leanfed.cli"]
    arguments = ["run", str(settings_file), "--set", "rounds=40", "--out", str(tmp_path / "killed"), "--json"]
    survived = 0
    for _ in range(kills):
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        events = tmp_path / "killed/events.jsonl"
        before = events.read_text().count("\n") if events.exists() else 0
        while process.poll() is None and (not events.exists() or events.read_text().count("\n") <= before):
            time.sleep(0.005)  # until this process has begun its part
        time.sleep(chance.uniform(0, 0.15))
        os.kill(process.pid, signal.SIGKILL)
        survived += process.wait() != -signal.SIGKILL
        arguments = ["resume", str(tmp_path / "killed"), "--json"]
    final = package.resume(tmp_path / "killed")
    assert final.summary["sha256"] == whole.summary["sha256"]
    assert survived < kills, "every run ended before it was killed: nothing was tested"


@pytest.mark.waits
def test_kill_9_loses_nothing_that_a_checkpoint_held(settings_file: Path, tmp_path: Path) -> None:
    kill_and_resume(settings_file, tmp_path, kills=2)


@pytest.mark.slow
def test_twenty_kills_lose_nothing(settings_file: Path, tmp_path: Path) -> None:
    kill_and_resume(settings_file, tmp_path, kills=20)
