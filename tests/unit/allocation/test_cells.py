"""Problems from files and fleets, and the questions asked of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leanfed.allocation.cells import from_file, from_fleet, save_problem
from leanfed.allocation.plan import plan
from leanfed.allocation.problem import Problem
from leanfed.allocation.starvation import needs_of
from leanfed.allocation.what_if import parse_change, parse_question, summary_of, what_if
from leanfed.errors import InputError
from leanfed.wireless.channel import path_gain
from leanfed.wireless.fleet import FleetSettings, SampledFleet
from leanfed.wireless.fleet_file import write_fleet


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    save_problem(path, from_fleet("paper", clients=6)(None).problem)
    return path


def test_a_saved_problem_reads_back_to_the_same_numbers(saved: Path) -> None:
    before, after = from_fleet("paper", clients=6)(None).problem, Problem.from_json(saved)
    assert after.to_json() == before.to_json()
    assert '"deadline_s": 0.8,' in saved.read_text()  # what is the same for all is one number


def test_no_limit_survives_saving(tmp_path: Path) -> None:
    problem = from_fleet("paper", clients=2)(None).problem.with_(deadline_s=None, energy_budget_j=[0.3, None])
    save_problem(tmp_path / "p.json", problem)
    assert Problem.from_json(tmp_path / "p.json").to_json() == problem.to_json()


def test_the_paper_fleet_stands_where_its_gains_say() -> None:
    cell = from_fleet("paper", clients=5, seed=3)(None)
    assert cell.distance_m is not None
    assert cell.problem.channel_gain == pytest.approx(path_gain(cell.distance_m))
    assert cell.problem.weights == pytest.approx(np.full(5, 0.2))


def test_a_fleet_file_gives_the_problem_of_its_first_round(tmp_path: Path) -> None:
    fleet = SampledFleet(FleetSettings(devices=4, bandwidth_hz=2e6), seed=1)
    write_fleet(tmp_path / "fleet.csv", [fleet.state(0), fleet.state(1)])
    cell = from_fleet(str(tmp_path / "fleet.csv"), model="resnet18")(None)
    assert cell.problem.cpu_hz == pytest.approx(fleet.state(0).cpu_hz)
    assert cell.problem.bandwidth_hz == 2e6
    assert cell.problem.base_size.tolist() == [6_448_192] * 4
    assert cell.distance_m is None


def test_more_clients_of_the_paper_fleet_keep_the_first_ones() -> None:
    source = from_fleet("paper")
    assert source(8).problem.cpu_hz[:4] == pytest.approx(source(4).problem.cpu_hz)


def test_fewer_clients_of_a_file_carry_its_whole_weight(saved: Path) -> None:
    some = from_file(saved)(2).problem
    assert some.clients == 2
    assert some.weights.sum() == pytest.approx(1.0)
    with pytest.raises(InputError, match="clients is 7, but .* holds 6; ask for 1 to 6"):
        from_file(saved)(7)


@pytest.mark.parametrize(
    ("fleet", "options", "message"),
    [
        ("papr", {}, "Unknown fleet 'papr'; give 'paper', or a file"),
        ("paper", {"model": "lenet"}, "Unknown model 'lenet'; did you mean 'lenet5'"),
    ],
)
def test_an_unknown_fleet_or_model_is_refused(fleet: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_fleet(fleet, **options)


def test_questions_and_changes_are_read_as_json_numbers() -> None:
    assert parse_question("deadline_s=0.5,null") == ("deadline_s", [0.5, None])
    assert parse_change("k_min = [0.1, 0.2]") == ("k_min", [0.1, 0.2])


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("bandwidth_hz", "not of the form field=value"),
        ("bandwith_hz=1", "did you mean 'bandwidth_hz'"),
        ("bandwidth_hz=1e6,wide", "bandwidth_hz=wide is neither a number"),
        ("clients=1.5", "clients=1.5 is not a number of clients"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(question: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_question(question)


def test_more_bandwidth_never_hurts_and_each_row_is_its_own_plan() -> None:
    source = from_fleet("paper", clients=10)
    rows = what_if(source, "bandwidth_hz", [2e5, 1e6, 5e6])
    objectives = [row["objective"] for row in rows]
    assert objectives == sorted(objectives, reverse=True)
    alone = source(None).problem.with_(bandwidth_hz=1e6)
    assert rows[1]["objective"] == plan(alone).objective


def test_changes_hold_in_every_row_and_clients_can_be_asked_for() -> None:
    rows = what_if(from_fleet("paper"), "clients", [2, 4], changes={"bandwidth_hz": 2e5})
    assert [row["clients"] for row in rows] == [2, 4]
    assert rows[0]["objective"] < rows[1]["objective"]  # the same band for twice as many


def test_a_plan_for_nobody_has_no_means() -> None:
    problem = from_fleet("paper", clients=2)(None).problem.with_(deadline_s=1e-3)
    told = summary_of(problem, plan(problem))
    assert (told["status"], told["excluded"], told["mean_k"]) == ("infeasible", 2, None)


def one_client(**changes: object) -> Problem:
    return from_fleet("paper", clients=1)(None).problem.with_(**changes)


def test_the_share_that_a_starved_client_needs_is_enough_and_no_more() -> None:
    problem = one_client(k_max=0.01, r_min=0.5)
    told = needs_of(problem, [0])[0]
    khz = float(told.split("(")[1].split(" kHz")[0])
    enough, little = (problem.with_(bandwidth_hz=1e3 * khz * factor) for factor in (1.001, 0.999))  # four digits shown
    assert plan(enough.with_(k_min=0.01)).status == "solved"
    assert plan(little.with_(k_min=0.01)).status == "infeasible"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_min": 0.05}, "at the floor of k, 0.05"),
        ({"k_max": 0.005}, "the ceiling of k, 0.005, is below 0.01"),
        ({"channel_gain": 0.0}, "cannot upload without gain and power"),
        ({"channel_gain": 1e-17}, "even the whole band is not enough for k = 0.01; needs a deadline of"),
        ({"channel_gain": 1e-16, "deadline_s": None}, "needs an energy budget of"),
        ({"deadline_s": None, "energy_budget_j": None}, "needs 0 % of the band"),
    ],
)
def test_a_starved_client_is_told_what_stands_in_its_way(changes: dict[str, object], message: str) -> None:
    told = needs_of(one_client(**changes), [0])[0]
    assert message in told
    assert "_" not in told  # in words, not by the names of a file's fields
