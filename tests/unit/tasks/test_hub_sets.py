"""Data sets of the hub: real Parquet files in its layouts, on disk and behind a server that speaks its protocol."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import polars as pl
import pytest
from PIL import Image

import leanfed
from leanfed.errors import DataError, SettingsError
from leanfed.runs.settings import Settings
from leanfed.tasks.cache import load_samples
from leanfed.tasks.datasets import DATASETS, DatasetSpec, HubSource
from leanfed.tasks.hub_files import Address, data_root, hub_files, splits_of
from leanfed.tasks.hub_sets import HUB_SETS, HubSettings, add_hub_set
from leanfed.tasks.inventory import fetch_dataset, inventory
from leanfed.tasks.task import TaskSettings, build_task

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Own caches, no network, and no data set of one test in the next."""
    monkeypatch.setenv("LEANFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LEANFED_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused at once
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    known = set(DATASETS)
    yield
    for name in set(DATASETS) - known:
        DATASETS.remove(name)


def picture(value: int, mode: str = "L", size: int = 6) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new(mode, (size, size), value if mode == "L" else (value, 0, 0)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def digits(users: bool = False, rows: int = 20) -> pl.DataFrame:
    columns: dict[str, Any] = {"image": [picture(5 * n) for n in range(rows)], "label": [n % 2 for n in range(rows)]}
    return pl.DataFrame({**columns, **({"writer_id": [f"w{n % 4}" for n in range(rows)]} if users else {})})


def place(root: Path, file: str, table: pl.DataFrame) -> Path:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    table.write_parquet(path)
    return path


def test_pictures_are_read_from_the_root_in_shards(tmp_path: Path) -> None:
    for shard in range(2):
        place(tmp_path / "root", f"some/digits/data/train-0000{shard}-of-00002.parquet", digits())
    place(tmp_path / "root", "some/digits/data/test-00000-of-00001.parquet", digits(rows=6))
    task = build_task(TaskSettings.model_validate(TASK | {"dataset": "hub:some/digits"}), seed=0)
    spec = DATASETS["hub:some/digits"]
    assert (spec.shape, spec.classes, dict(spec.rows)) == ((1, 6, 6), 2, {"train": 40, "test": 6})
    assert load_samples("hub:some/digits", "train").inputs[[1, 21], 0, 0, 0].tolist() == [5, 5]
    assert task.clients == 2


TASK = {"model": "lenet5", "partition": {"kind": "iid", "clients": 2}}


def test_users_are_found_and_a_run_learns_on_them(tmp_path: Path) -> None:
    place(tmp_path / "root", "some/femnist/data/train-00000-of-00001.parquet", digits(users=True, rows=40))
    settings = Settings.from_values(
        {
            "rounds": 1,
            "task": {
                "dataset": "hub:some/femnist",
                "model": "lenet5",
                "partition": {"kind": "column", "min_samples": 4},
            },
            "algorithm": {"name": "fedper"},
            "training": {"batch_size": 4},
        }
    )
    assert leanfed.run(settings).summary["clients"] == 4
    assert DATASETS["hub:some/femnist"].users == ("w0", "w1", "w2", "w3")


def test_numbers_texts_and_characters_have_their_forms(tmp_path: Path) -> None:
    root = tmp_path / "root"
    series = pl.DataFrame({"features": [[float(n), 1.0, 2.0] for n in range(20)], "labels": [n % 3 for n in range(20)]})
    place(root, "some/har/train.parquet", series.with_columns(pl.Series("subject id", [n % 2 for n in range(20)])))
    add_hub_set("hub:some/har")
    spec = DATASETS["hub:some/har"]
    assert (spec.shape, spec.classes, spec.users, spec.arrays) == ((3,), 3, ("0", "1"), True)
    reviews = pl.DataFrame({"text": [f"words {n}" for n in range(10)], "label": [n % 2 for n in range(10)]})
    place(root, "some/reviews/data/train-00000-of-00001.parquet", reviews)
    add_hub_set("hub:some/reviews")
    assert load_samples("hub:some/reviews", "train").texts(0) == ("words 0",)
    place(
        root, "some/play/default/train/0000.parquet", pl.DataFrame({"x": ["abca", "cabb"] * 10, "y": ["a", "b"] * 10})
    )
    add_hub_set("hub:some/play", HubSettings(texts="characters"))
    assert load_samples("hub:some/play", "train").inputs[:2].tolist() == [[0, 1, 2, 0], [2, 0, 1, 1]]


def test_a_configuration_is_named_where_there_are_several(tmp_path: Path) -> None:
    for config in ("mrpc", "cola"):
        place(tmp_path / "root", f"some/glue/{config}/train-00000-of-00001.parquet", digits())
    assert list(hub_files("hub:some/glue/cola")) == ["train"]
    with pytest.raises(DataError, match="2 configurations: known: cola, mrpc. Name one: hub:some/glue/CONFIGURATION"):
        hub_files("hub:some/glue")
    with pytest.raises(DataError, match="no configuration 'colla': did you mean 'cola'"):
        hub_files("hub:some/glue/colla")


def test_a_revision_has_a_folder_of_its_own(tmp_path: Path) -> None:
    place(tmp_path / "root", "some/set@v2/data/train-00000-of-00001.parquet", digits())
    (file,) = hub_files("hub:some/set@v2")["train"]
    assert "some/set@v2" in file.as_posix()
    with pytest.raises(DataError, match="'hub:some/set' is neither in"):
        hub_files("hub:some/set")


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train-00000-of-00001.parquet"], {"train": 1}),
        (["data/train/0000.parquet", "data/train/0001.parquet", "data/test/0000.parquet"], {"train": 2, "test": 1}),
        (["default/validation/0000.parquet"], {"validation": 1}),
        (["train.parquet", "test.parquet"], {"train": 1, "test": 1}),
    ],
)
def test_splits_are_read_off_the_hub_s_layouts(files: list[str], splits: dict[str, int]) -> None:
    assert {name: len(parts) for name, parts in splits_of(files, Address("a/b")).items()} == splits


