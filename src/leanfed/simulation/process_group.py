"""Ranks that are processes of torch.distributed, on one machine or several."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from typing_extensions import override

from leanfed.errors import InputError, LeanfedError, first_line
from leanfed.rounds.ranks import ALONE, Ranks, RankSettings

GIVEN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells its processes


class LostError(LeanfedError):
    """Another rank has ended or does not answer."""


@final
class ProcessGroup(Ranks):
    """The ranks that meet at a store. Plain values travel as JSON through gloo, sums through the backend."""

    def __init__(
        self, store: Store, rank: int, size: int, settings: RankSettings, *, place: int = 0, on_host: int = 1
    ) -> None:
        self.rank, self.size, self.on_host = rank, size, on_host
        nccl = settings.backend == "nccl"
        if nccl and not (dist.is_nccl_available() and torch.cuda.is_available()):
            raise InputError(
                "run.ranks.backend = 'nccl' adds up on NVIDIA GPUs, and this machine has none that torch can use. "
                "Set run.ranks.backend = 'gloo'."
            )
        self._device = torch.device("cuda", place) if nccl else torch.device("cpu")
        self._timeout_s = settings.timeout_s
        with self._explained("did not all meet"):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=settings.timeout_s),
            )

    @override
    def add(self, sums: Tensor) -> None:
        with self._explained("lost each other"):
            if self._device.type == "cpu":
                dist.all_reduce(sums)
                return
            there = sums.to(self._device)
            dist.all_reduce(there)
            sums.copy_(there)

    @override
    def gather(self, value: Any) -> list[Any]:
        said = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self._from_all(torch.tensor([len(said)]))
        padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
        padded[: len(said)] = said
        heard = self._from_all(padded)
        return [json.loads(bytes(h[: int(n)].numpy())) for h, n in zip(heard, lengths, strict=True)]

    def leave(self) -> None:
        """End the group for this rank; the others are not waited for."""
        dist.destroy_process_group()

    def _from_all(self, value: Tensor) -> list[Tensor]:
        found = [torch.empty_like(value) for _ in range(self.size)]
        with self._explained("lost each other"):
            dist.all_gather(found, value)
        return found

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Replace torch's error where a rank is gone by one that says what to do."""
        try:
            yield
        except RuntimeError as error:  # what gloo, nccl and stores raise
            raise LostError(
                f"The {self.size} ranks {what} (rank {self.rank}, within {self._timeout_s:g} s): "
                f"{first_line(error)}. Look at why one of them ended or is slow "
                "(run.ranks.timeout_s); the same command goes on from the last checkpoint."
            ) from error


@contextmanager
def joined(settings: RankSettings, environment: Mapping[str, str] | None = None) -> Iterator[Ranks]:
    """The ranks of a process that torchrun (or `leanfed run --ranks`) started; any other process is alone."""
    told = os.environ if environment is None else environment
    if not all(name in told for name in GIVEN):
        yield ALONE
        return
    rank, size = int(told["RANK"]), int(told["WORLD_SIZE"])
    group = ProcessGroup(
        _meeting_place(told, rank, settings),
        rank,
        size,
        settings,
        place=int(told.get("LOCAL_RANK", 0)),
        on_host=int(told.get("LOCAL_WORLD_SIZE", 1)),
    )
    try:
        yield group
    finally:
        group.leave()


def _meeting_place(told: Mapping[str, str], rank: int, settings: RankSettings) -> Store:
    """The store at which the ranks of one attempt meet.

    torchrun's own store outlives a restart and still holds the addresses of ranks that have died, so every attempt has
    names of its own.
    """
    kept = told.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    patience = timedelta(seconds=settings.timeout_s)
    make: Callable[..., Store] = TCPStore
    try:
        store = make(
            told["MASTER_ADDR"],
            int(told["MASTER_PORT"]),
            int(told["WORLD_SIZE"]),
            rank == 0 and not kept,
            timeout=patience,
        )
    except RuntimeError as error:
        raise LostError(
            f"Rank {rank} cannot reach {told['MASTER_ADDR']}:{told['MASTER_PORT']}, where the ranks meet: "
            f"{first_line(error)}. Check the address and the firewall."
        ) from error
    return PrefixStore(f"leanfed-attempt-{told.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
