"""Damage to bytes, to JSON values and to run folders; all of it follows from a random generator."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.chaos.generated import WRONG

HABITS = ("flip", "cut", "empty", "splice", "repeat", "noise")


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The bytes with one thing wrong."""
    changed, place = bytearray(content or b"\0"), chance.randrange(max(1, len(content)))
    some = bytes(chance.choices(range(256), k=chance.randint(1, 8)))
    match chance.choice(HABITS):
        case "flip":
            changed[place] ^= 1 << chance.randrange(8)
        case "cut":
            del changed[place:]
        case "empty":
            changed.clear()
        case "splice":
            changed[place : place + chance.randint(0, 8)] = some
        case "repeat":
            changed[place:place] = changed[place : place + chance.randint(1, 64)]
        case "noise":
            changed = bytearray(chance.randbytes(chance.randint(1, 200)))
    return bytes(changed)


def damaged_json(text: bytes, chance: random.Random) -> bytes:
    """JSON that is still JSON, with a wrong value, a lost key or a key of its own in one table."""
    value = json.loads(text)
    tables = [value]
    for table in tables:  # grows while it is walked: all tables and lists
        inner = table.values() if isinstance(table, dict) else table
        tables += [each for each in inner if isinstance(each, dict | list) and each]
    table = chance.choice(tables)
    keys: list[Any] = list(table) if isinstance(table, dict) else list(range(len(table)))
    key = chance.choice(keys) if keys else "key"
    if isinstance(table, dict) and chance.random() < 0.2:
        table["unexpected"] = table.pop(key, None)
    elif keys:
        table[key] = chance.choice(WRONG)
    return json.dumps(value).encode()


def is_json(file: Path) -> bool:
    """Whether a file still holds JSON."""
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except ValueError:
        return False


def damage_folder(folder: Path, chance: random.Random) -> str:
    """Damage one to three files of a folder; what was done, in words."""
    told: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
        told.append(damage_file(chance.choice(files), files, chance))
    return "; ".join(told)


def damage_file(file: Path, others: list[Path], chance: random.Random) -> str:
    """Lose a file, put another or a folder in its place, or damage its content; what was done, in words."""
    done = chance.choice(("lose", "exchange", "folder", "json", "json", *["bytes"] * 4))
    match done:
        case "lose":
            file.unlink()
        case "exchange":
            content = chance.choice(others).read_bytes()
            file.write_bytes(content)
        case "folder":
            file.unlink()
            file.mkdir()
        case "json" if file.suffix == ".json" and is_json(file):
            file.write_bytes(damaged_json(file.read_bytes(), chance))
        case _:
            file.write_bytes(damaged(file.read_bytes(), chance))
    return f"{done} {file.name}"
