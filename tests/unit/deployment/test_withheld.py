"""Fleets whose nodes report no metrics: the same learning, and nothing of them on the wire or in the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import leanfed
from leanfed.algorithms.uploads import Upload
from leanfed.deployment.learning.checks import Expected, read_update
from leanfed.deployment.learning.config import NodeConfig, read_settings
from leanfed.deployment.learning.messages import Answer, MessageError, Order
from leanfed.deployment.learning.work import carry_out, greet
from leanfed.errors import SettingsError
from leanfed.rounds.metrics import REPORTED
from leanfed.rounds.wire import to_frame
from leanfed.runs.prepare import build_world
from tests.unit.deployment.fleets import CLIENTS, Trial, settings_of

RUN = "a" * 32
WORDS = (
    b"majority_guess",
    b"test_samples",
    b"accuracy",
    b"test_loss",
    b"\x04loss",
)  # the last with its length before it


def test_a_fleet_without_metrics_learns_the_same_and_sends_none(tmp_path: Path) -> None:
    trials = {}
    for metrics in ("shown", "off"):
        trials[metrics] = Trial(settings_of(privacy={"metrics": metrics}), tmp_path / metrics, {"fleet": "profile"})
        trials[metrics].play()
    sent = {name: b"".join(trial.grid.wire) for name, trial in trials.items()}
    assert all(word in sent["shown"] for word in WORDS)
    assert not [word for word in WORDS if word in sent["off"]]
    shown, off = (load_file(trial.folder / "weights.safetensors") for trial in trials.values())
    assert (shown["server.shared"] == off["server.shared"]).all()
    for name in ("rounds", "clients", "evaluations"):
        table = trials["off"].table(name)
        assert not {column for column in table.columns if table[column].drop_nulls().len()} & REPORTED, name
    assert trials["off"].table("clients").height == 3 * CLIENTS  # what the devices took is there
    text = (trials["off"].folder / "audit.jsonl").read_text() + (trials["off"].folder / "events.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert not [event for event in events if event.get("accuracy") or event.get("train_loss")]
    simulated = leanfed.run(trials["off"].settings, tmp_path / "simulated")
    here = trials["off"].table("rounds")
    assert here["upload_bits"].to_list() == simulated.rounds["upload_bits"].to_list()
    there = load_file(tmp_path / "simulated" / "weights.safetensors")
    assert (there["server.shared"] == off["server.shared"]).all()


def test_a_node_withholds_metrics_whatever_an_order_asks_for(tmp_path: Path) -> None:
    settings = settings_of(privacy={"metrics": "off"})
    text, node = json.dumps(settings.resolved()), NodeConfig(client_id=1, store=str(tmp_path / "node"))
    hello, _ = greet(RUN, text, node)
    assert (hello.test_samples, hello.majority_guess) == (None, None)
    assert hello.samples > 0  # its updates are weighted by them
    start = settings.algorithm.start_server(build_world(settings).task)
    heading = {"run": RUN, "token": "t", "round": 0, "client": 1, "applied": -1, "applied_token": ""}
    order = Order.model_validate({**heading, "train": True, "evaluate": True, "k": 0.1, "r": 0.8, "share": 1.0})
    answer, _ = carry_out(order, [to_frame(Upload(len(start.shared), start.shared), "float32")], text, node)
    assert (answer.loss, answer.accuracy, answer.test_loss) == (None, None, None)
    assert answer.frame


def test_a_loss_that_nobody_asked_for_is_refused() -> None:
    order = Order.model_validate(
        {"run": "r", "token": "t", "round": 0, "client": 0, "applied": -1, "applied_token": "", "train": True}
        | {"evaluate": False, "k": 1.0, "r": 1.0, "share": 1.0}
    )
    heading = {"run": "r", "token": "t", "round": 0, "client": 0, "store": "kept", "samples": 1, "loss": 0.5}
    answer = Answer.model_validate({**heading, "ready_s": 0.0, "train_s": 0.0, "test_s": 0.0, "sent_at": 0.0})
    expected = Expected(order, 4, 4, mask=False, values="float32", last_frame=None, shown=False)
    with pytest.raises(MessageError, match=r"reports a loss, though privacy\.metrics = 'off'"):
        read_update(answer, expected)


def test_a_fleet_has_no_noise_and_says_what_it_has_instead() -> None:
    settings = settings_of(privacy={"unit": "client", "noise_multiplier": 1.0, "metrics": "noised"})
    with pytest.raises(SettingsError, match=r"adds no noise.*privacy\.metrics = 'off' alone"):
        read_settings(json.dumps(settings.resolved()))
