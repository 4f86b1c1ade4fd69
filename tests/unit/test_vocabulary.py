"""Streams, files, locks, registries."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from leanfed.errors import BusyError, SettingsError, StorageError, nearest
from leanfed.files import make_folder, read_json, sha256_of, write_atomically, write_json, write_new, write_text
from leanfed.locks import folder_lock
from leanfed.records import kept_count
from leanfed.registry import Registry
from leanfed.streams import stream


def test_a_stream_depends_on_the_seed_and_on_every_label() -> None:
    draws = {
        stream(*labels).integers(2**60)
        for labels in [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a", "1"), (0, "a")]
    }
    assert len(draws) == 6


def test_a_stream_can_be_replayed() -> None:
    assert np.array_equal(stream(7, "batch", 3, 2).random(5), stream(7, "batch", 3, 2).random(5))


def test_nearest_names_the_close_word_or_all() -> None:
    assert nearest("datset", ["dataset", "model"]) == "did you mean 'dataset'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b."


def test_a_registry_refuses_an_unknown_name_with_the_nearest() -> None:
    registry: Registry[int] = Registry("toy")
    registry.add("lenet5", 1)
    with pytest.raises(SettingsError, match="Unknown toy 'lenet': did you mean 'lenet5'"):
        registry["lenet"]
    with pytest.raises(SettingsError, match="registered already"):
        registry.add("lenet5", 2)
    with pytest.raises(SettingsError, match="cannot be called ''"):
        registry.add("", 2)


@pytest.mark.parametrize(
    ("rate", "size", "count"),
    [(0.1, 50_690, 5_069), (0.07, 100, 7), (1.0, 7, 7), (0.0, 7, 0), (0.99, 7, 6), (1e-6, 7, 0)],
)
def test_kept_count_rounds_down_but_forgives_binary_fractions(rate: float, size: int, count: int) -> None:
    assert kept_count(rate, size) == count


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"value": 1})

    def fail(partial: Path) -> None:
        partial.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left on device.*Free some space"):
        write_atomically(target, fail)
    assert read_json(target) == {"value": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_disk_that_takes_no_more_is_explained(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match="Cannot write"):
            write_text(tmp_path / "large.txt", "x" * 10_000)
        with pytest.raises(StorageError, match="Cannot write"):
            write_new(tmp_path / "large.bin", [b"x" * 10_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_is_written_piece_by_piece_and_known_by_its_digest(tmp_path: Path) -> None:
    digest = write_new(tmp_path / "new.bin", iter([b"one", memoryview(b"two")]))
    assert (tmp_path / "new.bin").read_bytes() == b"onetwo"
    assert digest == sha256_of(tmp_path / "new.bin")


def test_a_read_only_folder_is_explained(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    was_root = os.geteuid() == 0
    if was_root:  # root may write anywhere, so step down for a moment
        os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            make_folder(locked / "run")
    finally:
        if was_root:
            os.seteuid(0)


def test_damaged_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(StorageError, match=r"a\.json is not valid JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(StorageError, match="not an object"):
        read_json(tmp_path / "b.json")


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    # flock belongs to the open file, so a second opening in this process stands for a second process.
    with (
        folder_lock(tmp_path),
        pytest.raises(BusyError, match=f"in use by process {os.getpid()}"),
        folder_lock(tmp_path),
    ):
        pass
    with folder_lock(tmp_path):
        pass
