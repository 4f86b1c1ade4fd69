"""While one client computes on a device, the next one's state and batch are brought there, and an answer comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from typing import TypeVar

import torch

from leanfed.algorithms.contract import Cohort
from leanfed.rounds.exchange import moved
from leanfed.tasks.transfer import arrival

T = TypeVar("T")


def ahead(cohorts: Iterable[Cohort], device: torch.device) -> Iterator[Cohort]:
    """The cohorts; to a device a thread brings each while the one before is in work.

    `cohorts` itself is read by the caller's thread, which alone knows the store: one cohort earlier than it is needed.
    """
    if device.type == "cpu":
        yield from cohorts
        return
    with ThreadPoolExecutor(1, "leanfed-ahead", initializer=torch.set_num_threads, initargs=(1,)) as thread:
        coming: deque[Future[Cohort]] = deque()
        for cohort in cohorts:
            coming.append(thread.submit(_brought, cohort, device))
            if len(coming) > 1:
                yield coming.popleft().result()
        yield from (each.result() for each in coming)


def behind(answers: Iterable[T], device: torch.device) -> Iterator[T]:
    """The answers of clients; from a device each when the next one's is there, so that its way back costs no wait."""
    if device.type == "cpu":
        yield from answers
        return
    coming: deque[tuple[T, Callable[[], None]]] = deque()
    for answer in answers:
        coming.append((answer, arrival(device)))
        if len(coming) > 1:
            yield _arrived(*coming.popleft())
    yield from (_arrived(*each) for each in coming)


def _brought(cohort: Cohort, device: torch.device) -> Cohort:
    """The cohort with its states and its first batch on the device; further batches follow step by step."""
    there = moved(cohort, device)
    batches = iter(there.batches)
    return replace(there, batches=chain(list(islice(batches, 1)), batches))


def _arrived(answer: T, wait: Callable[[], None]) -> T:
    wait()
    return answer
