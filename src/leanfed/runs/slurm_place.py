"""Runs as jobs of SLURM (extra `[slurm]`, through submitit): one job a run, in arrays, requeued at a time limit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl

from typing_extensions import override

from leanfed.errors import InputError, first_line
from leanfed.runs.places import FAILED, LOST, Elsewhere, Terms, Ticket, fulfil

WORDS: Final = {"minutes": "timeout_min", "memory_gb": "mem_gb", "account": "slurm_account", "qos": "slurm_qos"}
"""What may stand after the partition, in submitit's words."""
MINUTES = 24 * 60  # of a job; one that needs more is requeued and goes on
LOGS = ".slurm"  # what submitit writes, beside the runs


class SlurmPlace(Elsewhere):
    """`slurm`, or `slurm://PARTITION?minutes=600&memory_gb=8&account=A&qos=Q`."""

    def __init__(self, address: SplitResult, terms: Terms, cluster: str = "slurm") -> None:
        super().__init__(terms)
        self._parameters = _parameters(address)
        try:
            import submitit
        except ImportError:
            raise InputError("`--on slurm` needs submitit. Install it: pip install 'leanfed[slurm]'.") from None
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise InputError("There is no `sbatch` here. Give the command on a machine that can submit jobs to SLURM.")
        self._submitit, self._cluster = submitit, cluster

    @override
    def start(self, orders: Sequence[str], threads: int, home: Path) -> Sequence[Ticket]:
        executor = self._submitit.AutoExecutor(folder=home / LOGS, cluster=self._cluster)
        executor.update_parameters(cpus_per_task=threads, **self._parameters)
        with executor.batch():
            jobs = [executor.submit(Fulfilled(), order) for order in orders]
        return [_Job(self._submitit, job) for job in jobs]


class Fulfilled:
    """An order that SLURM may interrupt: at a time limit or a preemption the same order is queued again."""

    def __call__(self, order: str) -> tuple[str, str]:
        """Carry it out."""
        return fulfil(order)

    def checkpoint(self, order: str) -> Any:
        """What is queued in its place."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, order)


def _parameters(address: SplitResult) -> dict[str, Any]:
    """Submitit's parameters from an address."""
    asked = dict(parse_qsl(address.query))
    if unknown := [word for word in asked if word not in WORDS]:
        raise InputError(f"--on slurm: {unknown[0]!r} is unknown. It may be followed by {', '.join(WORDS)}.")
    found: dict[str, Any] = {"name": "leanfed", "timeout_min": MINUTES, "tasks_per_node": 1}
    for word, value in asked.items():
        if word in ("minutes", "memory_gb") and not value.isdigit():
            raise InputError(f"--on slurm: {word} = {value!r} is no whole number. Give one, such as {word}=60.")
        found[WORDS[word]] = int(value) if value.isdigit() else value
    if address.netloc:
        found["slurm_partition"] = address.netloc
    return found


@dataclass(frozen=True)
class _Job:
    submitit: Any
    job: Any

    def ended(self) -> tuple[str, str] | None:
        """What the job returned, or how it died."""
        if not self.job.done():
            return None
        try:
            kind, text = self.job.result()
        except self.submitit.core.utils.FailedJobError as error:  # raised by the code itself
            return FAILED, str(error).strip().splitlines()[-1]
        except self.submitit.core.utils.UncompletedJobError as error:  # no result: killed, or its node is gone
            return LOST, f"{first_line(error)}."
        return kind, text

    def cancel(self) -> None:
        """Take it from the queue, or end it; the folder keeps its last checkpoint."""
        self.job.cancel()
