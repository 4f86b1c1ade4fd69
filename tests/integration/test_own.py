"""Somebody's own nn.Module and data, from split to run, comparison and report, as docs/own-models.md shows it."""

from __future__ import annotations

import io
import json
import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

import leanfed
from leanfed.errors import DataError, SettingsError, StorageError
from leanfed.files import read_json
from leanfed.tasks.cache import load_samples
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.inventory import fetch_dataset, inventory
from leanfed.tasks.task import TaskSettings, build_task
from leanfed.tasks.user_data import import_file
from tests.integration.conftest import Leanfed
from tests.registries import registered_for_now

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_model.py"
COLOURS = {"blue": (20, 30, 200), "green": (20, 200, 40), "red": (220, 20, 30)}
IMPORTED = """
import leanfed
from torch import nn

leanfed.add_parquet("rows", {file!r}, inputs="picture", label="colour", size=8)
leanfed.add_model("flat", lambda n: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, n)),
                  input_shape=(3, 8, 8), split="1")
"""
SETTINGS = """
rounds = 3
[task]
dataset = "rows"
model = "flat"
[task.partition]
kind = "iid"
clients = 3
"""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with registered_for_now():
        yield


def picture(colour: str, number: int) -> Image.Image:
    noise = np.random.default_rng(number).integers(-20, 20, (20, 24, 3))
    return Image.fromarray(np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8))


