"""Ranks: the processes of one run. Each trains and tests its own clients; all else is computed alike by all of them.

Client n lives on rank n mod `size`: its private weights and memories never travel. What ranks exchange are sums that do
not depend on their order (`compression.exact`) and a few plain values: a run has the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NoReturn, TypeVar

from pydantic import Field
from torch import Tensor

from leanfed.errors import LeanfedError
from leanfed.records import Section

T = TypeVar("T")


class RankSettings(Section):
    """How the processes of one run talk to each other, where there are several."""

    backend: Literal["gloo", "nccl"] = "gloo"
    """What adds up vectors: gloo between processors, nccl between NVIDIA GPUs."""
    timeout_s: float = Field(default=600.0, ge=1, le=86_400)
    """How long a rank waits for the others before it gives up; longer than the slowest round, test or checkpoint."""


class SharedError(LeanfedError):
    """An error of one rank, raised by all of them in the same words."""

    def __init__(self, words: str, exit_code: int, *, silent: bool) -> None:
        super().__init__(words)
        self.exit_code = exit_code
        self.silent = silent


class Ranks:
    """One process, the only rank; `simulation.process_group` has the class for several.

    >>> ALONE.agree(lambda: "ready"), ALONE.owns(range(3))
    (['ready'], [0, 1, 2])
    """

    rank: int = 0
    size: int = 1
    on_host: int = 1  # ranks on this machine

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes the folder and shows the run."""
        return self.rank == 0

    def owns(self, clients: Iterable[int]) -> list[int]:
        """Those of the clients that live here."""
        return [client for client in clients if client % self.size == self.rank]

    def add(self, sums: Tensor) -> None:
        """sums (float64) becomes the sum over all ranks, in place; exact for sums of `compression.exact`."""

    def gather(self, value: Any) -> list[Any]:
        """A plain value (as JSON holds it) of every rank, in their order."""
        return [value]

    def agree(self, action: Callable[[], T]) -> list[T]:
        """Let every rank act and return a plain value; where one fails, all raise its error."""
        if self.size == 1:
            return [action()]
        value, failure = None, None
        try:
            value = action()
        except LeanfedError as error:
            failure = error
        told = self.gather([value, None if failure is None else [str(failure), failure.exit_code]])
        for rank, (_, failed) in enumerate(told):
            if failed is not None:
                self._raise(rank, *failed)
        return [value for value, _ in told]

    def _raise(self, rank: int, words: str, exit_code: int) -> NoReturn:
        """One voice is enough: the first rank's."""
        raise SharedError(words if rank == 0 else f"Rank {rank}: {words}", exit_code, silent=not self.first)


ALONE: Final = Ranks()
