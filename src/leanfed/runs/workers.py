"""Runs in parallel processes, each on one thread; they end with the process that started them."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any

from leanfed.errors import LeanfedError
from leanfed.interpreter import safe_children
from leanfed.results import RunFolder
from leanfed.runs.build import resume, run
from leanfed.runs.settings import Settings
from leanfed.tasks.user_data import import_file

Work = tuple[Settings, Path]
Tell = Callable[[], None]  # called after every round


def carry_out(settings: Settings, folder: Path, data_dir: Path | None, tell: Tell) -> None:
    """One run into its folder; one that was stopped goes on."""
    if RunFolder(folder).settings.is_file():
        resume(folder, data_dir=data_dir, listen=lambda record: tell())
        return
    if folder.is_dir():  # stopped before it had settings: nothing in it is of use
        shutil.rmtree(folder)
    run(settings, folder, data_dir=data_dir, listen=lambda record: tell())


def carry_out_all(
    work: Sequence[Work],
    *,
    processes: int,
    data_dir: Path | None,
    tell: Tell,
    done: Callable[[Path], None],
    imports: Sequence[Path] = (),
) -> list[str]:
    """All runs, several at a time; returns what went wrong with those that could not be carried out.

    `imports` are the user's own files, which register what settings name; this process has run them already.
    """
    if processes == 1 or len(work) == 1:
        return _one_after_another(work, data_dir, tell, done)
    context = multiprocessing.get_context("spawn")
    with safe_children():  # a queue starts a process too
        tasks, messages = context.Queue(), context.Queue()
    for settings, folder in work:
        tasks.put(json.dumps([settings.resolved(), str(folder)]))
    workers = [
        context.Process(
            target=_work,
            args=(tasks, messages, None if data_dir is None else str(data_dir), [str(file) for file in imports]),
            daemon=True,
        )
        for _ in range(min(processes, len(work)))
    ]
    for worker in workers:
        tasks.put("")  # the end, once for each
        with safe_children():
            worker.start()
    try:
        return _follow(workers, messages, len(work), tell, done)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _one_after_another(
    work: Sequence[Work], data_dir: Path | None, tell: Tell, done: Callable[[Path], None]
) -> list[str]:
    failures = []
    for settings, folder in work:
        try:
            carry_out(settings, folder, data_dir, tell)
            done(folder)
        except LeanfedError as error:
            failures.append(f"{settings.name}: {error}")
    return failures


def _follow(workers: Sequence[Any], messages: Any, left: int, tell: Tell, done: Callable[[Path], None]) -> list[str]:
    """Pass on what workers report until all runs have ended."""
    failures: list[str] = []
    while left:
        try:
            kind, text = messages.get(timeout=1.0)
        except queue.Empty:
            if not any(worker.is_alive() for worker in workers):
                codes = [worker.exitcode for worker in workers]
                raise LeanfedError(
                    f"The processes that carry out runs ended before their work (exit codes {codes}). "
                    "Free some memory or use fewer --processes; the same command goes on where it stopped."
                ) from None
            continue
        if kind == "round":
            tell()
            continue
        left -= 1
        if kind == "done":
            done(Path(text))
        else:
            failures.append(text)
    return failures


def _work(tasks: Any, messages: Any, data_dir: str | None, imports: Sequence[str]) -> None:
    """What a worker process does: take a run, carry it out, report, until there is none left."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    where = None if data_dir is None else Path(data_dir)
    for file in imports:
        import_file(file)
    while task := tasks.get():
        values, folder = json.loads(task)
        settings = Settings.from_values(values)
        try:
            carry_out(settings, Path(folder), where, lambda: messages.put(("round", "")))
            messages.put(("done", folder))
        except LeanfedError as error:
            messages.put(("failed", f"{settings.name}: {error}"))


def _end_with_parent() -> None:
    """End this worker when its parent is gone; its run's checkpoint is on disk."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