def test_names_and_columns_that_do_not_fit_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not an address on the hub. Write hub:owner/name"):
        add_hub_set("hub:nobody")
    with pytest.raises(DataError, match=r"neither in .* nor in the hub's cache.*Check the name and the network"):
        add_hub_set("hub:nobody/nothing")
    place(tmp_path / "root", "some/odd/train.parquet", pl.DataFrame({"a": [1.0], "b": [2.0]}))
    with pytest.raises(DataError, match="which column to predict; it has a, b. Set task.hub.label"):
        add_hub_set("hub:some/odd")
    with pytest.raises(DataError, match="no split 'dev'; it has train. Set task.hub.test"):
        add_hub_set("hub:some/odd", HubSettings(test="dev"))
    with pytest.raises(SettingsError, match="task.hub is for data sets of the hub, but 'mnist-5k' is none"):
        build_task(TaskSettings.model_validate({"hub": {"label": "y"}}), seed=0)


@pytest.mark.parametrize("name", HUB_SETS)
def test_known_names_read_the_columns_that_the_hub_has(name: str, tmp_path: Path) -> None:
    known, rows = HUB_SETS[name], 24
    tables = {
        "femnist": {"image": [picture(n, size=28) for n in range(rows)], "hsf_id": [0] * rows},
        "shakespeare": {"x": ["thou art"] * rows},
        "uci-har": {"features": [[0.5] * 561] * rows},
    }
    label = ["a", "b"] * (rows // 2) if name == "shakespeare" else [0, 1] * (rows // 2)
    users = {known.settings.client: [f"u{n // 2 % 3}" for n in range(rows)], known.settings.label: label}
    for split in known.rows:
        place(
            tmp_path / "root",
            f"{Address.parse(known.address).folder}/{split}.parquet",
            pl.DataFrame(tables[name] | users),
        )
    add_hub_set(name)
    assert DATASETS[name].users == ("u0", "u1", "u2")
    assert len(load_samples(name, "train")) + len(load_samples(name, "test")) == rows * len(known.rows)


class Served(BaseHTTPRequestHandler):
    """The hub's listing of a set's files, and the files; `asked` counts the requests."""

    files: ClassVar[dict[str, dict[str, bytes]]] = {}  # revision -> path -> content
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"{self.headers.get('Authorization', '')} {path}")
        for revision, files in self.files.items():
            if path == "/api/datasets/some/far" + ("" if revision == "main" else f"/revision/{revision}"):
                told = {"id": "some/far", "siblings": [{"rfilename": file} for file in files]}
                return self._send(json.dumps(told).encode(), "application/json", body)
            for file, content in files.items():
                if path == f"/datasets/some/far/resolve/{revision}/{file}":
                    return self._send(content, "application/octet-stream", body)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _send(self, content: bytes, kind: str, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, dict[str, bytes]]], list[str]]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")

    def serve(files: dict[str, dict[str, bytes]]) -> list[str]:
        monkeypatch.setattr(Served, "files", files)
        monkeypatch.setattr(Served, "asked", [])
        return Served.asked

    yield serve
    server.shutdown()
    thread.join()
    server.server_close()


