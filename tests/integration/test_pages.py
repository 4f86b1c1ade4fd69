"""The pages of the documentation as a reader follows them: files are saved, commands run and code executed, in order.

A block with a title is a file to save; `python` is executed, every line of `sh` is run, `toml` without a title must be
settings, and `text` is what the command before printed, whatever its numbers. `<!-- not run: why -->` excuses a block.
"""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leanfed.runs.settings import Settings
from tests.integration.conftest import Leanfed
from tests.registries import registered_for_now

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+?) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
ELSEWHERE = {  # page -> the test that runs its blocks
    "any-data.md": "tests/integration/test_any_data.py",
    "fleet.md": "tests/unit/deployment/test_guide.py",
    "fleet_rounds.md": "tests/unit/deployment/test_guide.py",
    "own-models.md": "tests/integration/test_own.py",
    "planner.md": "tests/integration/test_plan_cli.py",
    "python.md": "tests/integration/test_python_face.py",
    "studies.md": "tests/integration/test_study.py",
}
SHORTER = {  # page -> what its files say, and what is tried: the same commands on shorter runs
    "tutorials/study.md": {
        "seeds = [0, 1, 2]": "seeds = [0, 1]",
        "rounds = 15\nevaluation.every = 5": "rounds = 4\nevaluation.every = 2",
        "run.stop_at_seconds = 5.0": "run.stop_at_seconds = 1.0",
    },
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str
    why: str  # it is not run


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match["language"], match["title"] or "", match["text"], match["why"] or "")
        for match in BLOCK.finditer(text)
    ]
    assert len(found) == len(re.findall(r"^```", text, re.MULTILINE)) / 2, f"{page.name}: a block was not understood"
    return found


def pages() -> list[str]:
    names = (page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md")))
    return [name for name in names if name not in ELSEWHERE and blocks(DOCS / name)]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with registered_for_now():
        yield


def shorter(page: str, text: str) -> str:
    """A file of a page with what makes it short."""
    for said, tried in SHORTER.get(page, {}).items():
        text = text.replace(said, tried)
    return text


def commands(text: str) -> list[list[str]]:
    """The lines of a shell block as words, comments left out."""
    words = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line for line in words if line]


def shape(text: str) -> set[str]:
    """Lines without their numbers, rules and spacing."""
    return {" ".join(re.sub(r"[\d.]+(e-?\d+)?|[─-╿]", "", line).split()) for line in text.splitlines()} - {""}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", pages())
def test_a_page_does_what_it_says(
    name: str,
    leanfed: Leanfed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    scope: dict[str, Any] = {}
    printed = ""
    for block in blocks(DOCS / name):
        if block.title:
            (tmp_path / block.title).write_text(shorter(name, block.text), encoding="utf-8")
        elif block.why:
            assert len(block.why) > 8, f"{name}: say why the block is not run"
        elif block.language == "python":
            exec(compile(block.text, name, "exec"), scope)
            printed = capsys.readouterr().out
        elif block.language == "sh":
            printed = "".join(run(line, leanfed, capsys) for line in commands(block.text))
        elif block.language == "toml":
            (tmp_path / "settings.toml").write_text(block.text, encoding="utf-8")
            Settings.from_toml(tmp_path / "settings.toml")
        elif block.language == "text":
            assert shape(block.text) <= shape(printed), name
        else:
            pytest.fail(f"{name}: nothing runs a block of {block.language!r}; say <!-- not run: why --> above it")


def run(words: list[str], leanfed: Leanfed, capsys: pytest.CaptureFixture[str]) -> str:
    """What one command prints; it must succeed."""
    assert words[0] in ("python", "leanfed"), f"nothing runs {words[0]!r}"
    with registered_for_now():  # as if a process ended
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            return capsys.readouterr().out
        done = leanfed(*words[1:])
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize(("page", "said"), [(page, said) for page, words in SHORTER.items() for said in words])
def test_what_is_shortened_is_said(page: str, said: str) -> None:
    assert any(said in block.text for block in blocks(DOCS / page) if block.title)


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_pages_that_others_run_are_run_there(page: str, test: str) -> None:
    assert page in (ROOT / test).read_text(encoding="utf-8")


def test_the_tutorial_has_the_commands_and_settings_of_the_fleet_page() -> None:
    """Real processes run the fleet page's (tests/integration/test_fleet_security.py)."""
    guide = (DOCS / "fleet.md").read_text(encoding="utf-8")
    tutorial = (DOCS / "tutorials/real-fleet.md").read_text(encoding="utf-8")
    five = re.search(r"in five commands\n\n```\n(.*?)```", guide, re.DOTALL)[1].splitlines()
    assert len(five) == 5
    assert set(five) <= set(tutorial.splitlines())
    settings = re.search(r"<!-- start.toml -->\n```toml\n(.*?)```", guide, re.DOTALL)[1]
    saved = next(block for block in blocks(DOCS / "tutorials/real-fleet.md") if block.title == "start.toml")
    assert re.sub(r" +#.*", "", saved.text) == settings
