"""The walk over every call that changes a run's folder: fail it, fill the disk there, kill before it or half-way.

Then the run is taken up as a user would, and must end with the files of the unbroken run, byte for byte, and no others.

    python -m tests.chaos.walk
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Self
from zlib import crc32

from leanfed.files import read_json, sha256_of
from leanfed.locks import lock_owner
from leanfed.manifest import BEFORE, MANIFEST, read_manifest
from leanfed.results import RunFolder
from tests.chaos.counts import COUNTS, record
from tests.chaos.forks import HOW, Ending, Forks, compile_shim, why_not
from tests.chaos.variants import VARIANTS, WATCHED, settings_of

OWN = {".lock", "events.jsonl"}  # process numbers and times: never the same twice
KINDS = ("different", "bricked", "leftover", "events", "raw", "hung", "missed")  # what may be wrong
CLIENTS_IN = re.compile(r"checkpoint/(state|client|manifest)")
Call = tuple[str, int]  # "name path", and how many of that key come before


@dataclass(frozen=True)
class Case:
    """What happens to which call of which run."""

    variant: str
    call: Call
    how: str

    def __str__(self) -> str:
        key, before = self.call
        return f"{self.variant}: {self.how} at {key} #{before + 1}"


@dataclass(frozen=True)
class Whole:
    """An unbroken run: its calls, and what its folder holds in the end."""

    calls: tuple[Call, ...]
    content: dict[str, str]


def contents(folder: Path) -> dict[str, str]:
    """Path -> SHA-256 of every file, or only that it is there."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: "" if name in OWN else sha256_of(file) for name, file in files.items()}


def numbered(ending: Ending) -> tuple[Call, ...]:
    """The calls of a child, each with how many of its key came before."""
    seen: Counter[str] = Counter()
    calls = []
    for key, _ in ending.calls:
        calls.append((key, seen[key]))
        seen[key] += 1
    return tuple(calls)


def unbroken(forks: Forks, variant: str, folder: Path) -> Whole:
    """Run a variant without a fault."""
    ending = forks.ask("run", folder, settings_of(variant), rank=WATCHED.get(variant))
    assert ending.ended == "done", ending
    return Whole(numbered(ending), contents(folder))


def take_up(
    forks: Forks, variant: str, folder: Path, *, kill_after_s: float | None = None, alone: bool = False
) -> Ending:
    """What a user does after any stop; `alone`: in one process, whatever it was before."""
    verb: Literal["run", "resume"] = "resume" if (folder / "settings.json").is_file() else "run"
    rank = None if alone else WATCHED.get(variant)
    return forks.ask(verb, folder, settings_of(variant), kill_after_s=kill_after_s, rank=rank)


def troubles(forks: Forks, case: Case, whole: Whole, folder: Path) -> Iterator[str]:
    """What is wrong after a fault, one line each, beginning with its kind."""
    rank = WATCHED.get(case.variant)
    first = forks.ask("run", folder, settings_of(case.variant), at=case.call, how=case.how, rank=rank)
    if not first.hit:
        yield f"missed: {case}"
    if first.ended in ("raw", "hung"):
        yield f"{first.ended}: {case}: {first.text}"
    if first.ended != "done":
        alone = rank is not None and crc32(str(case).encode()) % 2 == 0  # each half of the time
        again = take_up(forks, case.variant, folder, alone=alone)
        if again.ended != "done":
            yield f"bricked: {case}: {again.ended}: {again.text}"
        elif alone:
            whole = as_divided(whole, folder)
    yield from differences(whole, folder, str(case))


def as_divided(whole: Whole, folder: Path) -> Whole:
    """The unbroken run with the checkpoint of this folder, which one process and two divide into files differently."""
    place, content = folder / "checkpoint", dict[str, str]()
    for name in (MANIFEST, BEFORE):
        content[f"checkpoint/{name}"] = sha256_of(place / name)
        content |= {f"checkpoint/{file}": digest for file, digest in read_manifest(place / name)["sha256"].items()}
    alike = {name: digest for name, digest in whole.content.items() if not CLIENTS_IN.match(name)}
    return Whole(whole.calls, {**content, **alike})


def differences(whole: Whole, folder: Path, what: str) -> Iterator[str]:
    """Where a folder is not that of the unbroken run."""
    found = contents(folder)
    if extra := found.keys() - whole.content.keys():
        yield f"leftover: {what}: {sorted(extra)}"
    if lock_owner(folder) is not None:
        yield f"leftover: {what}: the lock"
    if different := [name for name, digest in whole.content.items() if found.get(name) != digest]:
        yield f"different: {what}: {different}"
    events = [event["event"] for event in RunFolder(folder).read_events()]
    if events[:1] != ["start"] or events[-1:] != ["finish"]:
        yield f"events: {what}: {events}"


