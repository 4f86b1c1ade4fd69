"""What reads bytes from elsewhere: codec frames, manifests, fleet files and the messages of a fleet.

For each of them: how whole bytes are made, how they are changed, and what reads them. Sums are made anew after a
change, most of the time: else everything would be refused by its sum, and what comes after it never be tried.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from leanfed.compression.codec import decode, encode, encode_bits, encode_mask
from leanfed.compression.frame import CHECKSUM_BYTES, FrameError
from leanfed.compression.values import rounded
from leanfed.manifest import newest_manifest, read_manifest, sealed
from leanfed.rounds.wire import from_frame
from leanfed.wireless.fleet import FleetSettings, SampledFleet
from leanfed.wireless.fleet_file import read_fleet, write_fleet
from tests.chaos.damage import damaged, damaged_json
from tests.chaos.generated import WRONG

LARGEST = 100_000  # entries of a frame that is asked for
FIELDS = ((5, "<B"), (6, "<B"), (8, "<I"), (12, "<I"), (16, "<I"), (20, "<Q"))  # of a frame's header
WORDS = ("", "nan", "inf", "-inf", "-0", "1e400", "5e-324", "9" * 400, "0x10", "true", "null", '"', "\x00", "☃", "1,5")
MANIFEST = {
    "round": 2,
    "fingerprint": "ab",
    "server": "state-000002.safetensors",
    "clients": {"state-000002.safetensors": [0, 1]},
    "rows": ["rows-000002.safetensors"],
    "sha256": {"state-000002.safetensors": "0" * 64, "rows-000002.safetensors": "1" * 64},
    "extra": {},
}


@dataclass(frozen=True)
class Reader:
    """Where bytes come from and where they go to."""

    suffix: str
    fresh: Callable[[random.Random, Path], bytes]
    changed: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], None]
    """Takes the file, or refuses it by an error of ours."""


def fresh_frame(chance: random.Random, folder: Path) -> bytes:
    """Values of some type at some positions, a mask, or bits."""
    size = chance.choice((1, 8, 300, chance.randint(1, 3_000)))
    rng = np.random.default_rng(chance.randrange(2**32))
    flags = rng.random(size) < chance.choice((0.0, 0.02, 0.2, 0.9, 1.0))
    places = np.flatnonzero(flags)
    kind = chance.choice(("mask", "bits", "float32", "float16", "bfloat16", "log8", "log4", "sign"))
    if kind == "mask":
        return encode_mask(flags)
    if kind == "bits":
        return encode_bits(size, places, rng.random(len(places)) < 0.5)
    values, scale = rounded(rng.standard_normal(len(places)).astype(np.float32), kind, rng)
    return encode(size, places, values, kind, scale)


def changed_frame(content: bytes, chance: random.Random) -> bytes:
    """Bytes or a field of the header changed; the checksum fits again, most of the time."""
    if chance.random() < 0.2:
        return damaged(content, chance)
    body = bytearray(content[:-CHECKSUM_BYTES])
    place, layout = chance.choice(FIELDS)
    if chance.random() < 0.6 and len(body) >= place + struct.calcsize(layout):
        (before,) = struct.unpack_from(layout, body, place)
        chosen = chance.choice((0, 1, 2, 3, before - 1, before + 1, 2**16, 2**31 - 1, 2**32 - 1, 2**64 - 1))
        struct.pack_into(layout, body, place, chosen % 256 ** struct.calcsize(layout))
    else:
        body = bytearray(damaged(bytes(body), chance))
    return bytes(body) + hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()


def read_frame(file: Path) -> None:
    """By everything that reads frames; it is refused if all of them refuse it."""
    frame, refusals = file.read_bytes(), []
    for mask in (False, True):
        try:
            from_frame(frame, max_size=LARGEST, mask=mask)
        except FrameError as error:
            refusals.append(error)
    with suppress(FrameError):
        decode(frame, max_size=LARGEST).dense()
    if len(refusals) == 2:
        raise refusals[0]


def changed_manifest(content: bytes, chance: random.Random) -> bytes:
    """Bytes or a value changed; where it is still a table, the digest fits again, most of the time."""
    if chance.random() < 0.3:
        return damaged(content, chance)
    with suppress(ValueError, TypeError, AttributeError, RecursionError):  # of a corpus that is no table
        changed = damaged_json(content, chance)
        if chance.random() < 0.3:
            return changed
        said = json.loads(changed)
        said.pop("digest", None)
        return json.dumps({**sealed(said), **({"format": said["format"]} if "format" in said else {})}).encode()
    return damaged(content, chance)


def read_manifests(file: Path) -> None:
    """As a checkpoint's own, and as a folder's newest."""
    file = file.rename(file.with_name("manifest.json"))
    try:
        newest_manifest(file.parent)
        read_manifest(file)
    finally:
        file.unlink()


def fresh_fleet(suffix: str) -> Callable[[random.Random, Path], bytes]:
    """Two rounds of three devices."""

    def fresh(chance: random.Random, folder: Path) -> bytes:
        file = folder / f"fresh{suffix}"
        write_fleet(file, [SampledFleet(FleetSettings(devices=3), seed=1).state(number) for number in range(2)])
        return file.read_bytes()

    return fresh


def changed_csv(content: bytes, chance: random.Random) -> bytes:
    """A field, a row or some bytes changed."""
    rows = content.decode(errors="replace").split("\n")
    if chance.random() < 0.4 or len(rows) < 2:
        return damaged(content, chance)
    place = chance.randrange(len(rows))
    fields = rows[place].split(",")
    if chance.random() < 0.8:
        fields[chance.randrange(len(fields))] = chance.choice((*WORDS, *map(str, WRONG)))
        rows[place] = ",".join(fields)
    else:
        rows[place:place] = [rows[place]] * chance.choice((1, 2, 50))
    return "\n".join(rows).encode()


def changed_parquet(content: bytes, chance: random.Random) -> bytes:
    """Bytes changed, or a column of another type, with an empty field, or gone."""
    try:
        table = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return damaged(content, chance)
    if chance.random() < 0.4 or not table.width or not table.height:
        return damaged(content, chance)
    name = chance.choice(table.columns)
    kinds: tuple[Any, ...] = (
        *([None], [[1.0]], [{"x": 1}], [b"\xff"], ["ab"], [True], [float("nan")], [float("inf")], [-1], [2**62]),
        *([1e300], [""], [[]]),
    )
    chosen = chance.choice(kinds) * table.height
    table = table.with_columns(pl.Series(name, chosen)) if chance.random() < 0.9 else table.drop(name)
    table.write_parquet(made := io.BytesIO())
    return made.getvalue()


def read_fleet_file(file: Path) -> None:
    """As a run of three clients does."""
    read_fleet(file, FleetSettings(devices=3), clients=3).state(1)


def fresh_message(chance: random.Random, folder: Path) -> bytes:
    """An order, a hello, an answer or a base, as JSON with bytes in hexadecimal."""
    names = {"run": "a", "token": "b", "round": 1, "client": 0}
    times = {"ready_s": 0.1, "train_s": 1.5, "test_s": 0.0, "sent_at": 1e9}
    frame = {"hex": encode(9, [1, 4], [0.5, -2.0]).hex()}
    rates = {"k": 0.5, "r": 1.0, "share": 0.1}
    kinds: dict[str, dict[str, Any]] = {
        "Order": {**names, "applied": -1, "applied_token": "", "train": True, "evaluate": False, **rates},
        "Hello": {"client": 2, "samples": 9, "test_samples": 3, "majority_guess": 0.2, "round": -1, "sent_at": 1.0},
        "Answer": {**names, **times, "store": "kept", "frame": frame, "loss": 0.5, "samples": 8},
        "Device": {"flops_per_s": 1e9, "step_s": 0.1, "step_samples": 32, "step_r": 1.0, "battery": 0.5},
        "base": {"dtype": "uint8", "shape": [4], "stype": "leanfed.frame", "data": frame},
    }
    kind = chance.choice(list(kinds))
    return json.dumps({"kind": kind, "values": kinds[kind]}).encode()


def changed_message(content: bytes, chance: random.Random) -> bytes:
    """One to three values of a message changed, lost or added."""
    message = json.loads(content)
    values = message["values"]
    for _ in range(chance.randint(1, 3)):
        key = chance.choice([*values, "unknown"])
        if chance.random() < 0.2:
            values.pop(key, None)
        elif isinstance(values.get(key), dict) and "hex" in values[key] and chance.random() < 0.7:
            values[key] = {"hex": changed_frame(bytes.fromhex(values[key]["hex"]), chance).hex()}
        else:
            values[key] = chance.choice((*WRONG, *WORDS, {"hex": ""}, 2**63 - 1, -(2**63), [0.5] * 9, ["a"]))
    return json.dumps(message).encode()


def read_message(file: Path) -> None:
    """As a server or a node does, with the frame that it carries."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from leanfed.deployment.learning import messages

    message = json.loads(file.read_bytes())
    values = {key: _bytes_in(value) for key, value in message["values"].items()}
    if isinstance(values.get("shape"), list):
        values["shape"] = tuple(values["shape"])
    try:
        record = ConfigRecord(values) if message["kind"] != "base" else ArrayRecord({"frame": Array(**values)})
    except (TypeError, ValueError, OverflowError, AttributeError):
        return  # Flower cannot carry it
    content = RecordDict({"base" if message["kind"] == "base" else "one": record})
    if message["kind"] == "base":
        for frame in messages.base_frames(content):
            from_frame(frame, max_size=LARGEST)
        return
    found = messages.unpack(content, "one", getattr(messages, message["kind"]))
    if isinstance(found, messages.Answer) and found.frame:
        from_frame(found.frame, max_size=LARGEST)


def _bytes_in(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) and set(value) == {"hex"} else value


READERS = {
    "frames": Reader(".bin", fresh_frame, changed_frame, read_frame),
    "manifests": Reader(
        ".json", lambda chance, folder: json.dumps(sealed(MANIFEST)).encode(), changed_manifest, read_manifests
    ),
    "fleet-tables": Reader(".csv", fresh_fleet(".csv"), changed_csv, read_fleet_file),
    "fleet-columns": Reader(".parquet", fresh_fleet(".parquet"), changed_parquet, read_fleet_file),
    "messages": Reader(".json", fresh_message, changed_message, read_message),
}
