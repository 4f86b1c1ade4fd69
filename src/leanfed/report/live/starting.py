"""Start runs from the page: a form made from the schema of the settings, checked by `leanfed run --dry-run`.

This room never imports training code, so schema and check come from `leanfed` as a process of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from leanfed.errors import InputError, LeanfedError
from leanfed.interpreter import command, environment
from leanfed.records import Section

PATIENCE_S = 300.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,79}")
KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
FIRST = (  # what the form asks for; every other key can be added
    *("name", "algorithm.name", "task.dataset", "task.partition.kind", "task.partition.clients", "rounds", "seed"),
    *("allocation.rule", "allocation.form"),
)
FILES = ("radio.fleet_file", "run.track", "task.table")  # read or written where they say: not for a page to choose
Value = bool | int | float | str | list[float] | list[str]


class RefusedError(LeanfedError):
    """Settings that cannot be run, with the reason beside each key."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = dict(reasons)


class Wanted(Section):
    """What the form sends: a name for the folder and the settings that differ from their defaults."""

    name: str = Field(max_length=80)
    values: dict[str, Value] = Field(max_length=100)


@cache
def form_fields() -> list[dict[str, Any]]:
    """The form's fields: those that it asks for first, then every other key of the settings."""
    ask = command("leanfed.cli", "schema")
    told = subprocess.run(ask, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    schema = json.loads(told.stdout)
    found = {field["key"]: field for field in _leaves("", schema, schema.get("$defs", {}))}
    asked = [{**found[key], "asked": True} for key in FIRST if key in found]
    others = [key for key in sorted(found) if key not in FIRST and not _names_files(key)]
    return asked + [{**found[key], "asked": False} for key in others]


def _names_files(key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in FILES)


def _leaves(prefix: str, node: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A field for every setting below a node of the schema; of a choice of sections, the fields of all of them."""
    node = _resolved(node, known)
    variants = [_resolved(one, known) for one in node.get("anyOf", node.get("oneOf", []))]
    sections = [one for one in variants if "properties" in one] or ([node] if "properties" in node else [])
    if not sections:
        yield _field(prefix, node, [one for one in variants if one.get("type") != "null"])
        return
    names = [one["properties"]["name"] for one in sections if "name" in one["properties"]]
    met = set()
    for section in sections:
        for name, inner in section["properties"].items():
            if name in met:
                continue
            met.add(name)
            key = f"{prefix}.{name}" if prefix else name
            if name == "name" and len(sections) > 1:
                options = [one.get("const", one.get("default")) for one in names]
                yield {"key": key, "kind": "choice", "options": options, "default": None, "about": "Which one."}
            else:
                yield from _leaves(key, inner, known)


def _resolved(node: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference stands for, with what is said beside it."""
    place = node.get("$ref")
    return node if place is None else {**known.get(place.rpartition("/")[2], {}), **node}


def _field(key: str, node: Mapping[str, Any], variants: list[Mapping[str, Any]]) -> dict[str, Any]:
    """One setting as a field: what can be put in, its default and what it means."""
    leaf = {**(variants[0] if variants else {}), **node}
    kinds = {"integer": "integer", "number": "number", "boolean": "boolean"}
    kind = "choice" if "enum" in leaf else kinds.get(str(leaf.get("type")), "text")
    options = leaf.get("enum", [True, False] if kind == "boolean" else [])
    about = " ".join(str(leaf.get("description", "")).split())
    return {"key": key, "kind": kind, "options": options, "default": leaf.get("default"), "about": about}


def checked_settings(root: Path, wanted: Wanted, data_dir: Path | None) -> tuple[Path, Path]:
    """The settings as a file, and the folder of the run; refused where they cannot be run."""
    if not NAME.fullmatch(wanted.name):
        raise RefusedError({"name": "Give a name of letters, digits, spaces, dots and dashes, such as first-run."})
    folder = root / wanted.name
    if folder.exists():
        raise RefusedError({"name": f"There is a run or a folder {wanted.name!r} already; choose another name."})
    for key in wanted.values:
        if not KEY.fullmatch(key):
            raise InputError(f"{key!r} is no key of the settings; write it as section.key.")
        if _names_files(key):
            raise InputError(f"{key} names files, which a page cannot. Write it into a settings file for leanfed run.")
    values = {**wanted.values, "name": wanted.name}
    file = Path(tempfile.mkdtemp(prefix="leanfed-form-")) / "settings.toml"
    try:
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()), encoding="utf-8")
        _try(file, folder, list(values), data_dir)
    except BaseException:
        shutil.rmtree(file.parent)
        raise
    return file, folder


def _try(file: Path, folder: Path, keys: list[str], data_dir: Path | None) -> None:
    """Refuse settings that a dry run refuses."""
    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    try:
        told = subprocess.run(
            command("leanfed.cli", "run", str(file), "--out", str(folder), "--dry-run", "--json", *where),
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(
            {"": f"Checking these settings takes longer than {PATIENCE_S:g} s. Start the run by `leanfed run`."}
        ) from None
    if told.returncode:
        raise RefusedError(_reasons(told.stderr, file, keys))


def _reasons(told: str, file: Path, keys: list[str]) -> dict[str, str]:
    """What the command line said, by the key it is about; what is about none is under the empty key."""
    reasons: dict[str, str] = {}
    for line in told.strip().removeprefix("error: ").splitlines():
        place, _, words = line.removeprefix(str(file)).partition(": ")
        number = place.removeprefix(":")
        key = keys[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(keys) else ""
        text = words if line.startswith(str(file)) else line
        named = next((one for one in keys if text.startswith((f"{one} ", f"{one}:"))), "")
        algorithm = "algorithm.name" if "Unknown algorithm" in text or text.startswith("algorithm needs") else ""
        dataset = "task.dataset" if "data set" in text and "nknown" in text else ""
        found = key or named or algorithm or dataset
        reasons[found] = f"{reasons[found]} {text}" if found in reasons else text
    return reasons or {"": "The settings cannot be run."}
