"""Partitions of samples over clients (Class-m, Dirichlet(alpha), IID); test sets match the clients' class mix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from leanfed.errors import DataError, SettingsError
from leanfed.records import Floats, Ints, Section
from leanfed.streams import stream

DIRICHLET_TRIES = 100
HELD_BACK_PART = 5  # one in so many training samples


class PartitionSettings(Section):
    """How the data set is split over clients."""

    kind: Literal["class", "dirichlet", "iid"] = "dirichlet"
    """class: a client draws `classes_per_client` classes; dirichlet: class shares drawn with `alpha`; iid: uniform."""
    clients: int = Field(default=100, ge=1, le=1_000_000)
    """N, the number of clients."""
    classes_per_client: int | None = Field(default=None, ge=1)
    """m of Class-m."""
    alpha: float | None = Field(default=None, gt=0, le=1e6)
    """Concentration of the Dirichlet split: the smaller, the more the clients differ."""
    capped: bool = True
    """Whether a client of a Dirichlet split gets no further classes once it has the average number of samples, as in
    Lin et al. (2020), which the paper follows; false: the plain draw, with more varied sizes and more classes each."""
    min_samples: int = Field(default=10, ge=1)
    """The fewest training samples a client may hold."""

    @model_validator(mode="after")
    def _needs_its_own_key(self) -> PartitionSettings:
        wanted = {"class": "classes_per_client", "dirichlet": "alpha"}
        for kind, key in wanted.items():
            given = getattr(self, key) is not None
            if kind == self.kind and not given:
                raise ValueError(
                    f"a {kind!r} partition needs {key!r}; set it, for example {key} = {2 if kind == 'class' else 0.1}"
                )
            if kind != self.kind and given:
                raise ValueError(
                    f"{key!r} belongs to a {kind!r} partition, not to {self.kind!r}; remove it or set kind = {kind!r}"
                )
        if self.kind != "dirichlet" and not self.capped:
            raise ValueError(f"'capped' belongs to a 'dirichlet' partition, not to {self.kind!r}; remove it")
        return self

    def label(self) -> str:
        """The short name used in tables: Class-2, alpha 0.1 (with "uncapped" if so), IID."""
        if self.kind == "class":
            return f"Class-{self.classes_per_client}"
        if self.kind == "dirichlet":
            return f"alpha {self.alpha:g}" + ("" if self.capped else ", uncapped")
        return "IID"


@dataclass(frozen=True)
class Partition:
    """Row numbers of each client's samples, increasing; no row is given twice."""

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]

    @cached_property
    def sizes(self) -> Ints:
        """D_n: training samples per client."""
        return np.array([len(rows) for rows in self.train])

    @cached_property
    def gamma(self) -> Floats:
        """gamma_n = D_n / sum of D_n."""
        return np.asarray(self.sizes / self.sizes.sum(), dtype=np.float64)


def all_to(client: int, clients: int, train: int, test: int) -> Partition:
    """Every sample to one client, for a device that has only its own data."""
    nothing = np.empty(0, dtype=np.int64)
    parts = ([np.arange(count) if n == client else nothing for n in range(clients)] for count in (train, test))
    return Partition(*map(tuple, parts))


