"""Texts of any kind are read or explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from leanfed.errors import LeanfedError, StorageError
from leanfed.files import parse_json, parse_toml, read_json, read_text


def test_text_is_utf_8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffrate = 1\r\nname = 'ä'\r\n".encode())
    assert read_text(tmp_path / "a") == "rate = 1\nname = 'ä'\n"
    (tmp_path / "b").write_bytes("rate = 1\nname = 'ä'".encode("latin-1"))
    with pytest.raises(StorageError, match=r"b is not UTF-8 text: byte 0xe4 in line 2\. Save it as UTF-8"):
        read_text(tmp_path / "b")
    (tmp_path / "c").write_bytes("rate = 1".encode("utf-16"))
    with pytest.raises(StorageError, match="looks like UTF-16"):
        read_text(tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested more than 64 levels"),
        ("[" * 70 + "]" * 70, "nested more than 64 levels"),
        ("[" + "9" * 5_000 + "]", "it holds a whole number of more than 300 digits"),
        ("[" + "9" * 400 + "]", "a whole number of more than 300 digits"),
        ("{", "Expecting"),
    ],
)
def test_what_no_reader_can_take_is_a_value_error(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    if words != "Expecting":
        with pytest.raises(ValueError, match=words):
            parse_toml(f"a = {text}")
    (tmp_path / "value.json").write_text(text)
    with pytest.raises(StorageError, match=r"value\.json is not valid JSON"):
        read_json(tmp_path / "value.json")


@pytest.mark.parametrize("content", [b"\xff\xfea", b"name = '\xe4'", b"a = " + b"[" * 5_000, b"a = " + b"9" * 5_000])
@pytest.mark.parametrize("name", ["s.toml", "s.json", "p.json", "f.csv"])
def test_files_of_any_bytes_are_explained(tmp_path: Path, name: str, content: bytes) -> None:
    from leanfed.allocation.problem import Problem
    from leanfed.runs.settings import Settings
    from leanfed.wireless.fleet import FleetSettings
    from leanfed.wireless.fleet_file import read_fleet

    readers = {"s": Settings.from_toml, "p": Problem.from_json, "f": lambda path: read_fleet(path, FleetSettings())}
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LeanfedError, match=name):
        readers[name[0]](tmp_path / name)