def encoded(table: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    table.write_parquet(file)
    return file.getvalue()


@pytest.mark.parametrize("revision", ["main", "refs/convert/parquet"])
def test_files_come_from_a_mirror_with_the_token_and_are_kept(
    served: Any, revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the set itself is a CSV, and only the hub's converted copy has Parquet files."""
    files = {"main": {"far.csv": b"x,y"}} | {revision: {"default/train/0000.parquet": encoded(digits(users=True))}}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    asked = served(files)
    add_hub_set("hub:some/far")
    assert len(load_samples("hub:some/far", "train")) == 16
    assert all(request.startswith("Bearer hf_secret") for request in asked)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # from now on without a network
    (kept,) = hub_files("hub:some/far")["train"]
    assert kept.read_bytes() == files[revision]["default/train/0000.parquet"]


def test_the_inventory_shows_and_fetches_them(served: Any) -> None:
    served({"main": {"data/train-00000-of-00001.parquet": encoded(digits())}})
    assert [row["here"] for row in inventory(names=["hub:some/far"])] == ["no"]
    fetch_dataset("hub:some/far")
    rows = inventory(names=["hub:some/far", "uci-har"])
    assert [(row["dataset"], row["split"], row["here"]) for row in rows] == [
        ("hub:some/far", "train", "yes"),
        ("uci-har", "train", "no"),
        ("uci-har", "test", "no"),
    ]
    assert rows[1]["where"] == "hub:codymlewis/HAR"


@pytest.fixture
def known() -> DatasetSpec:
    """A data set by name whose files the served hub has in two shards; `fresh` forgets it."""
    spec = replace(
        DATASETS["mnist"], source=HubSource("some/far", "grey"), shape=(1, 6, 6), rows={"train": 40, "test": 20}
    )
    return DATASETS.add("far-digits", spec)


def test_known_sets_come_through_the_same_reader(served: Any, known: DatasetSpec, tmp_path: Path) -> None:
    shards = {f"grey/train-0000{n}-of-00002.parquet": encoded(digits()) for n in range(2)}
    served({"main": {**shards, "grey/test-00000-of-00001.parquet": encoded(digits()), "other/train.parquet": b"no"}})
    assert [(row["here"], row["where"]) for row in inventory(names=["far-digits"])] == [("no", "hub:some/far/grey")] * 2
    fetch_dataset("far-digits")
    assert [row["here"] for row in inventory(names=["far-digits"])] == ["yes"] * 2
    assert load_samples("far-digits", "train").inputs[[1, 21], 0, 0, 0].tolist() == [5, 5]
    place(tmp_path / "root", "some/far/grey/train-00000-of-00001.parquet", digits(rows=4))
    assert len(load_samples("far-digits", "train")) == 4  # the folder of data sets comes first


def test_a_known_set_that_is_nowhere_says_where_it_would_be(known: DatasetSpec, tmp_path: Path) -> None:
    place = str(tmp_path / "root/some/far/grey/train-00000-of-00001.parquet")
    with pytest.raises(
        DataError, match=r"train split of 'far-digits' is missing.*leanfed data --fetch far-digits"
    ) as told:
        load_samples("far-digits", "train")
    assert place in str(told.value)


def test_the_root_is_the_given_one_then_the_named_one_then_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANFED_DATA", "/named")
    assert data_root(Path("/given")) == Path("/given")
    assert data_root() == Path("/named")
    monkeypatch.delenv("LEANFED_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", "/home/data")
    assert data_root() == Path("/home/data/leanfed")


def test_a_name_that_the_hub_does_not_know_is_said_to_be_unknown(served: Any) -> None:
    served({})
    with pytest.raises(DataError, match=r"'hub:some/other' is neither in .* \(.*\). Check the name"):
        hub_files("hub:some/other")


def test_the_inventory_says_which_files_are_damaged_even_where_polars_panics(tmp_path: Path) -> None:
    """Of this table polars 2.1 panics over the byte 492; every damaged byte is a row of the table, no end of it."""
    whole = encoded(pl.DataFrame({"x": [1.0, 2.0], "label": [0, 1]}))
    file = tmp_path / "root" / "some" / "near" / "train.parquet"
    file.parent.mkdir(parents=True)
    seen = set()
    for place in range(480, 500):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        (row,) = inventory(tmp_path / "root", ["hub:some/near"])
        seen.add(row["here"].partition(":")[0])
    assert "damaged" in seen
    assert seen <= {"damaged", "yes"}
