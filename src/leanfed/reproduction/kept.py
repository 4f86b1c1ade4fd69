"""Finished runs as they are kept beside the results: one small file for each, results/runs/NAME-DIGEST.zip.

A file holds what entries measure of a run folder: settings, environment, summary, rounds and the seconds they took.
With these files results are judged, and seeds added, on a machine that trained none of the runs.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from leanfed.errors import StorageError
from leanfed.files import explained, make_folder, read_json, write_atomically, write_bytes
from leanfed.reproduction.library import kept_settings, run_name
from leanfed.results import RunFolder

PLACE: Final = "runs"  # below the results
# Columns of the rounds that no entry measures, and fields of the environment that are about one machine.
UNMEASURED: Final = ("train_loss", "samples", "entries", "exact_bits", "paper_bits", "coded_bits", "download_bits")
OF_ONE_MACHINE: Final = ("platform", "command")
FILES: Final = (
    "settings.json",
    "environment.json",
    "events.jsonl",
    "rounds.parquet",
    "summary.json",
)  # the last ends it
MOST_BYTES: Final = 64 << 20  # of one of them
MOMENT: Final = (1980, 1, 1, 0, 0, 0)  # of every file inside, so that equal runs are equal bytes


def keep(folder: RunFolder, place: Path) -> None:
    """Write the kept form of a finished run, unless it is there or the run is an older version's."""
    if (place / f"{folder.path.name}.zip").is_file():  # it was unpacked from there; a newer setting would rename it
        return
    settings = kept_settings(folder)
    if settings is None or (path := place / f"{run_name(settings)}.zip").is_file():
        return
    make_folder(place)

    def write(partial: Path) -> None:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            for inside, content in _contents(folder):
                file.writestr(zipfile.ZipInfo(inside, MOMENT), content, zipfile.ZIP_DEFLATED)

    write_atomically(path, write)


def _contents(folder: RunFolder) -> Iterator[tuple[str, bytes]]:
    environment = read_json(folder.environment) if folder.environment.is_file() else {}
    summary = {name: value for name, value in read_json(folder.summary).items() if name != "sha256"}
    rounds = folder.read_table("rounds")
    table = io.BytesIO()
    rounds.drop(UNMEASURED, strict=False).write_parquet(table, compression_level=12, statistics=False)
    took = [
        {"event": "round", "round": event["round"], "seconds": {"total": event["seconds"]["total"]}}
        for event in folder.read_events()
        if event["event"] == "round"
    ]
    yield "settings.json", _json(folder.read_settings())
    yield "environment.json", _json({k: v for k, v in environment.items() if k not in OF_ONE_MACHINE})
    yield "events.jsonl", "".join(json.dumps(event) + "\n" for event in took).encode()
    yield "rounds.parquet", table.getvalue()
    yield "summary.json", _json(summary)


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, allow_nan=False).encode()


def unpack(place: Path, into: Path) -> None:
    """Make run folders of all kept runs that have none there yet; an empty or missing place holds none."""
    for path in sorted(place.glob("*.zip")) if place.is_dir() else ():
        folder = RunFolder(into / path.stem)
        if not folder.finished:
            _unpack(path, make_folder(folder.path))


def _unpack(path: Path, folder: Path) -> None:
    damaged = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, NotImplementedError, RuntimeError)
    try:
        with explained(path, "read"), zipfile.ZipFile(path) as file:
            for name in FILES:
                write_bytes(folder / name, _read(file, name))
    except damaged as error:
        advice = "Restore it, or remove it to train the run anew."
        raise StorageError(f"{path} is no kept run ({error}). {advice}") from error


def _read(file: zipfile.ZipFile, name: str) -> bytes:
    if file.getinfo(name).file_size > MOST_BYTES:
        raise ValueError(f"{name} is larger than {MOST_BYTES} bytes")
    return file.read(name)
