"""Runs on a Ray cluster (extra `[ray]`): one task a run, made again on another node if its own dies."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

from typing_extensions import override

from leanfed.errors import InputError
from leanfed.runs.places import FAILED, LOST, Elsewhere, Terms, Ticket, fulfil

CLIENT_PORT = 10_001  # of Ray's client server, unless said otherwise
ANSWER_S = 10.0  # a cluster that does not take a connection for so long is not there


class RayPlace(Elsewhere):
    """`ray://host:10001` is a cluster with Ray's client server; `ray` the one that this machine belongs to."""

    def __init__(self, address: SplitResult, terms: Terms) -> None:
        super().__init__(terms)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise InputError("`--on ray` needs Ray. Install it: pip install 'leanfed[ray]'.") from None
        self._ray = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            where = f"ray://{address.netloc}" if address.netloc else "auto"
            try:
                if address.netloc:  # Ray itself would try for half a minute
                    socket.create_connection((address.hostname or "", address.port or CLIENT_PORT), ANSWER_S).close()
                ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                there, why = f"at {where}" if address.netloc else "here", str(error).partition(". ")[0]
                raise InputError(
                    f"No Ray cluster answers {there} ({why}). Start one with `ray start --head`, or leave out --on."
                ) from None

    @override
    def start(self, orders: Sequence[str], threads: int, home: Path) -> Sequence[Ticket]:
        task = self._ray.remote(fulfil).options(
            num_cpus=threads,
            max_retries=0,  # what dies is started anew by us, as on every place
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},
        )
        return [_Task(self._ray, task.remote(order)) for order in orders]

    @override
    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


@dataclass(frozen=True)
class _Task:
    ray: Any
    reference: Any

    def ended(self) -> tuple[str, str] | None:
        """What the task returned, or how it died."""
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            return None
        try:
            kind, text = self.ray.get(self.reference)
        except self.ray.exceptions.RayTaskError as error:  # a fault of ours or of the user's own file
            return FAILED, f"{type(error.cause).__name__}: {error.cause}"
        except self.ray.exceptions.RayError as error:  # the worker or its node is gone
            return LOST, f"{type(error).__name__}."
        return kind, text

    def cancel(self) -> None:
        """End the task's process; the folder keeps its last checkpoint."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.cancel(self.reference, force=True)
