"""Fetching, from a real server on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leanfed.errors import DataError
from leanfed.tasks.datasets import HubSource
from leanfed.tasks.hub import data_root, fetch

CONTENT = b"parquet bytes" * 1000
SOURCE = HubSource("owner/set", "config")


class Hub(BaseHTTPRequestHandler):
    """Serves one file whole, cut short, with a wrong checksum, or not at all, by the split's name."""

    def do_GET(self) -> None:
        if "absent" in self.path:
            self.send_error(404)
            return
        assert self.path.startswith("/datasets/owner/set/resolve/main/config/")
        digest = hashlib.sha256(CONTENT).hexdigest() if "wrong" not in self.path else "0" * 64
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.send_header("X-Linked-ETag", f'"{digest}"')
        self.end_headers()
        self.wfile.write(CONTENT[:100] if "short" in self.path else CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_fetched_file_is_whole_and_progress_is_told(hub: str, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    path = fetch("set", SOURCE, "train", tmp_path, lambda done, total: told.append((done, total)))
    assert path == tmp_path / "owner/set/config/train-00000-of-00001.parquet"
    assert path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("wrong", "does not match its checksum"),
        ("short", "after 100 of 13000 bytes|IncompleteRead"),
        ("absent", "Not Found"),
    ],
)
def test_a_bad_download_is_refused_and_leaves_nothing(hub: str, tmp_path: Path, split: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fetch("set", SOURCE, split, tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_no_network_says_where_to_put_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused at once
    with pytest.raises(DataError, match="Cannot fetch the train split of 'set'.*Copy the file to"):
        fetch("set", SOURCE, "train", tmp_path)


def test_the_root_is_the_given_one_then_the_named_one_then_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANFED_DATA", "/named")
    assert data_root(Path("/given")) == Path("/given")
    assert data_root() == Path("/named")
    monkeypatch.delenv("LEANFED_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", "/home/data")
    assert data_root() == Path("/home/data/leanfed")
