"""`leanfed plan` and `leanfed bench` as a user meets them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from leanfed.allocation import bench as plan_bench
from leanfed.allocation.problem import Problem
from leanfed.compression import bench as codec_bench
from leanfed.runs.settings import Settings
from leanfed.simulation import bench as engine_bench
from leanfed.wireless.fleet import FleetSettings, SampledFleet
from leanfed.wireless.fleet_file import write_fleet
from tests.integration.conftest import Leanfed

PAGE = (Path(__file__).resolve().parents[2] / "docs/planner.md").read_text()
KEYS = ["status", "objective", "lower_bound", "relative_gap", "k", "r", "l", "price", "excluded", "starved"]
KEYS += ["seconds", "solver", "payload"]
PROBLEM = {
    "weights": [0.5, 0.3, 0.2],
    "channel_gain": [1e-10, 2e-11, 1e-11],
    "power_w": [0.2, 0.3, 0.4],
    "cpu_hz": [1e9, 2e9, 1e8],
    "batch_size": 32,
    "cycles_per_sample": 8e6,
    "energy_coefficient": 1e-28,
    "deadline_s": 0.8,
    "energy_budget_j": 0.3,
    "bandwidth_hz": 2e5,
    "noise_w_per_hz": 3.98e-21,
    "base_size": 50692,
    "head_size": 11014,
    "value_bits": 32,
    "theta1": 0.1,
    "theta2": 1.0,
}


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    """Three clients, the last too slow for the deadline."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    return path


