"""The loader: rows of the registry, decoded once, checked always."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from leanfed.errors import DataError
from leanfed.tasks import cache
from leanfed.tasks.cache import load_samples
from leanfed.tasks.datasets import DATASETS, DatasetSpec, HubSource
from leanfed.tasks.inventory import inventory
from leanfed.tasks.task import changed

SPEC = DatasetSpec(
    source=HubSource("toy/grey", "plain"),
    columns=("image",),
    classes=3,
    rows={"train": 4, "test": 4},
    shape=(1, 2, 3),
    mean=(0.5,),
    deviation=(0.5,),
)
TEXTS = DatasetSpec(source=HubSource("toy/texts", "plain"), columns=("a", "b"), classes=2, rows={"train": 2})
PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)


def encode(picture: np.ndarray) -> dict[str, bytes | None]:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data root with one toy data set of four pictures, and an empty cache."""
    monkeypatch.setenv("LEANFED_CACHE", str(tmp_path / "cache"))
    DATASETS.add("toy", SPEC)
    DATASETS.add("toy-texts", TEXTS)
    folder = tmp_path / "data"
    write(folder / SPEC.source.path("train"), {"image": [encode(p) for p in PIXELS], "label": [0, 1, 2, 0]})
    yield folder
    DATASETS.remove("toy")
    DATASETS.remove("toy-texts")


def write(path: Path, columns: dict[str, list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_parquet(path)


def test_pictures_come_out_as_they_went_in(root: Path) -> None:
    samples = load_samples("toy", "train", root)
    assert np.array_equal(samples.inputs[:, 0], PIXELS)
    assert samples.labels.tolist() == [0, 1, 2, 0]


def test_a_split_is_decoded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_samples("toy", "train", root)
    monkeypatch.setattr(cache, "decode_parquet", lambda *_: pytest.fail("decoded again"))
    again = load_samples("toy", "train", root)
    assert isinstance(again.inputs, np.memmap)
    assert again.digest() == first.digest()


def test_a_damaged_cache_is_made_again(root: Path) -> None:
    load_samples("toy", "train", root)
    file = next(cache.cache_root().glob("toy-train-*/inputs.npy"))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert np.array_equal(load_samples("toy", "train", root).inputs[:, 0], PIXELS)


def test_a_changed_file_is_not_served_from_the_cache(root: Path) -> None:
    load_samples("toy", "train", root)
    write(root / SPEC.source.path("train"), {"image": [encode(p) for p in PIXELS[::-1]], "label": [0, 2, 1, 0]})
    assert np.array_equal(load_samples("toy", "train", root).inputs[:, 0], PIXELS[::-1])


def test_texts_survive_the_cache(root: Path) -> None:
    write(root / TEXTS.source.path("train"), {"a": ["grüß", ""], "b": ["one", "two"], "label": [1, 0]})
    for _ in range(2):  # decoded, then from the cache
        samples = load_samples("toy-texts", "train", root)
        assert [samples.texts(row) for row in range(2)] == [("grüß", "one"), ("", "two")]


def test_a_missing_file_says_what_where_and_how(root: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_samples("toy", "test", root)
    message = str(caught.value)
    assert "test split of 'toy' is missing" in message
    assert str(root / "toy/grey/plain/test-00000-of-00001.parquet") in message
    assert "leanfed data --fetch toy" in message


def test_an_unknown_split_is_refused(root: Path) -> None:
    with pytest.raises(DataError, match="no split 'validation'; it has train, test"):
        load_samples("toy", "validation", root)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_parquet_file_is_refused_and_nothing_is_cached(root: Path, keep: float) -> None:
    file = root / SPEC.source.path("train")
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DataError, match="not a readable Parquet file.*Fetch it again"):
        load_samples("toy", "train", root)
    assert not list(cache.cache_root().glob("toy*"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [encode(PIXELS[0])], "tag": [0]}, "no column 'label'; it has image, tag"),
        ({"image": [encode(PIXELS[0])], "label": [3]}, "labels from 0 to 2"),
        ({"image": [encode(np.zeros((3, 3), np.uint8))], "label": [0]}, "Row 0 .* is 3x3 pixels, not 3x2"),
        ({"image": [{"bytes": b"nonsense", "path": None}], "label": [0]}, "Row 0 .* not a readable picture"),
    ],
)
def test_wrong_content_is_refused(root: Path, columns: dict[str, list[object]], message: str) -> None:
    write(root / SPEC.source.path("train"), columns)
    with pytest.raises(DataError, match=message):
        load_samples("toy", "train", root)


def test_the_inventory_tells_what_is_here_and_where_the_rest_would_come_from(root: Path) -> None:
    rows = {(row["dataset"], row["split"]): row for row in inventory(root, ["toy"], verify=True)}
    assert rows["toy", "train"]["here"] == "all readable"
    assert rows["toy", "test"]["here"] == "no"
    assert rows["toy", "test"]["where"] == "hub:toy/grey/plain"


def test_the_inventory_names_a_damaged_file(root: Path) -> None:
    (root / SPEC.source.path("train")).write_bytes(b"PAR1")
    assert inventory(root, ["toy"], verify=True)[0]["here"].startswith("damaged:")


def test_the_embedded_digits_are_verified() -> None:
    assert [row["here"] for row in inventory(names=["mnist-5k"], verify=True)] == ["verified"] * 2


def test_embedded_digits_are_four_hundred_and_one_hundred_of_each() -> None:
    for split, each in [("train", 400), ("test", 100)]:
        samples = load_samples("mnist-5k", split)
        assert np.bincount(samples.labels).tolist() == [each] * 10
        assert samples.digest() == DATASETS["mnist-5k"].digests[split]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "split"),
    [
        pytest.param("mnist", "train", marks=pytest.mark.slow),  # sixty thousand pictures
        *[("mnist", "test"), ("mrpc", "train"), ("svhn", "test")],
    ],
)
def test_real_data_decodes_to_the_published_content(real_data: Path, name: str, split: str) -> None:
    samples = load_samples(name, split, real_data)
    if name != "svhn":  # a subset is served for tests
        assert samples.digest() == DATASETS[name].digests[split]
        assert len(samples) == DATASETS[name].rows[split]
    assert samples.labels.max() == DATASETS[name].classes - 1


def test_a_crop_shifts_by_at_most_four_pixels_and_a_flip_mirrors() -> None:
    picture = np.arange(1, 65, dtype=np.uint8).reshape(1, 1, 8, 8)
    for seed in range(20):
        cropped = changed(picture, ("crop",), np.random.default_rng(seed))[0, 0]
        framed = np.pad(picture[0, 0], 4)
        windows = [framed[y : y + 8, x : x + 8] for y in range(9) for x in range(9)]
        assert any(np.array_equal(cropped, window) for window in windows)
    flips = [changed(picture, ("flip",), np.random.default_rng(seed)) for seed in range(20)]
    mirrored = [np.array_equal(flip, picture[..., ::-1]) for flip in flips]
    assert all(m or np.array_equal(flip, picture) for m, flip in zip(mirrored, flips, strict=True))
    assert 0 < sum(mirrored) < 20
    assert np.array_equal(changed(picture, (), np.random.default_rng(0)), picture)
