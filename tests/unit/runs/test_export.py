"""A client's model leaves its run: the same answers in every format, and refusals in words."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import leanfed
from leanfed.errors import InputError, MissingExtraError
from leanfed.results import RunFolder
from leanfed.runs.export import Exported, client_model, export_model, without_units
from leanfed.tasks.models import MODELS, ModelSpec

BASE = {"rounds": 2, "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "run"
    leanfed.run(leanfed.Settings.from_values({**BASE, "evaluation": {"every": 1}}), path)
    return path


def test_the_model_is_the_one_that_was_tested(folder: Path) -> None:
    tested = RunFolder(folder).read_table("evaluations").filter(round=1)
    for client in (0, 3):
        world, model = client_model(RunFolder(folder), client)
        batch = world.task.test.batch(world.task.partition.test[client])
        with torch.no_grad():
            right = (model(batch.inputs).argmax(1) == batch.labels).float().mean().item()
        assert right == pytest.approx(tested.filter(client=client)["accuracy"].item())


def test_a_tuned_method_exports_its_tuned_model(tmp_path: Path) -> None:
    settings = leanfed.Settings.from_values({**BASE, "algorithm": {"name": "fedbabu"}})
    leanfed.run(settings, tmp_path / "run")
    world, model = client_model(RunFolder(tmp_path / "run"), 1)
    tested = RunFolder(tmp_path / "run").read_table("evaluations").filter(round=1, client=1)["loss"].item()
    batch = world.task.test.batch(world.task.partition.test[1])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels).item()
    assert loss == pytest.approx(tested, rel=1e-5)


def answers_alike(run: Path, made: Exported) -> None:
    """onnxruntime gives client 3's answers and score from the file alone."""
    world, model = client_model(RunFolder(run), 3)
    inputs = world.task.test.batch(world.task.partition.test[3][:7]).inputs
    session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {"input": inputs.numpy()})
    np.testing.assert_allclose(answers, model(inputs).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert made.file.score == made.original.score


def test_nothing_is_logged_while_a_model_is_written(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export_model(folder, 3, "onnx", tmp_path / "three.onnx")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_onnx_answers_as_pytorch_does_without_leanfed(folder: Path, tmp_path: Path) -> None:
    made = export_model(folder, 3, "onnx", tmp_path / "three.onnx")
    answers_alike(folder, made)
    told = json.loads((tmp_path / "three.onnx.json").read_text())
    assert told["input"]["shape"] == ["batch", 1, 32, 32]
    assert "pixel / 255" in told["input"]["scaled"]
    assert told["file"]["bytes"] == made.path.stat().st_size


def test_eight_bits_are_a_third_of_the_size_and_hardly_less_accurate(folder: Path, tmp_path: Path) -> None:
    whole = export_model(folder, 3, "onnx", tmp_path / "whole.onnx")
    small = export_model(folder, 3, "onnx", tmp_path / "small.onnx", int8=True)
    assert small.file.bytes < 0.4 * whole.file.bytes
    assert small.file.score > whole.file.score - 0.1


def test_a_torch_program_answers_as_the_module(folder: Path, tmp_path: Path) -> None:
    made = export_model(folder, 0, "torch", tmp_path / "zero.pt2")
    world, model = client_model(RunFolder(folder), 0)
    inputs = world.task.test.batch(world.task.partition.test[0][:5]).inputs
    answers = torch.export.load(made.path).module()(inputs)
    assert torch.allclose(answers, model(inputs), atol=1e-6)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose heads keep half of their units."""
    path = tmp_path_factory.mktemp("pruned") / "run"
    method = {"name": "flpdsp", "k": 0.5, "r": 0.5, "prune": {"unit": "unit"}}
    radio = {"broadcast": "difference"}
    leanfed.run(leanfed.Settings.from_values({**BASE, "algorithm": method, "radio": radio}), path)
    return path


def test_units_that_pruning_emptied_are_left_out_and_nothing_changes(pruned: Path, tmp_path: Path) -> None:
    made = export_model(pruned, 3, "onnx", tmp_path / "three.onnx")
    assert made.units == {"fc1": (42, 84)}
    assert json.loads(made.description.read_text())["units"] == {"fc1": {"has": 42, "had": 84}}
    answers_alike(pruned, made)
    assert made.file.score == RunFolder(pruned).read_table("evaluations").filter(round=1, client=3)["accuracy"].item()


def test_a_share_of_the_units_is_kept_by_their_weights(folder: Path, tmp_path: Path) -> None:
    world, whole = client_model(RunFolder(folder), 2)
    small, taken = without_units(world, whole, 0.25)
    assert taken == {"fc1": (21, 84)}
    fc1, fc2 = whole.get_parameter("fc1.weight"), whole.get_parameter("fc2.weight")
    worth = fc1.square().sum(1) + whole.get_parameter("fc1.bias").square() + fc2.square().sum(0)
    kept = worth.topk(21).indices.sort().values
    assert torch.equal(small.get_parameter("fc1.weight"), fc1[kept])
    assert torch.equal(small.get_parameter("fc2.weight"), fc2[:, kept])
    made = export_model(folder, 2, "torch", tmp_path / "two.pt2", units=0.25)
    assert made.file.bytes < export_model(folder, 2, "torch", tmp_path / "all.pt2").file.bytes
    for share, words in ((0.001, "leaves 0 of the 84 units of 'fc1'"), (2.0, "leaves 168 of the 84")):
        with pytest.raises(InputError, match=words):
            export_model(folder, 2, "onnx", tmp_path / "none.onnx", units=share)
    assert not (tmp_path / "none.onnx").exists()


def test_executorch_answers_as_pytorch_does(pruned: Path, tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason="in no extra of ours")
    made = export_model(pruned, 1, "executorch", tmp_path / "one.pte")
    assert made.file.score == made.original.score
    assert made.units == {"fc1": (42, 84)}
    assert json.loads(made.description.read_text())["input"]["shape"] == [1, 1, 32, 32]


def test_a_client_of_the_run_and_a_run_with_weights(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Client 5 is not in .*, which has clients 0 to 4"):
        export_model(folder, 5, "onnx", tmp_path / "five.onnx")
    with pytest.raises(InputError, match="ONNX only"):
        export_model(folder, 0, "torch", tmp_path / "zero.pt2", int8=True)
    lean = leanfed.Settings.from_values({**BASE, "rounds": 1, "run": {"keep_weights": False}})
    leanfed.run(lean, tmp_path / "lean")
    with pytest.raises(InputError, match=r"run\.keep_weights = true"):
        export_model(tmp_path / "lean", 0, "onnx", tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


def test_formats_of_one_name_are_described_apart(folder: Path, tmp_path: Path) -> None:
    export_model(folder, 0, "onnx", tmp_path / "zero.onnx")
    export_model(folder, 0, "torch", tmp_path / "zero.pt2")
    told = {path.name: json.loads(path.read_text())["format"] for path in tmp_path.glob("*.json")}
    assert told == {"zero.onnx.json": "onnx", "zero.pt2.json": "torch"}
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_package_that_is_missing_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"needs the package onnxscript.*leanfed\[export\]"):
        export_model(folder, 0, "onnx", tmp_path / "zero.onnx")
    monkeypatch.setitem(sys.modules, "executorch", None)
    with pytest.raises(MissingExtraError, match=r"needs the package executorch.*pip install executorch"):
        export_model(folder, 0, "executorch", tmp_path / "zero.pte")
    assert not list(tmp_path.iterdir())


class Fickle(torch.nn.Module):
    """Looks at its inputs to decide what to do."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.end = torch.nn.Linear(1024, 8), torch.nn.Linear(8, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = self.body(pictures.flatten(1))
        return self.end(hidden if hidden.sum() > 0 else -hidden)


def test_a_model_that_cannot_be_exported_says_why(tmp_path: Path) -> None:
    spec = ModelSpec(Fickle, input_shape=(1, 32, 32), default_split="body")
    MODELS.add("fickle", spec)
    try:
        task = {**BASE["task"], "model": "fickle"}
        leanfed.run(leanfed.Settings.from_values({**BASE, "task": task, "rounds": 1}), tmp_path / "run")
        for format in ("onnx", "torch"):
            with pytest.raises(InputError, match=rf"cannot be written as '{format}' \(.*must not depend on the values"):
                export_model(tmp_path / "run", 0, format, tmp_path / "x")
    finally:
        MODELS.remove("fickle")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
