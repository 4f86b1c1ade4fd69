"""Every call that changes a run's folder may fail or be the last one: the run goes on to the same files.

Two faults of three variants run always; `-m slow` walks over all of them, and kills at 500 random instants.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.forks import HOW, Ending, why_not
from tests.chaos.kills import Killer
from tests.chaos.variants import ROUNDS, VARIANTS, settings_of
from tests.chaos.walk import Case, Crew, Whole, cases_of, contents, differences, numbered

pytestmark = [
    pytest.mark.waits,
    pytest.mark.skipif(why_not() is not None, reason=f"faults cannot be injected: {why_not()}"),
]


FEW = ("error-feedback", "tuned-plan", "second-rank")  # variants that are tried always


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with Crew(1, tmp_path_factory.mktemp("crew")) as started:
        yield started


def two_of_each(wholes: dict[str, Whole]) -> list[Case]:
    """Two kinds of fault for every variant in turn, each at another part of its run."""
    kinds, chosen = itertools.cycle(HOW), list[Case]()
    for place, (variant, whole) in enumerate(wholes.items()):
        for half in range(2):
            kind = next(kinds)
            cases = [case for case in cases_of(variant, whole) if case.how == kind]
            chosen.append(cases[len(cases) * (place + half * len(wholes)) // (2 * len(wholes))])
    return chosen


def test_some_faults_in_a_few_variants(crew: Crew) -> None:
    wholes = {variant: crew.unbroken(variant) for variant in FEW}
    cases = two_of_each(wholes)
    assert {case.variant for case in cases} == set(FEW)
    assert {case.how for case in cases} == {"fail", "full", "kill", "torn"}
    assert [line for _, wrong in crew.walk(cases, wholes) for line in wrong] == []


def test_the_shim_sees_every_byte_of_a_folder(crew: Crew, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with crew.lent() as forks:
        ending = forks.ask("run", folder, settings_of("error-feedback"))
    written: Counter[str] = Counter()
    for key, size in ending.calls:
        call, _, path = key.partition(" ")
        written[path.replace("/.", "/").removeprefix(".").removesuffix(".partial")] += size if call == "write" else 0
    flushed = {key for key, _ in ending.calls if key.startswith("fsync")}
    saved = {f"checkpoint/manifest{end}.json": saves for end, saves in (("", ROUNDS), ("-before", ROUNDS - 1))}
    for name in contents(folder).keys() - {".lock"}:
        size = (folder / name).stat().st_size
        if name in saved:  # rewritten in every round
            assert sum(key == f"rename {name}" for key, _ in ending.calls) == saved[name]
        else:
            assert written[name] == size, name
        head, _, tail = name.rpartition("/")
        partial = f"fsync {head}{'/' if head else ''}.{tail}.partial"
        assert name == "events.jsonl" or {f"fsync {name}", partial} & flushed, name


def test_a_call_is_aimed_at_by_its_key_and_how_often_it_came_before() -> None:
    ending = Ending("done", "", False, (("open a", 0), ("write a", 3), ("open b", 0), ("open a", 0)))
    assert numbered(ending) == (("open a", 0), ("write a", 0), ("open b", 0), ("open a", 1))


def test_what_is_different_left_over_or_missing_is_said(tmp_path: Path) -> None:
    def write_events(*names: str) -> None:
        lines = [json.dumps({"event": name}) + "\n" for name in names]
        (tmp_path / "events.jsonl").write_text("".join(lines))

    (tmp_path / "settings.json").write_text("{}")
    write_events("start", "finish")
    whole = Whole((), contents(tmp_path))
    assert list(differences(whole, tmp_path, "x")) == []
    write_events("start")
    (tmp_path / "settings.json").write_text("[]")
    (tmp_path / ".settings.json.12.partial").touch()
    kinds = [line.partition(":")[0] for line in differences(whole, tmp_path, "x")]
    assert kinds == ["leftover", "different", "events"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fault(crew: Crew, variant: str) -> None:
    whole = crew.unbroken(variant)
    assert [line for _, wrong in crew.walk(cases_of(variant, whole), {variant: whole}) for line in wrong] == []


@pytest.mark.slow
def test_kills_at_random_instants(tmp_path: Path) -> None:
    killer = Killer(tmp_path)
    try:
        assert list(killer.all(500, 10)) == []
    finally:
        killer.close()
    assert killer.kills >= 500
