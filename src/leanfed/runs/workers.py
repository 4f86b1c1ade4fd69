"""Runs in parallel processes, each on one thread; they end with the process that started them."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any

from typing_extensions import override

from leanfed.errors import LeanfedError
from leanfed.interpreter import safe_children
from leanfed.runs.places import TRIES, Done, Place, Tell, Terms, Work, carry_out, cores
from leanfed.runs.settings import Settings
from leanfed.tasks.user_data import import_file


class Local(Place):
    """This machine: so many processes as the terms say, or this one alone."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @override
    def carry_out(self, work: Sequence[Work], tell: Tell, done: Done) -> list[str]:
        processes = min(self.terms.processes or cores(), len(work))
        if processes <= 1:
            return _one_after_another(work, self.terms.data_dir, tell, done)
        data_dir = None if self.terms.data_dir is None else str(self.terms.data_dir)
        pool = _Pool(data_dir, [str(file) for file in self.terms.imports])
        try:
            return pool.carry_out(work, processes, tell, done)
        finally:
            pool.end()


def _one_after_another(work: Sequence[Work], data_dir: Path | None, tell: Tell, done: Done) -> list[str]:
    failures = []
    for settings, folder in work:
        try:
            carry_out(settings, folder, data_dir, tell)
            done(folder)
        except LeanfedError as error:
            failures.append(f"{settings.name}: {error}")
    return failures


@dataclass
class _Worker:
    """A process that carries out one run after another, and the run that it holds."""

    process: Any
    pipe: Connection  # its own: a worker that is killed cannot leave a lock that others need
    task: int | None = None


class _Pool:
    """Workers that are given runs; what a dead one held is given to another, which goes on where it stopped."""

    def __init__(self, data_dir: str | None, imports: Sequence[str]) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._arguments = data_dir, imports
        self._workers: list[_Worker] = []

    def carry_out(self, work: Sequence[Work], processes: int, tell: Tell, done: Done) -> list[str]:
        """All runs, so many at a time; what went wrong."""
        waiting, tries, failures = deque(range(len(work))), [0] * len(work), []
        for _ in range(processes):
            self._give(self._started(), waiting, work)
        while any(worker.task is not None for worker in self._workers):
            for pipe in wait([worker.pipe for worker in self._workers]):
                worker = next(each for each in self._workers if each.pipe is pipe)
                kind, text = _said(worker)
                if kind == "round":
                    tell()
                    continue
                if kind == "done":
                    done(Path(text))
                elif kind == "failed":
                    failures.append(text)
                elif worker.task is not None:
                    tries[worker.task] += 1
                    if tries[worker.task] < TRIES:
                        waiting.appendleft(worker.task)
                    else:
                        failures.append(_lost(work[worker.task], worker))
                if kind == "dead":
                    self._workers.remove(worker)
                    worker = self._started() if waiting else worker
                self._give(worker, waiting, work)
        return failures

    def end(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
            worker.process.join()

    def _started(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, *self._arguments), daemon=True)
        with safe_children():
            process.start()
        theirs.close()  # so that a worker's death ends the pipe
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _give(self, worker: _Worker, waiting: deque[int], work: Sequence[Work]) -> None:
        """Give a worker the next run, if there is one and the worker lives."""
        worker.task = waiting.popleft() if waiting and worker in self._workers else None
        if worker.task is not None:
            settings, folder = work[worker.task]
            with suppress(OSError):  # it has died meanwhile: its pipe will say so
                worker.pipe.send_bytes(json.dumps([settings.resolved(), str(folder)]).encode())


def _said(worker: _Worker) -> tuple[str, str]:
    """What a worker reports: a kind and a text; `dead` where it has ended."""
    try:
        kind, text = json.loads(worker.pipe.recv_bytes())
    except (EOFError, OSError):
        worker.process.join()
        return "dead", ""
    return str(kind), str(text)


def _lost(work: Work, worker: _Worker) -> str:
    return (
        f"{work[0].name}: the process that carries it out has ended {TRIES} times, at last with exit code "
        f"{worker.process.exitcode}. Free some memory or use fewer --processes; the same command goes on where it "
        "stopped."
    )


def _work(pipe: Connection, data_dir: str | None, imports: Sequence[str]) -> None:
    """What a worker process does: take a run, carry it out, report, until the pipe ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    where = None if data_dir is None else Path(data_dir)
    for file in imports:
        import_file(file)

    def report(kind: str, text: str = "") -> None:
        pipe.send_bytes(json.dumps([kind, text]).encode())

    while True:
        try:
            values, folder = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        settings = Settings.from_values(values)
        try:
            carry_out(settings, Path(folder), where, lambda: report("round"))
            report("done", folder)
        except LeanfedError as error:
            report("failed", f"{settings.name}: {error}")


def _end_with_parent() -> None:
    """End this worker when its parent is gone; its run's checkpoint is on disk."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