def png(colour: str, number: int) -> bytes:
    buffer = io.BytesIO()
    picture(colour, number).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Thirty small pictures of each of three colours."""
    for colour in COLOURS:
        (tmp_path / "pictures" / colour).mkdir(parents=True)
        for number in range(30):
            picture(colour, number).save(tmp_path / "pictures" / colour / f"{number:02d}.png")
    return tmp_path / "pictures"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """The same as a Parquet file with words for labels."""
    colours = [colour for colour in COLOURS for _ in range(30)]
    columns = {"picture": [png(c, i) for i, c in enumerate(colours)], "colour": colours}
    pl.DataFrame(columns).write_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_the_example_goes_from_a_folder_of_pictures_to_a_report(
    leanfed: Leanfed, pictures: Path, tmp_path: Path
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
    runpy.run_path(str(EXAMPLE))["main"](pictures, tmp_path / "runs")
    shown = leanfed("compare", "runs", "--picture", "both.png").stdout
    assert "flpdsp" in shown
    assert "fedavg" in shown
    assert (tmp_path / "both.png").stat().st_size > 10_000
    summary = read_json(tmp_path / "runs/flpdsp/summary.json")
    assert summary["accuracy"] > max(0.9, summary["majority_guess"])
    assert summary["shared_size"] == 8 * 27 + 8 + 16 * 72 + 16  # the two convolutions
    assert summary["private_size"] == 256 * 3 + 3
    written = json.loads(leanfed("report", "runs", "--out", "page.html", "--json").stdout)
    assert (written["runs"], written["flaws"]) == (2, [])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    inside = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert {run["name"]: run["final"]["accuracy"] for run in inside["runs"]} == {
        method: read_json(tmp_path / f"runs/{method}/summary.json")["accuracy"] for method in ("flpdsp", "fedavg")
    }


def test_a_folder_is_read_class_by_class(pictures: Path) -> None:
    spec = leanfed.add_images("mine", pictures, size=8)
    assert (spec.classes, spec.shape, dict(spec.rows)) == (3, (3, 8, 8), {"train": 72, "test": 18})
    train = load_samples("mine", "train")
    assert np.bincount(train.labels).tolist() == [24, 24, 24]
    blue = train.inputs[train.labels == 0].mean((0, 2, 3))
    assert np.allclose(blue, COLOURS["blue"], atol=3)
    scaled = train.inputs / 255
    assert spec.mean == pytest.approx(scaled.mean((0, 2, 3)), abs=1e-4)
    assert spec.deviation == pytest.approx(scaled.std((0, 2, 3)), abs=1e-4)
    assert [row["where"] for row in inventory(names=["mine"])] == [str(pictures)] * 2
    with pytest.raises(DataError, match="nothing to fetch"):
        fetch_dataset("mine")


def test_folders_for_training_and_testing_are_kept_apart(pictures: Path, tmp_path: Path) -> None:
    for name in ("blue", "red"):
        for part in ("train", "test"):
            (tmp_path / "two" / part).mkdir(parents=True, exist_ok=True)
        (pictures / name).rename(tmp_path / "two" / "train" / name)
        (tmp_path / "two" / "test" / name).mkdir()
        picture(name, 99).save(tmp_path / "two" / "test" / name / "one.png")
    spec = leanfed.add_images("two", tmp_path / "two", size=8)
    assert dict(spec.rows) == {"train": 60, "test": 2}
    assert load_samples("two", "test").labels.tolist() == [0, 1]


def test_a_changed_picture_is_read_again(pictures: Path) -> None:
    leanfed.add_images("mine", pictures, size=8)
    before = load_samples("mine", "train").digest()
    picture("green", 77).save(pictures / "blue" / "00.png")
    DATASETS.remove("mine")
    leanfed.add_images("mine", pictures, size=8)
    assert load_samples("mine", "train").digest() != before


def test_a_parquet_file_with_words_for_labels(rows: Path) -> None:
    spec = leanfed.add_parquet("rows", rows, inputs="picture", label="colour", size=8)
    assert dict(spec.rows) == {"train": 72, "test": 18}
    test = load_samples("rows", "test")
    assert np.bincount(test.labels).tolist() == [6, 6, 6]
    assert np.allclose(test.inputs[test.labels == 2].mean((0, 2, 3)), COLOURS["red"], atol=3)


def test_a_parquet_file_of_texts(tmp_path: Path) -> None:
    columns = {"question": [f"is it {i}?" for i in range(20)], "reply": ["yes", "no"] * 10, "label": [1, 0] * 10}
    pl.DataFrame(columns).write_parquet(tmp_path / "texts.parquet")
    spec = leanfed.add_parquet("texts", tmp_path / "texts.parquet", inputs=["question", "reply"])
    assert (spec.shape, spec.classes, dict(spec.rows)) == (None, 2, {"train": 16, "test": 4})
    assert load_samples("texts", "test").texts(0) == ("is it 8?", "yes")
    with pytest.raises(SettingsError, match="takes inputs of shape"):
        build_task(TaskSettings(dataset="texts"), 0)


def test_the_command_line_imports_a_file(leanfed: Leanfed, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(IMPORTED.format(file=str(rows)))
    (tmp_path / "settings.toml").write_text(SETTINGS)
    assert leanfed("run", "settings.toml", "--out", "a").returncode == 2
    with registered_for_now():
        assert leanfed("run", "settings.toml", "--out", "a", "--json", "--import", "mine.py").returncode == 0
    assert '"rounds": 3' in leanfed("resume", "a", "--json", "--import", "mine.py").stdout


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": [b"x"], "label": [0]}, "at least two classes"),
        ({"image": [b"x", b"y"], "label": [0, 1]}, "no column 'picture'"),
        ({"picture": [b"x", b"y"], "label": [0, None]}, "gaps in"),
        ({"picture": [b"x", b"y"], "label": [0, 1]}, "Row 0 of .* not a readable picture"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(tmp_path: Path, columns: dict, message: str) -> None:
    pl.DataFrame(columns).write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=message):
        leanfed.add_parquet("bad", tmp_path / "bad.parquet", inputs="picture")
    assert "bad" not in DATASETS


def test_what_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least two classes, but has none"):
        leanfed.add_images("empty", tmp_path)
    with pytest.raises(StorageError, match="nowhere"):
        leanfed.add_images("none", tmp_path / "nowhere")
    with pytest.raises(StorageError, match="not a file"):
        import_file(tmp_path / "nowhere.py")