def cases_of(variant: str, whole: Whole) -> list[Case]:
    """Every call failed and killed once; every write also cut in half, by a kill and by a disk that is full from then.

    All calls but writes happen or do not: a kill right after one is a kill before the next.
    """
    return [
        Case(variant, call, how)
        for call in whole.calls
        for how in (HOW if call[0].startswith("write ") else ("fail", "kill"))
    ]


class Crew:
    """Some pairs of warm processes, each of which takes one case at a time."""

    def __init__(self, workers: int, folder: Path) -> None:
        shim = compile_shim(folder)
        self.folder = folder
        self._free: SimpleQueue[Forks] = SimpleQueue()
        self._all = [Forks(shim) for _ in range(workers)]
        for forks in self._all:
            self._free.put(forks)

    @contextmanager
    def lent(self) -> Iterator[Forks]:
        """A pair that is free; it is given back."""
        forks = self._free.get()
        try:
            yield forks
        finally:
            self._free.put(forks)

    def unbroken(self, variant: str) -> Whole:
        """Run a variant without a fault."""
        with self.lent() as forks:
            return unbroken(forks, variant, self.folder / f"whole-{variant}")

    def walk(self, cases: Iterable[Case], wholes: dict[str, Whole]) -> Iterator[tuple[Case, list[str]]]:
        """Every case with its troubles, in order."""

        def one(case: Case) -> tuple[Case, list[str]]:
            with self.lent() as forks, tempfile.TemporaryDirectory(dir=self.folder) as folder:
                return case, list(troubles(forks, case, wholes[case.variant], Path(folder) / "run"))

        with ThreadPoolExecutor(len(self._all)) as pool:
            yield from pool.map(one, cases)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for forks in self._all:
            forks.close()


def main() -> None:
    """Walk over everything and record the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--variant", choices=VARIANTS, action="append", help="only this one; may be repeated; the counts of others stay"
    )
    parser.add_argument("--every", type=int, default=1, help="take only each so many-th case")
    parser.add_argument("--out", type=Path, default=COUNTS, help="where the counts go")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"Faults cannot be injected here: {reason}.")
    with tempfile.TemporaryDirectory(prefix="leanfed-chaos-") as folder, Crew(options.workers, Path(folder)) as crew:
        wholes = {variant: crew.unbroken(variant) for variant in options.variant or VARIANTS}
        cases = [case for variant, whole in wholes.items() for case in cases_of(variant, whole)][:: options.every]
        tally = Tally(wholes, cases, {} if options.variant is None else known_variants(options.out))
        for number, (case, wrong) in enumerate(crew.walk(cases, wholes), start=1):
            tally.add(case, wrong)
            if number % 50 == 0 or number == len(cases):
                record("walk", "python -m tests.chaos.walk", tally.counts(), options.out)


def known_variants(file: Path) -> dict[str, Any]:
    """What earlier walks met, by variant."""
    found: dict[str, Any] = read_json(file).get("walk", {}).get("variants", {}) if file.is_file() else {}
    return found


class Tally:
    """What the walk met so far; `known` variants that are not walked now keep their counts."""

    def __init__(self, wholes: dict[str, Whole], cases: Sequence[Case], known: dict[str, Any]) -> None:
        self.variants = dict(known)
        for variant, whole in wholes.items():
            calls = Counter(key.partition(" ")[0] for key, _ in whole.calls)
            own = sum(case.variant == variant for case in cases)
            faults: Counter[str] = Counter()
            found = Counter(dict.fromkeys(KINDS, 0))
            self.variants[variant] = {"calls": calls, "cases": own, "faults": faults, "found": found}

    def add(self, case: Case, wrong: list[str]) -> None:
        """Count a case; what is wrong is printed."""
        self.variants[case.variant]["faults"][case.how] += 1
        for line in wrong:
            print(line, flush=True)
            self.variants[case.variant]["found"][line.partition(":")[0]] += 1

    def counts(self) -> dict[str, Any]:
        """All counts, together and by variant."""
        each = self.variants.values()
        return {
            "cases": sum(one["cases"] for one in each),
            "walked": sum(sum(one["faults"].values()) for one in each),
            "found": {kind: sum(one["found"][kind] for one in each) for kind in KINDS},
            "variants": self.variants,
        }


if __name__ == "__main__":
    main()