def hold_back(partition: Partition, seed: int) -> Partition:
    """A fifth of each client's training rows, at least one, for its tests in place of its test rows."""
    train, test = [], []
    for client, rows in enumerate(partition.train):
        if len(rows) < 2:
            raise DataError(f"Client {client} has a single training sample: none can be held back for its tests.")
        shuffled = stream(seed, "held-back", client).permutation(rows)
        cut = max(1, len(rows) // HELD_BACK_PART)
        test.append(np.sort(shuffled[:cut]))
        train.append(np.sort(shuffled[cut:]))
    return Partition(tuple(train), tuple(test))


def make_partition(train: Ints, test: Ints, classes: int, settings: PartitionSettings, seed: int) -> Partition:
    """Assign training samples by the settings, then test samples in each client's class mix."""
    _check(train, test, classes, settings)
    rng = stream(seed, "partition")
    owners = _owners(train, classes, settings, rng)
    train_counts = _count(train, owners, classes, settings.clients)
    test_counts = matching_counts(train_counts, np.bincount(test, minlength=classes))
    return Partition(_rows_of(owners, settings.clients), _deal(test, test_counts, rng))


def _check(train: Ints, test: Ints, classes: int, settings: PartitionSettings) -> None:
    """Refuse settings that the data cannot satisfy."""
    needed = settings.clients * settings.min_samples
    if needed > len(train):
        raise DataError(
            f"{settings.clients} clients with at least {settings.min_samples} samples each need {needed} training "
            f"samples, but there are {len(train)}. Lower clients or min_samples."
        )
    if settings.clients > len(test):
        raise DataError(f"{settings.clients} clients cannot share {len(test)} test samples. Lower clients.")
    chosen = settings.classes_per_client or 1
    if chosen > classes:
        raise SettingsError(f"classes_per_client = {chosen} is more than the {classes} classes there are. Lower it.")
    if settings.kind == "class" and chosen * settings.clients < classes:
        raise SettingsError(
            f"{settings.clients} clients with {chosen} classes each cannot own all {classes} classes, so samples "
            "would be lost. Raise clients or classes_per_client."
        )


def _owners(labels: Ints, classes: int, settings: PartitionSettings, rng: np.random.Generator) -> Ints:
    """The client of every training sample."""
    if settings.kind == "class":
        held = draw_classes(settings.clients, settings.classes_per_client or 1, classes, rng)
        owners = _deal_classes(labels, held, rng)
    elif settings.kind == "dirichlet":
        return _dirichlet(labels, classes, settings, rng)
    else:
        owners = rng.permutation(np.arange(len(labels)) % settings.clients)
    fewest = np.bincount(owners, minlength=settings.clients).min()
    if fewest < settings.min_samples:
        raise DataError(
            f"A client would hold {fewest} training samples, fewer than min_samples = {settings.min_samples}. "
            "Lower clients or min_samples."
        )
    return owners


def draw_classes(clients: int, per_client: int, classes: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """(clients, classes): which classes each client holds; a class that no client drew replaces one that many have."""
    held = np.zeros((clients, classes), dtype=bool)
    for client in range(clients):
        held[client, rng.choice(classes, per_client, replace=False)] = True
    for orphan in np.flatnonzero(~held.any(axis=0)):
        crowded = int(held.sum(axis=0).argmax())
        giver = int(rng.choice(np.flatnonzero(held[:, crowded])))
        held[giver, crowded], held[giver, orphan] = False, True
    return held


def _deal_classes(labels: Ints, held: npt.NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """Deal out each class among its owners in turn: shares differ by at most one sample."""
    owners = np.empty(len(labels), dtype=np.int64)
    for label in range(held.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        holders = rng.permutation(np.flatnonzero(held[:, label]))
        owners[rows] = holders[np.arange(len(rows)) % len(holders)]
    return owners


def _dirichlet(labels: Ints, classes: int, settings: PartitionSettings, rng: np.random.Generator) -> Ints:
    """Class shares drawn from Dirichlet(alpha), redrawn until every client has enough."""
    for _ in range(DIRICHLET_TRIES):
        owners = _draw_dirichlet(labels, classes, settings, rng)
        if np.bincount(owners, minlength=settings.clients).min() >= settings.min_samples:
            return owners
    return _top_up(owners, labels, settings)


def _draw_dirichlet(labels: Ints, classes: int, settings: PartitionSettings, rng: np.random.Generator) -> Ints:
    """One draw: each class is cut by its own shares; a client at the cap is left out of the classes that follow."""
    owners = np.empty(len(labels), dtype=np.int64)
    sizes = np.zeros(settings.clients)
    cap = len(labels) / settings.clients if settings.capped else np.inf
    for label in range(classes):
        rows = rng.permutation(np.flatnonzero(labels == label))
        still_open = sizes < cap
        shares = rng.dirichlet(np.full(settings.clients, settings.alpha)) * still_open
        shares = shares / shares.sum() if shares.sum() > 0 else still_open / still_open.sum()
        cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        counts = np.diff(cuts, prepend=0, append=len(rows))
        owners[rows] = np.repeat(np.arange(settings.clients), counts)
        sizes += counts
    return owners


def _top_up(owners: Ints, labels: Ints, settings: PartitionSettings) -> Ints:
    """Move samples from the largest client, of its largest class, until every client has the minimum."""
    owners = owners.copy()
    sizes = np.bincount(owners, minlength=settings.clients)
    while sizes.min() < settings.min_samples:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        held = labels[owners == rich]
        largest = np.bincount(held).argmax()
        owners[np.flatnonzero((owners == rich) & (labels == largest))[-1]] = poor
        sizes[[poor, rich]] += [1, -1]
    return owners


def matching_counts(train_counts: Ints, available: Ints) -> Ints:
    """(clients, classes) test counts in proportion to the training counts, rounded up or down.

    A client whose share rounds to nothing gets one sample of its largest class from the client richest in it, or of
    the next class where all samples of that one are needed.
    """
    totals = train_counts.sum(axis=0)
    quotas = train_counts * np.divide(available, totals, out=np.zeros(len(totals)), where=totals > 0)
    counts: Ints = np.floor(quotas).astype(np.int64)
    for label in np.flatnonzero(totals):
        short = int(available[label] - counts[:, label].sum())
        # Largest remainders first; among equals the lower client number.
        order = np.argsort(-(quotas - counts)[:, label], kind="stable")
        counts[order[:short], label] += 1
    for client in np.flatnonzero(counts.sum(axis=1) == 0):
        _give_one(counts, train_counts, int(client))
    return counts


def _give_one(counts: Ints, train_counts: Ints, client: int) -> None:
    """One test sample to a client without any, of a class that it holds, from a client that has more than one."""
    held = [int(label) for label in np.argsort(-train_counts[client], kind="stable") if train_counts[client, label]]
    for label in held:
        spare = np.where(counts.sum(axis=1) > 1, counts[:, label], 0)
        if spare.max() > 0:
            counts[int(spare.argmax()), label] -= 1
            counts[client, label] += 1
            return
    raise DataError(
        f"Client {client} holds training samples of {'classes' if len(held) > 1 else 'class'} "
        f"{', '.join(map(str, sorted(held)))}, and every test sample of these is another client's only one: "
        f"{len(counts)} clients cannot share {counts.sum()} test samples by class. Lower clients, to "
        f"{counts.sum() // 2} or so."
    )


def _count(labels: Ints, owners: Ints, classes: int, clients: int) -> Ints:
    """(clients, classes): how many samples of each class each client holds."""
    pairs: Ints = np.bincount(owners * classes + labels, minlength=clients * classes)
    return pairs.reshape(clients, classes)


def _rows_of(owners: Ints, clients: int) -> tuple[Ints, ...]:
    """The rows of each client, increasing."""
    return tuple(np.flatnonzero(owners == client) for client in range(clients))


def _deal(labels: Ints, counts: Ints, rng: np.random.Generator) -> tuple[Ints, ...]:
    """Distribute shuffled rows of each class by the given counts."""
    parts: list[list[Ints]] = [[] for _ in range(len(counts))]
    for label in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        for part, rows_of_client in zip(parts, np.split(rows, np.cumsum(counts[:, label])), strict=False):
            part.append(rows_of_client)
    return tuple(np.sort(np.concatenate(part)) for part in parts)
