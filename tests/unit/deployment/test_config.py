"""What a run and a node are told: checked, with errors that name the key."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from leanfed.deployment.learning.config import RunConfig, defaults, node_config, read_settings, run_config
from leanfed.deployment.operations.flower_app import write_app
from leanfed.errors import SettingsError
from tests.unit.deployment.fleets import settings_of


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quorun": 0.5}, "unknown key 'quorun': did you mean 'quorum'"),
        ({"quorum": 1.5}, "quorum is 1.5, but"),
        ({"deadline-s": 0.0}, "deadline-s is 0.0, but"),
        ({"fleet": "guessed"}, "fleet is 'guessed', but"),
    ],
)
def test_a_wrong_key_or_value_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run_config(values)


def test_a_node_needs_its_number_and_its_store() -> None:
    with pytest.raises(SettingsError, match="node-config: client-id field required"):
        node_config({"store": "/x"}, RunConfig())
    with pytest.raises(SettingsError, match="Set run-config key 'store'"):
        node_config({"partition-id": 0, "num-partitions": 2}, RunConfig())
    virtual = node_config({"partition-id": 3, "num-partitions": 9}, RunConfig(store="/stores"))
    assert (virtual.client_id, virtual.store) == (3, "/stores/node-3")


def test_the_app_folder_lists_every_key(tmp_path: Path) -> None:
    project = tomllib.loads((write_app(tmp_path / "app") / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == defaults()
    assert run_config(project["tool"]["flwr"]["app"]["config"]) == RunConfig()


def test_settings_that_a_fleet_cannot_carry_out_are_refused() -> None:
    with pytest.raises(SettingsError, match="no settings"):
        read_settings("")
    with pytest.raises(SettingsError, match="not JSON"):
        read_settings("rounds = 3")
    with pytest.raises(SettingsError, match="32- or 16-bit"):
        read_settings(json.dumps(settings_of(radio={"value_bits": 64}).resolved()))


def test_without_flower_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['flwr'] = None; import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'flwr' else find(name, *rest)\n"
        "import leanfed.deployment.learning.client_app"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'leanfed[flower]'" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [("[" * 5_000, "nested"), ("9" * 5_000, "not JSON"), ("[]", "a JSON list"), ("{", "not JSON"), ("", "no settings")],
    ids=["deep", "long", "list", "cut", "empty"],
)
def test_settings_that_are_no_object_are_explained(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_settings(text)
