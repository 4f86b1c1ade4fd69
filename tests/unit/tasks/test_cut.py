"""Where a model is cut if nobody says, and how that is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from leanfed.cli.app import app
from leanfed.errors import SettingsError
from leanfed.tasks.cut import cuts_of, found_cut, layers_of
from leanfed.tasks.models import MODELS, build_model

OWN = """
import leanfed
from torch import nn
leanfed.add_model("own-trunk", lambda n: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, n)))
"""


class Wrapped(nn.Module):
    """A model inside a model; a frozen layer comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"trunk": nn.Linear(2, 2), "act": nn.ReLU(), "classifier": nn.Linear(2, 2)})
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_the_head_is_the_last_child_with_trainable_weights() -> None:
    assert found_cut(Wrapped()) == "inner.trunk"


def test_one_layer_has_no_cut() -> None:
    with pytest.raises(SettingsError, match="'single' has no cut"):
        found_cut(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), "single")


def test_a_models_own_cut_comes_before_the_found_one() -> None:
    layers, cut = layers_of("lenet5", 10)
    assert cut == "conv3"
    assert [layer.shared for layer in layers] == [True, True, True, False, False]
    assert sum(layer.size for layer in layers if layer.shared) == 50_692
    assert layers_of("lenet5", 10, cut="conv2")[1] == "conv2"


def test_the_found_cut_of_an_own_model_is_shown_and_trained_with(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    answer = CliRunner().invoke(app, ["models", "own-trunk", "--import", str(tmp_path / "own.py"), "--json"])
    told = json.loads(answer.stdout)
    assert (told["cut"], told["shared"], told["private"]) == ("0", 4 * 8 + 8, 8 * 10 + 10)
    MODELS.remove("own-trunk")


class Stacked(nn.Module):
    """A frozen embedding, layers in a list inside another module, and an end of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 4).requires_grad_(False)
        self.body = nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(3))})
        self.end = nn.Linear(4, 2)


def test_a_chain_can_be_cut_after_every_stage_but_the_last() -> None:
    assert cuts_of(build_model("lenet5", 10, 0), "conv3") == ["conv1", "conv2", "conv3", "fc1"]
    assert cuts_of(build_model("resnet8", 10, 0), "stage2.0") == ["stem", "stage1.0", "stage2.0", "stage3.0"]


def test_another_model_can_be_cut_between_layers_of_its_lists() -> None:
    assert cuts_of(Stacked(), "body") == ["body.layers.0.0", "body.layers.1.0", "body"]  # its own cut keeps its name
    assert cuts_of(Wrapped(), "inner.trunk") == ["inner.trunk"]


def test_names_are_listed() -> None:
    assert "lenet5" in CliRunner().invoke(app, ["models"]).stdout.split()
    with pytest.raises(SettingsError, match="did you mean 'lenet5'"):
        CliRunner().invoke(app, ["models", "lenet"], catch_exceptions=False)
