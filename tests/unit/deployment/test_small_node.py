"""A node that fits a small device: what it installs, what it imports, and the image recipe that is made of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer.main
import yaml

from leanfed.cli.deploy import deploy
from leanfed.compression.selection import LARGE, largest
from tests.unit.deployment.fleets import settings_of

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "examples" / "compose"
COMPILER = ("llvmlite", "numba")
WITHOUT = (
    *("clarabel", "cvxpy", "matplotlib", "mlxtend", "pandas", "plotly", "polars", "ray", "scipy", "sklearn", "uv"),
    *COMPILER,
)
PLAY = """
import hashlib, json, sys

WITHOUT = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(WITHOUT))  # Python's own way to say that a module is not there
import leanfed.cli.deploy, leanfed.deployment.learning.client_app, leanfed.deployment.operations.nodes
import leanfed.deployment.operations.warm_programs, leanfed.deployment.operations.supernode
from leanfed.compression.codec import encode
from leanfed.deployment.learning.config import NodeConfig
from leanfed.deployment.learning.messages import Order
from leanfed.deployment.learning.work import bench_of, carry_out, greet

settings, node = sys.argv[2], NodeConfig(client_id=1, store=sys.argv[3])
hello, _ = greet("a" * 32, settings, node)
world = bench_of(settings, node).world
base = world.algorithm.start_server(world.task).shared
order = Order(run="a" * 32, token="b" * 32, round=0, client=1, applied=-1, applied_token="", train=True, evaluate=True,
              k=0.1, r=0.8, share=1.0)
answer, _ = carry_out(order, [encode(len(base), None, base.numpy())], settings, node)
there = [name for name in (*WITHOUT, "torch._dynamo") if sys.modules.get(name)]
told = {"samples": hello.samples, "bytes": len(answer.frame), "there": there, "loss": answer.loss}
print(json.dumps(told | {"sha256": hashlib.sha256(answer.frame).hexdigest()}))
"""


def played(without: tuple[str, ...], store: Path) -> dict[str, Any]:
    """What a node answers where some packages are not there."""
    settings = json.dumps(settings_of().resolved())
    given = [json.dumps(without), settings, str(store)]
    done = subprocess.run([sys.executable, "-c", PLAY, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_node_works_where_solver_compiler_plotting_ray_and_tables_are_not_installed(tmp_path: Path) -> None:
    told = played(WITHOUT, tmp_path / "store")
    assert told["there"] == []
    assert told["samples"] > 0
    assert told["bytes"] > 1000
    with_compiler = played((), tmp_path / "other")
    assert (told["sha256"], told["loss"]) == (with_compiler["sha256"], with_compiler["loss"])  # the same bits


@pytest.mark.parametrize("count", [1, 1000, LARGE // 2, LARGE - 1])
def test_a_large_models_entries_are_the_same_without_the_compiler(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(count).integers(0, 5000, LARGE)  # many are equal: the rule for ties decides
    magnitudes = drawn.astype(np.float32)
    compiled = largest(magnitudes, count)
    monkeypatch.setattr("leanfed.compression.selection.find_spec", lambda name: None)
    assert np.array_equal(largest(magnitudes, count), compiled)
    assert len(compiled) == count


def test_who_plans_without_the_compiler_hears_what_to_install() -> None:
    code = """
import sys
sys.modules.update({"numba": None, "llvmlite": None})
from leanfed.allocation import Problem, plan
from leanfed.errors import InputError
problem = Problem.from_json(
    {"weights": [0.5, 0.5], "channel_gain": [1e-10, 1e-10], "power_w": [0.1, 0.1], "cpu_hz": [1e9, 1e9],
     "batch_size": 32, "cycles_per_sample": 8e6, "energy_coefficient": 1e-28, "deadline_s": 0.8, "energy_budget_j": 0.3,
     "bandwidth_hz": 1e7, "noise_w_per_hz": 4e-21, "base_size": 50692, "head_size": 11014, "value_bits": 32,
     "theta1": 0.1, "theta2": 1.0})
try:
    plan(problem)
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "numba is not installed. Run: pip install numba" in done.stdout


def requirements(lines: list[str]) -> dict[str, str]:
    """name -> the whole requirement, without comments and extras."""
    kept = [line.split("#")[0].strip() for line in lines]
    return {re.split(r"[\[<>=]", line)[0]: re.sub(r"\[.*?\]", "", line) for line in kept if line}


def test_what_a_node_installs_is_a_part_of_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = requirements(project["dependencies"]) | requirements(extras["flower"])
    node = requirements((ROOT / "release" / "node.txt").read_text().splitlines())
    flower = requirements([one for one in distribution("flwr").requires or [] if "extra ==" not in one])
    assert set(node) - set(flower) <= set(asked)
    assert {name: node[name] for name in set(node) & set(asked)}.items() <= asked.items()
    assert set(flower) - set(node) == {"uv"}  # Flower itself is installed without what it asks for
    assert not set(WITHOUT) & set(node)
    assert requirements(extras["node"]) == requirements(extras["flower"])
    assert not any("simulation" in line for line in extras["node"])  # which is Ray


