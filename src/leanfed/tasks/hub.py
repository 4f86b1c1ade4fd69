"""Local data files, and downloads of missing ones from the hub."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from leanfed.errors import DataError
from leanfed.files import make_folder, sha256_of, write_atomically
from leanfed.tasks.datasets import HubSource

CHUNK_BYTES = 1 << 20
Progress = Callable[[int, int | None], None]  # (bytes so far, total if known)


def data_root(given: Path | None = None) -> Path:
    """The folder of data sets: as given, else LEANFED_DATA, else the user's own data folder."""
    if given is not None:
        return given
    if named := os.environ.get("LEANFED_DATA"):
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "leanfed"


def hub_url(source: HubSource, split: str) -> str:
    """The address of one Parquet file; HF_ENDPOINT names a mirror."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    inside = source.path(split).removeprefix(f"{source.repository}/")
    return f"{endpoint}/datasets/{source.repository}/resolve/main/{inside}"


def locate(name: str, source: HubSource, split: str, root: Path) -> Path:
    """The local file of a split; if it is missing, the error says where it was expected and how to get it."""
    path = root / source.path(split)
    if not path.is_file():
        raise DataError(
            f"The {split} split of {name!r} is missing: looked for {path}. "
            f"Run `leanfed data --fetch {name} --data-dir {root}` where there is a network, "
            "or set LEANFED_DATA (or --data-dir) to a folder that holds it."
        )
    return path


def fetch(name: str, source: HubSource, split: str, root: Path, progress: Progress = lambda done, total: None) -> Path:
    """Download one split into the root; a file with a wrong length or checksum is not kept."""
    path = root / source.path(split)
    make_folder(path.parent)
    url = hub_url(source, split)
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            write_atomically(path, lambda partial: _download(reply, partial, url, progress))
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"Cannot fetch the {split} split of {name!r} from {url}: {reason}. "
            f"Copy the file to {path} by other means, or try again where there is a network."
        ) from error
    return path


def _download(reply: IO[bytes], partial: Path, url: str, progress: Progress) -> None:
    """Stream a reply into a file and check its length and, if the hub gives it, its SHA-256."""
    headers = reply.headers  # type: ignore[attr-defined]
    total = int(headers["Content-Length"]) if headers["Content-Length"] else None
    done = 0
    with partial.open("wb") as file:
        while chunk := reply.read(CHUNK_BYTES):
            file.write(chunk)
            done += len(chunk)
            progress(done, total)
    if total is not None and done != total:
        raise DataError(f"{url} ended after {done} of {total} bytes. Try again; nothing was kept.")
    # The hub puts the SHA-256 of large files into this header; other files carry a 40-digit git hash there.
    stated = (headers["X-Linked-ETag"] or "").strip('"')
    if len(stated) == 64 and stated != sha256_of(partial):
        raise DataError(f"{url} does not match its checksum {stated}. Try again; nothing was kept.")
