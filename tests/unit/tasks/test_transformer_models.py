"""Models of transformers from folders with and without weights, and adapters in any model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leanfed
from leanfed.errors import DataError, SettingsError
from leanfed.runs.settings import Settings
from leanfed.tasks.cut import layers_of
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.lora import LoraSettings
from leanfed.tasks.models import MODELS, build_model
from leanfed.tasks.task import TaskSettings, build_task
from tests.encoders import tiny_encoder


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    known = set(MODELS), set(DATASETS)
    yield
    for registry, before in zip((MODELS, DATASETS), known, strict=True):
        for name in set(registry) - before:
            registry.remove(name)


def vit(folder: Path, *, weights: bool = True) -> str:
    """A tiny picture transformer of 16x16 colour pixels and three classes."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    config.num_labels = 3
    if weights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            ViTForImageClassification(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    return f"transformers:{folder}"


def texts(folder: Path) -> str:
    """A classifier of texts: an encoder and its tokenizer, as saved without a classifier."""
    return f"transformers:{tiny_encoder(folder, 2)}"


def test_pre_trained_weights_stay_and_the_new_end_follows_the_seed(tmp_path: Path) -> None:
    name = vit(tmp_path / "vit")
    first, again, other = (build_model(name, 5, seed).state_dict() for seed in (1, 1, 2))
    ends = {key for key in first if "classifier" in key}
    assert first["model.classifier.weight"].shape == (5, 16)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert {key for key in first if not torch.equal(first[key], other[key])} == {"model.classifier.weight"} <= ends


def test_a_config_alone_gives_random_weights_by_the_seed(tmp_path: Path) -> None:
    name = vit(tmp_path / "vit", weights=False)
    first, again, other = (build_model(name, 3, seed) for seed in (1, 1, 2))
    vectors = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, again, other)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_pictures_of_any_size_are_brought_to_the_model_s(tmp_path: Path) -> None:
    model = build_model(vit(tmp_path / "vit"), 3, 0).eval()
    grey = torch.rand(2, 1, 16, 16)
    assert torch.equal(model(grey), model(grey.expand(-1, 3, -1, -1)))
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 3)


def test_the_cut_is_found_before_the_classifier(tmp_path: Path) -> None:
    layers, cut = layers_of(vit(tmp_path / "vit"), 3)
    assert cut == "model.vit"
    assert [layer.name for layer in layers if not layer.shared] == ["model.classifier"]


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_run_trains_a_picture_model_whole_or_by_adapters(tmp_path: Path, lora: dict[str, Any] | None) -> None:
    values = {
        "rounds": 1,
        "task": {"model": vit(tmp_path / "vit"), "partition": {"kind": "iid", "clients": 3}, "lora": lora},
        "training": {"batch_size": 4},
        "participation": {"fraction": 0.6},
    }
    run = leanfed.run(Settings.from_values(values))
    assert np.isfinite(run.rounds["train_loss"][0])


def test_a_run_trains_a_text_model_with_its_own_tokens(tmp_path: Path) -> None:
    import polars as pl

    rows = 24
    words = ["the cat sat", "a dog ran home"] * (rows // 2)
    pl.DataFrame({"text": words, "label": [0, 1] * (rows // 2)}).write_parquet(tmp_path / "texts.parquet")
    leanfed.add_parquet("said", tmp_path / "texts.parquet", inputs="text")
    task = {"dataset": "said", "model": texts(tmp_path / "bert"), "partition": {"kind": "iid", "clients": 2}}
    settings = {"rounds": 1, "task": task, "training": {"batch_size": 4}, "algorithm": {"name": "fedper"}}
    assert np.isfinite(leanfed.run(Settings.from_values(settings)).rounds["train_loss"][0])
    built = build_task(TaskSettings.model_validate(task), seed=0)
    assert set(built.split.private) == {"model.classifier.weight", "model.classifier.bias"}
    with pytest.raises(SettingsError, match="brings its own encoder. Leave it out"):
        build_task(TaskSettings.model_validate({**task, "text": {"encoder": "some/other"}}), seed=0)


def test_adapters_fit_any_model_and_only_they_and_the_end_are_trained() -> None:
    def net(classes: int) -> nn.Module:
        trunk = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 8))
        return nn.Sequential(trunk, nn.ReLU(), nn.Linear(8, classes))

    leanfed.add_model("own-net", net)
    plain, adapted = build_model("own-net", 10, 0), build_model("own-net", 10, 0, lora=LoraSettings(rank=2))
    trained = {name for name, values in adapted.named_parameters() if values.requires_grad}
    assert trained == {
        *(f"0.{layer}.lora_{part}.default.weight" for layer in (0, 3) for part in "AB"),
        "2.weight",
        "2.bias",
    }
    pictures = torch.rand(2, 1, 28, 28)
    assert torch.allclose(plain(pictures), adapted(pictures))  # B starts at zero
    assert layers_of("own-net", 10, lora=LoraSettings(rank=2))[1] == "0"
    with pytest.raises(SettingsError, match="no layer 'query' to adapt"):
        build_model("own-net", 10, 0, lora=LoraSettings(targets=("query",)))


def test_what_cannot_be_built_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="'nobody/nothing' is neither on this machine nor reachable on the hub"):
        build_model("transformers:nobody/nothing", 3, 0)
    (tmp_path / "config.json").write_text('{"model_type": "mimi"}')
    with pytest.raises(SettingsError, match="of the family 'mimi', of which transformers makes no classifier"):
        build_model(f"transformers:{tmp_path}", 3, 0)
    with pytest.raises(SettingsError, match="task.lora is not for 'bert-lora'"):
        build_model("bert-lora", 2, 0, lora=LoraSettings())
