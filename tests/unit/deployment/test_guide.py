"""The guide to fleets says what is so: its commands exist, and its tables name what the code writes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from leanfed.cli.deploy import deploy
from leanfed.runs.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "fleet.md").read_text()
ROUNDS = (ROOT / "docs" / "fleet_rounds.md").read_text()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src/leanfed/deployment").rglob("*.py"))
DOOR = "\n".join(
    (ROOT / f"src/leanfed/deployment/{name}.py").read_text()
    for name in ("door/proxy", "door/admission", "operations/roster", "operations/log_watch")
)
PROSE = re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL)
COMMANDS = re.findall(r"leanfed deploy (\w+[^\n`#]*)", "\n".join(re.findall(r"```\w*\n(.*?)```", GUIDE, re.DOTALL)))


def test_there_are_commands_to_check() -> None:
    assert {line.split()[0] for line in COMMANDS} == {"keys", "server", "node", "run", "status"}


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_guide_is_one_that_the_command_line_takes(line: str) -> None:
    verb, *arguments = shlex.split(line)
    group = typer.main.get_command(deploy)
    command = group.commands[verb]  # type: ignore[attr-defined]
    command.make_context(verb, arguments, resilient_parsing=False)


@pytest.mark.parametrize("heading", ["| event | says |", "| `why` | what it means |"])
def test_every_line_of_the_audit_tables_is_written_by_the_code(heading: str) -> None:
    table = GUIDE.split(heading)[1].split("\n\n")[0]
    names = [name.rstrip("… ").removesuffix(":") for row in table.splitlines()[2:] for name in _names(row)]
    assert len(names) > 15
    for name in names:
        assert f'"{name}' in SOURCE or f" {name}" in SOURCE, name


def test_every_reason_that_the_door_gives_is_in_the_guide() -> None:
    reasons = re.findall(r'(?:refusals\.write\(\s*|Refusal\(4\d\d, |return )"([a-zS][^"]{3,60})"', DOOR)
    assert len(reasons) > 15
    shown = {name.rstrip("… ").removesuffix(":") for name in _names(PROSE)}
    for reason in reasons:
        assert any(reason.startswith(name) for name in shown), reason


def test_the_guides_settings_are_settings(tmp_path: Path) -> None:
    text = re.search(r"<!-- start.toml -->\n```toml\n(.*?)```", GUIDE, re.DOTALL)[1]
    (tmp_path / "start.toml").write_text(text)
    assert Settings.from_toml(tmp_path / "start.toml").task.partition.clients == 3


def test_the_measured_rounds_are_those_of_the_file() -> None:
    warm, cold = json.loads((ROOT / "results/fleet/rounds.json").read_text())["rows"]
    for name, row in (("warm", warm), ("cold", cold)):
        figures = (row["seconds_per_round"], row["cpu_s_per_round"], row["cpu_s_per_message"])
        assert f"| {name} | " + " | ".join(f"{value:.2f}" for value in figures) + " |" in ROUNDS
    assert (warm["warm"], cold["warm"], warm["nodes"], cold["nodes"]) == (True, False, 4, 4)
    assert warm["losses"] == cold["losses"]
    assert warm["cpu_s_per_message"] < cold["cpu_s_per_message"] / 3


def test_the_virtual_clients_are_those_of_the_file() -> None:
    report = json.loads((ROOT / "results/fleet/simulation.json").read_text())
    assert (report["participants"], report["largest_difference_of_losses"]) == ([100] * 3, 0.0)
    first, second, third = report["seconds_of_rounds"]
    said = f"took {report['seconds']:.1f} s for 3 rounds ({first:.2f}, {second:.2f} and {third:.2f} s;"
    assert said in ROUNDS
    assert f"load average {report['load_average']:.1f}" in ROUNDS
    assert f"took {report['seconds_of_leanfed_run']:.1f} s at the same load" in ROUNDS


def test_what_the_kills_cost_is_that_of_the_file() -> None:
    report = json.loads((ROOT / "results/fleet/chaos.json").read_text())
    assert report["lost"] == []
    assert (report["rounds"], report["largest_difference_of_losses"]) == (9, 0.0)
    assert (report["audit"]["accepted"], report["audit"]["lost"]) == (34, 1)
    assert "Nine rounds, 34 updates applied and one lost with its node" in ROUNDS


def test_what_a_masked_sum_takes_is_that_of_the_file() -> None:
    rows = json.loads((ROOT / "results/fleet/masked.json").read_text())["rows"]
    sizes = ("clients", "neighbours", "values", "up_bytes", "formula_up_bytes", "down_bytes", "formula_down_bytes")
    for row in rows:
        shown = [f"{row[name]:,}" for name in sizes] + [f"{row['client_cpu_s']:.2f}", f"{row['server_cpu_s']:.1f}"]
        assert "| " + " | ".join(shown) + " |" in GUIDE
        assert row["formula_up_bytes"] < row["up_bytes"] < 1.35 * row["formula_up_bytes"]


def _names(text: str) -> list[str]:
    """What stands between backticks in the first cell of a row, or anywhere in a text."""
    cell = text.split("|")[1] if text.startswith("|") else text
    return re.findall(r"`([^`]+)`", cell)
