"""A cut that is left to the program: chosen once, before the first round, and a plain name from then on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import leanfed
from leanfed.deployment.learning.config import read_settings
from leanfed.errors import InfeasibleError, SettingsError
from leanfed.report.data import report_data
from leanfed.results import RunFolder
from leanfed.runs.carry_out import resume, run
from leanfed.runs.cuts import as_kept, settled
from leanfed.runs.prepare import prepare
from leanfed.runs.ranked import _kept
from leanfed.runs.settings import Settings
from leanfed.tasks.models import MODELS
from leanfed.tasks.task import build_task

PARTITION = {"kind": "class", "classes_per_client": 2, "clients": 5}


def digits(split: str | None = "auto", **changes: Any) -> Settings:
    values = {"rounds": 3, "task": {"split": split, "partition": PARTITION}, "algorithm": {"name": "fedper"}}
    return Settings.from_values({**values, "radio": {"fleet": {"bandwidth_hz": 5e5}}, **changes})


def test_settings_are_settled_alike_every_time_and_through_json() -> None:
    joint = {"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint"}}
    for settings, split, steps in ((digits(), "conv2", 1), (digits(**joint), "conv3", 5)):
        again = Settings.from_values(json.loads(json.dumps(settings.resolved())))
        found = [settled(one)[0] for one in (settings, again)]
        assert found[0].resolved() == found[1].resolved()
        assert found[0].task.split == split
        assert found[0].resolved()["algorithm"]["head_steps"] == steps
        assert settled(found[0]) == (found[0], None)
        named = {**settings.resolved(), "task": {**settings.resolved()["task"], "split": split}}
        assert Settings.from_values(named).resolved() == found[0].resolved()  # as if the user had named the layer


def test_a_folder_names_the_layer_and_says_why(tmp_path: Path) -> None:
    done, named = run(digits(), tmp_path / "auto"), run(digits("conv2"), tmp_path / "named")
    folder = RunFolder(tmp_path / "auto")
    assert folder.read_settings() == RunFolder(tmp_path / "named").read_settings()
    assert done.rounds["loss"].to_list() == named.rounds["loss"].to_list()
    kept = json.loads(folder.cuts.read_text())
    assert (kept["asked"], kept["chosen"], kept["own"]) == ("auto", "conv2", "conv3")
    assert [cut["layer"] for cut in kept["cuts"]] == ["conv1", "conv2", "conv3", "fc1"]
    (event,) = [event for event in folder.read_events() if event["event"] == "cut"]
    assert (event["chosen"], event["why"]) == ("conv2", kept["why"])
    assert not RunFolder(tmp_path / "named").cuts.exists()
    (shown,) = report_data([tmp_path / "auto"])["runs"]
    assert (shown["cuts"]["chosen"], shown["cuts"]["why"]) == ("conv2", kept["why"])
    assert shown["cuts"]["cuts"][0]["shared"] == 156
    assert report_data([tmp_path / "named"])["runs"][0]["cuts"] is None


def test_a_damaged_table_is_a_flaw_of_the_report_and_no_more(tmp_path: Path) -> None:
    run(digits(rounds=1), tmp_path / "auto")
    (tmp_path / "auto" / "cuts.json").write_text("[1")
    data = report_data([tmp_path / "auto"])
    assert data["runs"][0]["cuts"] is None
    assert any("cuts.json" in flaw["file"] for flaw in data["flaws"])


class Stop(Exception):
    pass


def test_a_resumed_run_does_not_choose_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(digits(), tmp_path / "whole")

    def stop(record: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        run(digits(), tmp_path / "cut", listen=stop)
    table = (tmp_path / "cut" / "cuts.json").read_bytes()
    monkeypatch.setattr("leanfed.rounds.cuts.SAVING", 0.0)  # a rule that would choose otherwise
    monkeypatch.setattr("leanfed.runs.cuts.choose_cut", lambda *given, **more: pytest.fail("chosen again"))
    done = resume(tmp_path / "cut")
    assert done.rounds["loss"].to_list() == whole.rounds["loss"].to_list()
    assert (tmp_path / "cut" / "cuts.json").read_bytes() == table


def test_the_same_order_goes_on_with_the_folder_of_its_own_choice(tmp_path: Path) -> None:
    run(digits(), tmp_path / "auto")
    folder = RunFolder(tmp_path / "auto")
    assert as_kept(digits(), folder).task.split == "conv2"
    assert as_kept(digits("auto:gain"), folder).task.split == "auto:gain"
    kept = _kept(folder.path, digits())
    assert kept is not None
    assert kept["settings"]["task"]["split"] == "conv2"
    with pytest.raises(leanfed.errors.InputError, match="holds a run of other settings"):
        _kept(folder.path, digits("auto:gain"))


def test_the_choice_is_between_cuts_that_the_method_can_take() -> None:
    units = {"name": "flpdsp", "prune": {"unit": "unit"}}
    _, choice = settled(digits(algorithm=units))
    assert choice is not None
    assert [cut.refused is None for cut in choice.cuts] == [True, True, True, False]  # behind fc1 there are no units


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": {"name": "fedavg"}}, "'fedavg' shares the same part wherever the model is cut"),
        ({"algorithm": {"name": "fedbn"}, "task": {"model": "tiny-norm"}}, "'fedbn' shares the same part"),
        ({"task": {"model": "one-cut"}}, "'one-cut' has one cut only, after '1'"),
    ],
)
def test_a_choice_of_one_is_refused(changes: dict[str, Any], words: str) -> None:
    MODELS.remove("one-cut") if "one-cut" in list(MODELS) else None
    leanfed.add_model("one-cut", lambda n: nn.Sequential(nn.Flatten(), nn.Linear(1024, 4), nn.Linear(4, n)))
    task = {"split": "auto", "partition": PARTITION, **changes.pop("task", {})}
    with pytest.raises(SettingsError, match=words):
        prepare(digits(task=task, **changes))
    MODELS.remove("one-cut")


def test_what_no_cut_allows_is_refused_as_without_a_choice() -> None:
    joint = {"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint", "deadline_s": 1e-9}}
    with pytest.raises(InfeasibleError, match="No client can take part in round 0"):
        settled(digits(**joint))


def test_an_unknown_criterion_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="no cut is chosen by 'costs': did you mean 'auto:cost'"):
        digits("auto:costs")


def test_neither_a_task_nor_a_fleet_takes_a_cut_that_is_not_chosen() -> None:
    with pytest.raises(SettingsError, match="is no layer yet"):
        build_task(digits().task, 0)
    with pytest.raises(SettingsError, match="`leanfed deploy run` chooses before"):
        read_settings(json.dumps(digits().resolved()))
    assert read_settings(json.dumps(settled(digits())[0].resolved())).task.split == "conv2"
