"""`leanfed deploy` as a user meets it before a server runs; what follows is in test_fleet.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.integration.conftest import Leanfed

VERBS = ("keys", "server", "node", "run", "status")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_and_json(leanfed: Leanfed, verb: str) -> None:
    text = leanfed("deploy", verb, "--help").stdout
    assert f"Example: leanfed deploy {verb}" in text
    assert "--json" in text


def test_keys_are_made_changed_and_shown(leanfed: Leanfed) -> None:
    made = json.loads(leanfed("deploy", "keys", "fleet", "--nodes", "2", "--host", "fleet.example", "--json").stdout)
    assert [row["node"] for row in made["nodes"]] == ["edge-0", "edge-1"]
    changed = leanfed("deploy", "keys", "fleet", "--add", "gate-7", "--revoke", "edge-0", "--renew", "server")
    assert changed.returncode == 0
    assert "gate-7" in changed.stdout
    shown = json.loads(leanfed("deploy", "keys", "fleet", "--json").stdout)
    assert [(row["node"], row["client_id"], row["state"]) for row in shown["nodes"]] == [
        ("edge-0", 0, "revoked key"),
        ("edge-1", 1, "unknown"),
        ("gate-7", 2, "unknown"),
    ]
    assert set(shown["certificates"]) == {"authority", "server"}


def test_a_server_may_be_given_other_names(leanfed: Leanfed, tmp_path: Path) -> None:
    leanfed("deploy", "keys", "fleet")
    before = (tmp_path / "fleet/server/server.crt").read_bytes()
    shown = json.loads(leanfed("deploy", "keys", "fleet", "--host", "10.0.0.5", "--json").stdout)
    assert shown["hosts"] == ["10.0.0.5"]
    assert (tmp_path / "fleet/server/server.crt").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["keys", "fleet", "--nodes", "2"], "--add NAME"),
        (["keys", "fleet", "--public-key", "k.pub"], "exactly one --add"),
        (["keys", "fleet", "--revoke", "edge-9"], "There is no node 'edge-9'"),
        (["server", "nowhere"], "leanfed deploy keys nowhere"),
        (["server", "fleet", "--insecure", "--host", "0.0.0.0"], "loopback"),
        (["node", "fleet"], "no node's folder"),
        (["node", "fleet/nodes/edge-0", "--insecure", "--server", "10.0.0.5:9092"], "loopback"),
        (["node", "fleet/nodes/edge-0", "--data", "mine"], "dealt or own"),
        (["node", "fleet/nodes/edge-0", "fleet/nodes/edge-0", "--port", "9"], "--port is for one node"),
        (["run", "fleet"], "--resume FOLDER"),
        (["run", "fleet", "small.toml"], "leanfed deploy server"),
        (["run", "fleet", "small.toml", "--fleet", "deadline-s"], "key=value"),
        (["run", "fleet", "small.toml", "--fleet", "resume=true"], "set by `deploy run` itself"),
        (["run", "fleet", "--resume", "fleet/runs", "--seed", "1"], "Leave out --set, --seed and --out"),
    ],
)
def test_what_cannot_work_is_said_with_the_way_out(
    leanfed: Leanfed, settings_file: Path, arguments: list[str], says: str
) -> None:
    leanfed("deploy", "keys", "fleet", "--nodes", "1")
    ended = leanfed("deploy", *arguments)
    assert ended.returncode == 2
    assert says in ended.stderr.replace("\n", " ")


def test_a_node_without_a_server_says_so_and_leaves_nothing_running(leanfed: Leanfed) -> None:
    leanfed("deploy", "keys", "fleet", "--nodes", "1", "--port", "9")
    ended = leanfed("deploy", "node", "fleet/nodes/edge-0", "--max-retries", "0")
    assert ended.returncode == 1
    assert "cannot reach the server at 127.0.0.1:9" in ended.stderr
    assert "has joined" not in ended.stdout


def test_the_status_of_a_fleet_at_rest(leanfed: Leanfed) -> None:
    leanfed("deploy", "keys", "fleet", "--nodes", "1")
    facts = json.loads(leanfed("deploy", "status", "fleet", "--json").stdout)
    assert facts["server"] == "not running"
    assert facts["rounds"] is None
    assert facts["refusals"] == []
    assert "nobody was refused" in leanfed("deploy", "status", "fleet").stdout


@pytest.mark.parametrize("arguments", [["--help"], ["deploy", "--help"], ["deploy", "keys", "--help"]])
def test_help_needs_no_flower(arguments: list[str]) -> None:
    ended = _without_flower(arguments)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_extra_is_named(verb: str, tmp_path: Path) -> None:
    ended = _without_flower(["deploy", verb, str(tmp_path / "fleet")])
    assert ended.returncode == 2
    assert "pip install 'leanfed[flower]'" in ended.stderr.replace("\n", " ")


def _without_flower(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The command line where flwr and what it brings cannot be imported."""
    code = f"import sys; sys.modules.update(flwr=None, cryptography=None); sys.argv = ['leanfed', *{arguments!r}]"
    return subprocess.run(
        [sys.executable, "-c", f"{code}; from leanfed.cli import main; main()"],
        capture_output=True,
        text=True,
        check=False,
    )