def test_json_is_the_agreed_object_and_nothing_else(leanfed: Leanfed, problem_file: Path) -> None:
    done = leanfed("plan", problem_file, "--form", "safe", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert list(told) == KEYS
    assert (told["status"], told["solver"], told["payload"]) == ("solved", "certified", "exact")
    assert [len(told[name]) for name in "krl"] == [3, 3, 3]
    assert [told[name][2] for name in "krl"] == [0, 0, 0]
    assert told["excluded"][0].keys() == {"client", "why", "needs"}
    assert told["excluded"][0]["client"] == 2
    assert told["excluded"][0]["needs"] == pytest.approx(32 * 8e6 * 50692 / 61706 / 1e8)
    assert told["lower_bound"] <= told["objective"]
    assert 0 <= told["relative_gap"] <= 1e-6


@pytest.mark.parametrize("solver", ["dca", "equal", "fixed", "fastest", "random"])
def test_every_solver_answers_and_is_measured_against_the_bound(
    leanfed: Leanfed, problem_file: Path, solver: str
) -> None:
    told = json.loads(leanfed("plan", problem_file, "--solver", solver, "--payload", "paper", "--json").stdout)
    assert (told["solver"], told["payload"]) == (solver, "paper")
    assert told["relative_gap"] >= 0


def test_the_aim_of_fixed_rates_can_be_chosen(leanfed: Leanfed) -> None:
    plan = ("plan", "--fleet", "paper", "--clients", "2", "--solver", "fixed", "--json")
    assert json.loads(leanfed(*plan, "--k", "0.25", "--r", "1").stdout)["k"] == [0.25, 0.25]


def test_the_table_says_who_is_out_and_what_bandwidth_is_worth(leanfed: Leanfed, problem_file: Path) -> None:
    done = leanfed("plan", problem_file, "--form", "safe")
    assert done.returncode == 0
    assert "2 of 3 take part" in done.stdout
    assert "the paper's trade-off, lower is better" in done.stdout
    assert "client 2: a deadline of 0.8 s is below the 2.103 s" in done.stdout
    assert "per MHz" in done.stdout


def test_what_if_solves_once_per_value(leanfed: Leanfed, problem_file: Path) -> None:
    question = ("plan", problem_file, "--form", "safe", "--what-if", "bandwidth_hz=1e5,1e6", "--json")
    rows = json.loads(leanfed(*question).stdout)
    assert [row["bandwidth_hz"] for row in rows] == [1e5, 1e6]
    assert rows[1]["objective"] < rows[0]["objective"]
    assert {"objective", "relative_gap", "mean_k", "mean_r", "excluded", "starved", "seconds"} <= rows[0].keys()
    assert (rows[0]["participants"], rows[0]["slowest"], rows[0]["slowest_s"]) == (2, "client 0", pytest.approx(0.8))
    assert 0 < rows[0]["energy_j"] <= 2 * 0.3
    shown = leanfed("plan", problem_file, "--what-if", "deadline_s=0.001,3,null")
    assert shown.returncode == 0
    assert "infeasible" in shown.stdout
    assert "no limit" in shown.stdout
    assert "take part" in shown.stdout
    assert "slowest" in shown.stdout
    counts = json.loads(leanfed("plan", "--fleet", "paper", "--what-if", "clients=3,30", "--json").stdout)
    assert [row["clients"] for row in counts] == [3, 30]
    energy = json.loads(
        leanfed("plan", problem_file, "--form", "safe", "--what-if", "energy_budget_j=0.05,0.3", "--json").stdout
    )
    assert [row["excluded"] for row in energy] == [2, 1]


def test_the_fast_form_is_the_default_and_says_what_it_aims_at(leanfed: Leanfed, problem_file: Path) -> None:
    told = json.loads(leanfed("plan", problem_file, "--json").stdout)
    assert (told["solver"], told["status"], told["lower_bound"]) == ("fast", "solved", None)
    assert 0.01 <= max(told["k"]) <= 0.05  # the bounds of the form, where the file has none
    wider = json.loads(leanfed("plan", problem_file, "--set", "k_min=0.2", "--set", "k_max=1", "--json").stdout)
    assert min(k for k in wider["k"] if k > 0) >= 0.2
    shown = leanfed("plan", problem_file).stdout
    assert "the most learning per second" in shown
    assert "of the fleet's gradient (by norm) a second" in shown
    assert "starved" not in shown


def test_a_plan_that_erases_heads_is_warned_of(leanfed: Leanfed) -> None:
    asked = ("plan", "--fleet", "paper", "--clients", "60")
    plain = leanfed(*asked, "--form", "plain")
    assert (plain.returncode, "keep less than 5 % of their head (r < 0.05)" in plain.stderr) == (0, True)
    assert "is lost for good" in plain.stderr
    assert "does not learn in this round" in leanfed(*asked, "--form", "safe").stderr
    assert leanfed(*asked).stderr == ""  # the fast form keeps at least half of each


def test_devices_have_the_names_of_the_fleet_file(leanfed: Leanfed, tmp_path: Path) -> None:
    rows = [f"{name},{gain},0.2,{cpu}" for name, gain, cpu in (("kitchen", 1e-9, 1e9), ("[b]hall", 1e-11, 2e7))]
    (tmp_path / "home.csv").write_text("device,gain,power_w,cpu_hz\n" + "\n".join(rows))
    shown = leanfed("plan", "--fleet", "home.csv").stdout
    assert "kitchen" in shown
    assert "[b]hall: its own deadline" in shown
    assert "kitchen" in leanfed("plan", "--fleet", "home.csv", "--what-if", "bandwidth_hz=1e6,2e6").stdout


def test_a_fleet_becomes_a_problem_that_can_be_saved_drawn_and_solved_again(leanfed: Leanfed, tmp_path: Path) -> None:
    made = ("plan", "--fleet", "paper", "--clients", "6", "--seed", "4", "--set", "bandwidth_hz=5e5", "--json")
    done = leanfed(*made, "--save", "made/problem.json", "--picture", "made/cell.png")
    assert done.returncode == 0, done.stderr
    again = json.loads(leanfed("plan", "made/problem.json", "--json").stdout)
    told = json.loads(done.stdout)
    assert {**told, "seconds": 0} == {**again, "seconds": 0}
    assert (tmp_path / "made/cell.png").read_bytes()[:4] == b"\x89PNG"


def test_a_measured_fleet_is_planned_and_drawn_over_its_gains(leanfed: Leanfed, tmp_path: Path) -> None:
    write_fleet(tmp_path / "fleet.parquet", [SampledFleet(FleetSettings(devices=5)).state(0)])
    plan = ("plan", "--fleet", "fleet.parquet", "--model", "resnet18", "--clients", "4")
    done = leanfed(*plan, "--set", "cpu_hz=[1e9, 1e9, 1e9, 1e6]", "--picture", "cell.png")
    assert done.returncode == 0, done.stderr
    assert "3 of 4 take part" in done.stdout
    assert "picture: cell.png" in done.stdout
    assert (tmp_path / "cell.png").stat().st_size > 10_000


def test_nobody_able_exits_with_3_and_says_so(leanfed: Leanfed, problem_file: Path) -> None:
    done = leanfed("plan", problem_file, "--set", "deadline_s=1e-3", "--json")
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert (told["status"], told["objective"], len(told["excluded"])) == ("infeasible", None, 3)
    shown = leanfed("plan", problem_file, "--set", "deadline_s=1e-3")
    assert shown.returncode == 3
    assert "infeasible: no client can take part" in shown.stdout
    assert leanfed("plan", problem_file, "--what-if", "deadline_s=1e-3,1e-4").returncode == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu_hz": [1e9, -2, 1e9]}, "cpu_hz of client 1 is -2"),
        ({"channel_gain": [1e-10, 1e-10, "strong"]}, "channel_gain of client 2 is 'strong'"),
        ({"power_w": [0.1, 0.1]}, "power_w has 2 values for 3 clients"),
        ({"bandwith_hz": 1e7}, "did you mean 'bandwidth_hz'"),
        ({"weights": []}, "channel_gain has 3 values for 0 clients"),
    ],
)
def test_a_bad_field_exits_with_2_and_names_client_and_field(
    leanfed: Leanfed, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({**PROBLEM, **changes}))
    done = leanfed("plan", "bad.json", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "neither is given"),
        (["problem.json", "--fleet", "paper"], "both are given"),
        (["none.json"], "Cannot read none.json"),
        (["problem.json", "--solver", "certifed"], "did you mean 'certified'"),
        (["problem.json", "--form", "fats"], "did you mean 'fast'"),
        (["problem.json", "--form", "fast", "--solver", "dca"], "plans the forms 'safe' and 'plain'"),
        (["problem.json", "--payload", "exakt", "--form", "safe"], "did you mean 'exact'"),
        (["problem.json", "--what-if", "tau=1"], "Unknown field 'tau'"),
        (["problem.json", "--what-if", "clients=9"], "ask for 1 to 3"),
        (["problem.json", "--what-if", "clients=2", "--picture", "x.png"], "Leave them out"),
        (["problem.json", "--save", "no/such/x.json"], "there is no folder no"),
        (["problem.json", "--picture", "no/such/x.png"], "there is no folder no"),
        (["--fleet", "none.csv"], "Cannot read none.csv"),
        (["--fleet", "somewhere"], "give 'paper', or a file"),
    ],
)
def test_a_call_that_cannot_be_used_exits_with_2(
    leanfed: Leanfed, problem_file: Path, arguments: list[str], message: str
) -> None:
    done = leanfed("plan", *arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_codec_prints_rows_with_the_agreed_keys(leanfed: Leanfed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_bench, "CASES", ((1_000, 0.1), (1_000, 0.5)))
    rows = json.loads(leanfed("bench", "codec", "--json").stdout)
    assert [row["k"] for row in rows] == [0.1, 0.5]
    assert list(rows[0]) == ["d", "k", "exact_bits", "coded_bits", "overhead", "encode_ms", "decode_ms"]
    assert "overhead" in leanfed("bench", "codec").stdout


def test_bench_plan_prints_rows_per_solver(leanfed: Leanfed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan_bench.plan_rows.__kwdefaults__, "clients", (10,))
    rows = json.loads(leanfed("bench", "plan", "--seeds", "1", "--no-dca", "--json").stdout)
    assert {row["clients"] for row in rows} == {10}
    assert {"solver", "clients", "seconds", "max_seconds"} <= rows[0].keys()
    assert "max seconds" in leanfed("bench", "plan", "--clients", "5", "--seeds", "1", "--no-dca").stdout


def test_bench_engine_passes_its_options_on(leanfed: Leanfed, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(clients: int, model: str, threads: int | None, *, grown: int | None) -> dict[str, object]:
        asked = {"clients": clients, "model": model, "threads": threads, "grown": grown}
        return {**asked, "round_s": 0.1, "peak_extra_mib": float("nan")}

    monkeypatch.setattr(engine_bench, "engine_bench", measured)
    told = json.loads(leanfed("bench", "engine", "--clients", "7", "--threads", "1", "--to", "70", "--json").stdout)
    assert told == {"clients": 7, "model": "lenet5", "threads": 1, "grown": 70, "round_s": 0.1, "peak_extra_mib": None}
    assert "peak extra mib" in leanfed("bench", "engine").stdout


def blocks(language: str) -> list[str]:
    """The code blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_of_the_page_run_and_print_what_it_shows(leanfed: Leanfed, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(blocks("json")[0])
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 10
    printed = {}
    for command in commands:
        done = leanfed(*shlex.split(command)[1:])
        assert done.returncode == 0, f"{command}: {done.stderr}"
        printed[command] = {_steady(line) for line in done.stdout.splitlines()}
    shown = [line for line in blocks("text")[0].splitlines() if line.strip() and "──" not in line]
    assert {_steady(line) for line in shown} <= printed["leanfed plan problem.json --form safe"]


def _steady(line: str) -> str:
    """A line's words without what differs between machines: the time, and the last digits of the bound."""
    return " ".join(re.sub(r"solved in \S+ m?s|; no plan is below .*", "", line).split())


def test_the_page_lists_every_field() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(field.name for field in fields(Problem))


def test_the_theory_settings_of_the_page_are_settings(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(blocks("toml")[0])
    assert Settings.from_toml(tmp_path / "run.toml").theory.every == 10


def test_every_cut_is_shown_with_the_one_that_is_chosen(leanfed: Leanfed, settings_file: Path) -> None:
    told = json.loads(leanfed("plan", "--cuts", settings_file, "--json").stdout)
    assert list(told) == ["asked", "chosen", "own", "why", "cuts"]
    assert [cut["shared"] for cut in told["cuts"]] == [156, 2_572, 50_692, 60_856]
    assert all(cut["seconds"] > 0 and cut["joules"] > 0 and 0 <= cut["gain"] <= 1 for cut in told["cuts"])
    shown = leanfed("plan", "--cuts", settings_file)
    assert f"cut after {told['chosen']}, {told['why']}" in shown.stdout
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("conv2")]
    assert "2,572" in row
    assert "14.1%" in row  # of the multiply-adds are the head's


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "algorithm={name='fedavg'}"], "shares the same part wherever the model is cut"),
        (["--set", "task.split=auto:seconds"], "no cut is chosen by 'seconds'"),
        (["--fleet", "paper"], "--cuts plans for a settings file"),
    ],
)
def test_cuts_that_cannot_be_chosen_are_refused(
    leanfed: Leanfed, settings_file: Path, arguments: list[str], says: str
) -> None:
    done = leanfed("plan", "--cuts", settings_file, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
