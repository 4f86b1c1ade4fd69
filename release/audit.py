"""Check requirements.lock without a network: whole, exact, hashed, and true to what is declared and installed.

It cannot know what became known after the lock was made: advisories and withdrawn versions need an index. Where there
is one, `pip-audit --require-hashes --requirement requirements.lock` asks it.

    make audit
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
ENTRY = re.compile(r"([\w.-]+)==([\w.!]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)")
Pin = tuple[str, tuple[str, ...]]  # version and hashes


def entries(text: str) -> dict[str, Pin]:
    """Package -> (version, hashes) of a lock file; a line that is anything else is refused."""
    body = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    found = list(ENTRY.finditer(body))
    rest = ENTRY.sub("", body).strip()
    if rest:
        raise ValueError(f"not an exact pin with a SHA-256: {rest.splitlines()[0]!r}")
    names = [canonicalize_name(match[1]) for match in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"pinned twice: {', '.join(sorted(twice))}")
    pins = ((match[2], tuple(re.findall(r"[0-9a-f]{64}", match[3]))) for match in found)
    return dict(zip(names, pins, strict=True))


def pinned(constraints: str) -> dict[str, str]:
    """Package -> version of a constraints file."""
    found = re.findall(r"^([\w.-]+)==([\w.!]+)$", constraints, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def declared(project: dict[str, object]) -> list[Requirement]:
    """What pyproject.toml asks for, extras included."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    texts = [project["dependencies"], *extras.values()]
    return [Requirement(text) for each in texts for text in each]


def needed(name: str, extras: set[str]) -> list[Requirement]:
    """What an installed package needs on this machine, with those of its extras that were asked for."""
    texts = distribution(name).requires or []
    asked = [Requirement(text) for text in texts]
    environments = [{"extra": extra} for extra in ("", *sorted(extras))]
    return [one for one in asked if one.marker is None or any(one.marker.evaluate(each) for each in environments)]


def closure(roots: list[Requirement]) -> dict[str, set[str]]:
    """Every package that these need on this machine -> the extras asked of it."""
    reached: dict[str, set[str]] = {}
    waiting = list(roots)
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        known = reached.get(name)
        if known is not None and asked.extras <= known:
            continue
        reached[name] = (known or set()) | asked.extras
        try:
            waiting += needed(name, reached[name])
        except PackageNotFoundError:
            continue  # named by `troubles` where the lock lacks it
    return reached


def troubles(lock: str, project: dict[str, object], constraints: str) -> Iterator[str]:
    """What is wrong with a lock file, one line each."""
    try:
        pins = entries(lock)
    except ValueError as error:
        yield str(error)
        return
    for asked in declared(project):
        pin = pins.get(canonicalize_name(asked.name))
        if pin is not None and not asked.specifier.contains(Version(pin[0]), prereleases=True):
            yield f"{asked.name} is locked at {pin[0]}, but pyproject.toml asks for {asked.specifier}"
    for name in sorted(closure(declared(project)).keys() - pins.keys()):
        yield f"{name} is needed, but not locked"
    for name, version in sorted(pinned(constraints).items()):
        if name in pins and pins[name][0] != version:
            yield f"{name} is locked at {pins[name][0]}, but constraints.txt has {version}"
    for name, (version, _) in sorted(pins.items()):
        yield from other_version(name, version)


def other_version(name: str, version: str) -> Iterator[str]:
    """Whether another version than the locked one is installed here."""
    try:
        installed = Version(distribution(name).version).public
    except PackageNotFoundError:
        return
    if installed != Version(version).public:
        yield f"{name} is locked at {version}, but {installed} is installed"


def main() -> None:
    """Print what is wrong; exit with 1 if anything is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    found = list(troubles(lock, project, (ROOT / "constraints.txt").read_text(encoding="utf-8")))
    for line in found:
        print(line)
    print(f"requirements.lock: {len(found)} troubles" if found else f"requirements.lock: {len(entries(lock))} packages")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
