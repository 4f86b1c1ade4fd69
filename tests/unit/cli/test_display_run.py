"""What a run shows on a terminal, in a log, and to a machine; how a signal ends it."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from leanfed.cli import display, display_run


def record(number: int, *, tested: bool = True) -> Any:
    """What the listener of a run gets after a round."""
    scores = {"accuracy": 0.5 + number / 1000, "worst_decile": 0.25, "loss": 1.5} if tested else {}
    row = {"round": number, "participants": 7, "k_mean": 0.125, "r_mean": 0.75, "majority_guess": 0.4}
    costs = {"latency_s": 2.0, "energy_j": 3.0, "upload_bits": 5e8}
    empty = dict.fromkeys(("accuracy", "worst_decile", "loss"))
    return SimpleNamespace(row={**row, **costs, **empty, **scores}, progress=SimpleNamespace(round=number + 1))


def shown(monkeypatch: pytest.MonkeyPatch, rounds: int, *, terminal: bool, quiet: bool = False, every: int = 1) -> str:
    """Everything printed during a run of so many rounds."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None, legacy_windows=False)
    monkeypatch.setattr(display_run, "notices", console)
    with display_run.round_progress("a [b]run[/b]", rounds, Path("nowhere"), quiet=quiet) as listen:
        for number in range(rounds):
            listen(record(number, tested=(number + 1) % every == 0))
    return text.getvalue()


def test_a_terminal_gets_a_table_of_the_last_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, 30, terminal=True).rpartition("round  ")[2]
    rows = [line.split() for line in text.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert [row[0] for row in rows] == [str(number) for number in range(23, 31)]
    # round, accuracy, worst decile, loss, seconds, joules and gigabits so far, k, r, clients
    assert rows[-1] == ["30", "0.5290", "0.2500", "1.5000", "60", "90", "15", "0.125", "0.750", "7"]
    assert "30/30" in text
    assert "a [b]run[/b]" in text


def test_a_log_gets_about_twenty_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, 400, terminal=False, every=2).splitlines()
    assert len(lines) == 21
    assert lines[-1] == (
        "a [b]run[/b]: round 400 of 400, accuracy 0.8990 (majority guess 0.4000), loss 1.5000, "
        "800 simulated s, 1200 J, 200 Gbit"
    )
    assert "\x1b" not in "".join(lines)


def test_a_machine_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, 5, terminal=False, quiet=True) == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_with_a_word_on_how_to_go_on(number: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    before, ctrl_c = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
    with pytest.raises(typer.Exit) as ended, display_run.round_progress("run", 3, Path("runs/a"), quiet=True):
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 1)  # a moment for the signal to arrive
    signal.signal(signal.SIGINT, ctrl_c)
    assert ended.value.exit_code == code
    assert "go on with: leanfed resume runs/a" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before, ended = signal.getsignal(signal.SIGINT), []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(os, "_exit", ended.append)
    try:
        with pytest.raises(typer.Exit), display_run.round_progress("run", 3, Path("runs/a"), quiet=True):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)  # while the last checkpoint is written
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [130]


def test_tables_are_framed_on_a_terminal_and_plain_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = {"name": "x", "rounds": 3, "accuracy": 0.5, "worst_decile": 0.25, "majority_guess": 0.4, "loss": 1.0}
    costs = {"latency_s": 12.0, "energy_j": 3.0, "upload_bits": 5e9, "flops": 2e12}
    texts = {}
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=60, color_system=None)
        monkeypatch.setattr(display, "screen", console)
        monkeypatch.setattr(display_run, "screen", console)
        display_run.show_summary({**summary, **costs}, Path("runs/x"), as_json=False)
        texts[terminal] = text.getvalue()
    assert "│" in texts[True]
    assert not set("│─┃━") & set(texts[False])
    assert [line.split() for line in texts[False].splitlines()][:2] == [
        ["x", "after", "3", "rounds"],
        ["accuracy", "0.5000"],
    ]
    assert "uploaded        5 Gbit" in texts[False]