def test_the_compose_file_starts_verbs_that_exist_and_gives_away_nothing() -> None:
    services: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    assert set(services) == {"keys", "server", "node"}
    group = typer.main.get_command(deploy)
    assert isinstance(group, click.Group)
    for service in services.values():
        first, verb, *rest = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in service["command"]]
        assert first == "deploy"
        group.commands[verb].make_context(verb, rest)  # refuses an option that is not there
        assert service["read_only"] and service["init"] and service["cap_drop"] == ["ALL"]
        assert service["build"]["dockerfile"] == "examples/compose/Dockerfile"
        assert (COMPOSE / service["build"]["context"]).resolve() == ROOT
        assert not service.get("privileged")
    assert services["server"]["ports"] == ["9092:9092"]  # the door, and not the control port
    assert not services["node"].get("ports")


def test_the_image_recipe_installs_what_is_there_and_does_not_run_as_root() -> None:
    text = (COMPOSE / "Dockerfile").read_text()
    joined = re.sub(r"\\\n", " ", text)
    steps = [line.split(None, 1) for line in joined.splitlines() if line and not line.startswith("#")]
    assert {word for word, _ in steps} <= {"FROM", "ARG", "COPY", "RUN", "ENV", "USER", "WORKDIR", "ENTRYPOINT"}
    assert [rest for word, rest in steps if word == "USER"] == ["leanfed"]
    assert json.loads(steps[-1][1]) == ["leanfed"]
    for path in re.findall(r"/src/([\w./-]+)", text):
        assert (ROOT / path).exists(), path
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(extra in extras for extra in re.findall(r"/src\[(\w+)\]", text))
    for script in (rest for word, rest in steps if word == "RUN"):
        subprocess.run(["sh", "-n", "-c", script], check=True)  # the shell's grammar, nothing is run


def test_the_guides_table_of_faults_names_tests_and_scripts_that_are_there() -> None:
    table = (ROOT / "docs" / "fleet.md").read_text().partition("## Faults that were tried")[2]
    named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", table)
    assert len(named) > 20
    for path, function in named:
        assert not function or f"def {function}(" in (ROOT / path).read_text(), (path, function)
        assert (ROOT / path).is_file(), path


def test_the_guide_tells_what_a_node_weighs() -> None:
    measured = json.loads((ROOT / "results" / "fleet" / "node_size.json").read_text())
    assert measured["node_mb"] < measured["whole_mb"]
    assert measured["torch_mb"] + measured["node_beyond_torch_mb"] == pytest.approx(measured["node_mb"], abs=2)
    guide = (ROOT / "docs" / "fleet.md").read_text()
    for name in ("whole_mb", "node_mb", "torch_mb", "node_beyond_torch_mb"):
        assert f"{measured[name]:,} MB" in guide, name


def test_the_guide_tells_how_much_memory_a_node_takes() -> None:
    measured = json.loads((ROOT / "results" / "fleet" / "node_memory.json").read_text())
    sizes = measured["processes_mb"]
    assert set(sizes) == {"torch", "supernode", "superexec", "deploy_node"}
    assert sum(sizes.values()) == pytest.approx(measured["node_mb"], abs=2)
    guide = " ".join((ROOT / "docs" / "fleet.md").read_text().split())
    told = [
        f"{measured['node_mb']} MB, where",
        f"{sizes['torch']} MB for the process",
        f"{sizes['superexec']} for Flower's",
    ]
    told += [f"{sizes['supernode']} for its SuperNode", f"{sizes['deploy_node']} for `deploy node`"]
    assert [text for text in told if text not in guide] == []


def test_the_guide_tells_how_well_seconds_were_predicted() -> None:
    measured = json.loads((ROOT / "results" / "fleet" / "links.json").read_text())
    guide = " ".join((ROOT / "docs" / "fleet_rounds.md").read_text().split())
    rows = {row["run"]: row for row in measured["rows"]}
    for row in rows.values():
        assert row["median_error_clients"] <= 0.2
        told = [f"{100 * row[f'median_error_{of}']:.1f} %" for of in ("clients", "rounds")]
        told.append(f"{row['median_seconds_per_round']:.1f}")
        told += ["never" if (to := row["seconds_to"][target]) is None else f"{to}" for target in ("0.7", "0.8", "0.9")]
        told.append(f"{100 * row['accuracy']:.1f} %")
        assert " | ".join(told) in guide
    for link in map(str, range(4)):
        errors = ", ".join(f"{100 * row['errors_by_link'][link]:.1f}" for row in rows.values())
        assert f"{errors} %" in guide
    seconds = {run: row["seconds_to"]["0.7"] or float("inf") for run, row in rows.items()}
    assert seconds["planned"] < seconds["fixed"]
    assert seconds["rule"] <= 1.1 * seconds["planned"]  # what the guide says of the same aids


def test_the_guide_tells_what_the_soak_came_to() -> None:
    report = json.loads((ROOT / "results" / "fleet" / "soak.json").read_text())
    assert report["lost"] == report["processes_left"] == []
    assert report["poisoned_updates_applied"] == 0
    guide = " ".join((ROOT / "docs" / "fleet.md").read_text().split())
    told = [f"{100 * report[name]:.1f} %" for name in ("accuracy", "accuracy_undisturbed")]
    told += [f"{report['nodes']} nodes, {report['rounds']} rounds", f"{abs(report['points_apart'])} points apart"]
    told += [f"{report['acts']['node']} nodes killed, {report['acts']['server']} times the server"]
    told += [f"away for {report['outage_s']:.0f} s", f"{report['audit']['used_late']} late updates were used"]
    assert abs(report["points_apart"]) <= 1.0
    assert [text for text in told if text not in guide] == []
