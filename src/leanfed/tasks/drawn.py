"""Clients that draw their samples for themselves: any number of them, and no list of who holds what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import overload

import numpy as np

from leanfed.errors import DataError
from leanfed.records import Floats, Ints
from leanfed.streams import stream
from leanfed.tasks.partition import Partition, PartitionSettings

KEPT = 8_192  # clients whose rows are kept: those of a round and of a test panel


class DrawnRows(Sequence[Ints]):
    """Rows of every client, made when they are asked for, from the client's own stream (seed, "rows", client)."""

    def __init__(self, pools: Sequence[Ints], settings: PartitionSettings, seed: int, part: str, count: int) -> None:
        self._pools = pools  # the rows of every class; one pool where classes do not matter
        self._settings, self._seed, self._part, self._count = settings, seed, part, count
        self._kept = lru_cache(KEPT)(self._drawn)

    def __len__(self) -> int:
        return self._settings.clients

    @overload
    def __getitem__(self, client: int) -> Ints: ...

    @overload
    def __getitem__(self, client: slice) -> Sequence[Ints]: ...

    def __getitem__(self, client: int | slice) -> Ints | Sequence[Ints]:
        if isinstance(client, slice):
            return [self[each] for each in range(*client.indices(len(self)))]
        if not -len(self) <= client < len(self):
            raise IndexError(client)
        return self._kept(client % len(self))

    @cached_property
    def sizes(self) -> Ints:
        """Rows of every client: the same for all."""
        return np.full(len(self), self._count)

    def digest(self) -> bytes:
        """Of everything that the rows follow from, the samples aside."""
        said = [self._settings.model_dump(), self._seed, self._part, self._count]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).digest()

    def _drawn(self, client: int) -> Ints:
        """The class mix first, the same for training and tests; then rows of each class without repetition."""
        shares = self._mix(client)
        rng = stream(self._seed, "rows", self._part, client)
        counts = self._counts(shares, rng)
        chosen = [
            pool[rng.choice(len(pool), count, replace=False, shuffle=False)]
            for pool, count in zip(self._pools, counts.tolist(), strict=True)
            if count
        ]
        return np.sort(np.concatenate(chosen))

    def _mix(self, client: int) -> Floats:
        """The client's share of every class."""
        rng, classes = stream(self._seed, "mix", client), len(self._pools)
        if self._settings.classes_per_client:
            shares = np.zeros(classes)
            shares[rng.choice(classes, self._settings.classes_per_client, replace=False)] = 1.0
            return np.asarray(shares / shares.sum())
        if self._settings.alpha:
            return rng.dirichlet(np.full(classes, self._settings.alpha))
        sizes = np.array([len(pool) for pool in self._pools], dtype=float)
        return np.asarray(sizes / sizes.sum())

    def _counts(self, shares: Floats, rng: np.random.Generator) -> Ints:
        """How many rows of every class: whole parts of the shares, the rest by chance; no more than there are."""
        wanted = shares * self._count
        counts: Ints = np.floor(wanted).astype(np.int64)
        left, fractions = self._count - int(counts.sum()), wanted - np.floor(wanted)
        if left:
            chances = fractions if fractions.sum() > 0 else shares
            counts += rng.multinomial(left, chances / chances.sum())
        room = np.array([len(pool) for pool in self._pools])
        while (over := np.maximum(counts - room, 0)).any():  # a class that does not have so many gives to the others
            counts -= over
            free = (counts < room).astype(float)
            counts += rng.multinomial(int(over.sum()), free / free.sum())
        return counts


def draw_partition(train: Ints, test: Ints, classes: int, settings: PartitionSettings, seed: int) -> Partition:
    """Every client's own draw, of the same class mix for training and tests; refuses more than the data has."""
    count = settings.samples_per_client or 1
    tests = max(1, round(count * len(test) / len(train)))
    mixed = bool(settings.classes_per_client or settings.alpha)
    if (settings.classes_per_client or 1) > classes:
        raise DataError(
            f"task.partition.classes_per_client = {settings.classes_per_client} is more than the {classes} classes "
            "there are. Lower it."
        )
    if mixed and classes == 1:
        raise DataError("A drawn partition mixes classes, but these labels are none. Leave out the mix.")
    parts = []
    for part, labels, wanted in (("train", train, count), ("test", test, tests)):
        pools = [np.flatnonzero(labels == label) for label in range(classes)] if mixed else [np.arange(len(labels))]
        room = sum(sorted(map(len, pools))[: settings.classes_per_client or classes])
        if wanted > room:
            raise DataError(
                f"A client draws {wanted} {part} samples, but its classes may have only {room}. Lower "
                f"task.partition.samples_per_client = {count}."
            )
        if empty := [label for label, pool in enumerate(pools) if not len(pool)]:
            raise DataError(f"Class {empty[0]} has no {part} sample to draw. Choose another partition.")
        parts.append(DrawnRows(pools, settings, seed, part, wanted))
    return Partition(*parts)
