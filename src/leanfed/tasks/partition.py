"""Partitions of samples over clients (Class-m, Dirichlet(alpha), IID, quantity skew, by user; drawn: `drawn.py`).

Test sets match the clients' class mix; those of a partition by user are the users' own. Where the test samples of its
classes do not suffice, a client is tested on one that is another's too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from leanfed.errors import DataError, SettingsError
from leanfed.records import Floats, Ints, Section
from leanfed.streams import stream

DIRICHLET_TRIES = 100
HELD_BACK_PART = 5  # one in so many training samples
OWN_KEYS = {
    "classes_per_client": (("class",), 2),
    "alpha": (("dirichlet", "quantity"), 0.1),
    "samples_per_client": (("drawn",), 50),
}
"""Keys that only some kinds of partition need, with an example."""
MIXES = ("classes_per_client", "alpha")  # of which a drawn partition may have one


class PartitionSettings(Section):
    """How the data set is split over clients."""

    kind: Literal["class", "dirichlet", "iid", "quantity", "column", "drawn"] = "dirichlet"
    """class: a client draws `classes_per_client` classes; dirichlet: class shares drawn with `alpha`; iid: uniform;
    quantity: shares of all samples drawn with `alpha`, in the same class mix; column: a client for each user of the
    data, with that user's own samples for training and testing; drawn: each client draws `samples_per_client` for
    itself, of `classes_per_client` classes, in a mix of `alpha`, or of all alike, and two clients may draw the same
    one, so that there can be a million clients."""
    clients: int = Field(default=100, ge=0, le=1_000_000)
    """N, the number of clients; of a column partition so many users, drawn by the seed, or 0 (its default): all."""
    classes_per_client: int | None = Field(default=None, ge=1)
    """m of Class-m."""
    samples_per_client: int | None = Field(default=None, ge=2)
    """Training samples of every client of a drawn partition; for tests it draws as many as the data has in
    proportion, at least one."""
    alpha: float | None = Field(default=None, gt=0, le=1e6)
    """Concentration of the Dirichlet or quantity split: the smaller, the more the clients differ."""
    capped: bool = True
    """Whether a client of a Dirichlet split gets no further classes once it has the average number of samples, as in
    Lin et al. (2020), which the paper follows; false: the plain draw, with more varied sizes and more classes each."""
    min_samples: int = Field(default=10, ge=1)
    """The fewest training samples a client may hold."""

    @model_validator(mode="before")
    @classmethod
    def _all_users(cls, values: Any) -> Any:
        return {"clients": 0, **values} if isinstance(values, dict) and values.get("kind") == "column" else values

    @model_validator(mode="after")
    def _needs_its_own_key(self) -> PartitionSettings:
        for key, (kinds, example) in OWN_KEYS.items():
            given = getattr(self, key) is not None
            if self.kind in kinds and not given:
                raise ValueError(f"a {self.kind!r} partition needs {key!r}; set it, for example {key} = {example}")
            allowed = (*kinds, "drawn") if key in MIXES else kinds
            if self.kind not in allowed and given:
                raise ValueError(
                    f"{key!r} belongs to a {kinds[0]!r} partition, not to {self.kind!r}; remove it or set kind = "
                    f"{kinds[0]!r}"
                )
        if all(getattr(self, key) is not None for key in MIXES):
            raise ValueError("'classes_per_client' and 'alpha' are two ways to mix classes; leave out one")
        if self.kind != "dirichlet" and not self.capped:
            raise ValueError(f"'capped' belongs to a 'dirichlet' partition, not to {self.kind!r}; remove it")
        if self.kind != "column" and not self.clients:
            raise ValueError(f"a {self.kind!r} partition needs a number of clients, at least 1; set clients = 100")
        return self

    def label(self) -> str:
        """The short name in tables: Class-2, alpha 0.1 (or with "uncapped"), IID, quantity 0.5, by user, drawn 50."""
        if self.kind == "class":
            return f"Class-{self.classes_per_client}"
        if self.kind == "dirichlet":
            return f"alpha {self.alpha:g}" + ("" if self.capped else ", uncapped")
        if self.kind == "drawn":
            mixed = f", alpha {self.alpha:g}" if self.alpha else ""
            classes = f", Class-{self.classes_per_client}" if self.classes_per_client else ""
            return f"drawn {self.samples_per_client}{classes}{mixed}"
        return {"iid": "IID", "column": "by user"}.get(self.kind, f"quantity {self.alpha or 0:g}")

    def counted(self) -> int:
        """N, where it must be known without the data."""
        if not self.clients:
            raise SettingsError(
                "task.partition.clients is left open, but without the users' data nobody can count them. Set it to "
                "their number."
            )
        return self.clients


@dataclass(frozen=True)
class Partition:
    """Row numbers of each client's samples, increasing; only a test row may be given twice, where they are few."""

    train: Sequence[Ints]
    test: Sequence[Ints]

    @cached_property
    def sizes(self) -> Ints:
        """D_n: training samples per client."""
        return _lengths(self.train)

    @cached_property
    def test_sizes(self) -> Ints:
        """Test samples per client."""
        return _lengths(self.test)

    @cached_property
    def gamma(self) -> Floats:
        """gamma_n = D_n / sum of D_n."""
        return np.asarray(self.sizes / self.sizes.sum(), dtype=np.float64)


def _lengths(parts: Sequence[Ints]) -> Ints:
    """How many rows every client has; a sequence that makes rows when asked for them knows without making them."""
    known: Ints | None = getattr(parts, "sizes", None)
    return np.array([len(rows) for rows in parts]) if known is None else known


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
    tests = _deal(test, test_counts, rng)
    for client in np.flatnonzero(test_counts.sum(axis=1) == 0):
        tests[client] = _share_one(test, train_counts, int(client), seed)
    return Partition(_rows_of(owners, settings.clients), tuple(tests))


def by_user(train: Ints, test: Ints, users: Sequence[str], settings: PartitionSettings, seed: int) -> Partition:
    """A client for each user, in the order of their names, with the user's own samples for training and testing."""
    if settings.clients > len(users):
        raise DataError(
            f"task.partition.clients = {settings.clients} is more than the {len(users)} users of the data. Lower it, "
            "or leave it out for all of them."
        )
    chosen = np.arange(len(users))
    if settings.clients:
        chosen = np.sort(stream(seed, "users").choice(len(users), settings.clients, replace=False))
    held, tests = (np.bincount(owners, minlength=len(users))[chosen] for owners in (train, test))
    if (held < settings.min_samples).any():
        poorest = int(held.argmin())
        if not held[poorest]:
            raise DataError(
                f"User {users[chosen[poorest]]!r} has no sample for training, only for testing. Give the user both, or "
                "leave the user out of the data."
            )
        raise DataError(
            f"User {users[chosen[poorest]]!r} has {held[poorest]} training samples, fewer than "
            f"task.partition.min_samples = {settings.min_samples}. Lower that, or leave the user out of the data."
        )
    if not tests.all():
        raise DataError(
            f"User {users[chosen[int(tests.argmin())]]!r} has no sample left for testing. Give the user at least one "
            "in `test`, or leave the user out of the data."
        )
    return Partition(*(tuple(np.flatnonzero(owners == user) for user in chosen) for owners in (train, test)))


def _check(train: Ints, test: Ints, classes: int, settings: PartitionSettings) -> None:
    """Refuse settings that the data cannot satisfy."""
    needed = settings.clients * settings.min_samples
    if needed > len(train):
        raise DataError(
            f"{settings.clients} clients with at least {settings.min_samples} samples each need {needed} training "
            f"samples, but there are {len(train)}. Lower clients or min_samples."
        )
    chosen = settings.classes_per_client or 1
    if classes == 1 and settings.kind in ("class", "dirichlet"):
        raise SettingsError(
            f"task.partition.kind = {settings.kind!r} deals out classes, but these labels are none. Choose 'iid', "
            "'quantity' or 'column'."
        )
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
    elif settings.kind == "quantity":
        owners = _quantities(labels, settings, rng)
    else:
        owners = rng.permutation(np.arange(len(labels)) % settings.clients)
    fewest = np.bincount(owners, minlength=settings.clients).min()
    if fewest < settings.min_samples:
        raise DataError(
            f"A client would hold {fewest} training samples, fewer than min_samples = {settings.min_samples}. "
            "Lower clients or min_samples."
        )
    return owners


def _quantities(labels: Ints, settings: PartitionSettings, rng: np.random.Generator) -> Ints:
    """Shuffled samples cut by shares from Dirichlet(alpha), after `min_samples` for everybody."""
    spare = len(labels) - settings.clients * settings.min_samples
    shares = rng.dirichlet(np.full(settings.clients, settings.alpha))
    cuts = (np.cumsum(shares)[:-1] * spare).astype(np.int64)
    counts = settings.min_samples + np.diff(cuts, prepend=0, append=spare)
    return rng.permutation(np.repeat(np.arange(settings.clients), counts))


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
    the next class where all samples of that one are needed; nothing where all of all its classes are.
    """
    totals = train_counts.sum(axis=0)
    quotas = train_counts * np.divide(available, totals, out=np.zeros(len(totals)), where=totals > 0)
    counts: Ints = np.floor(quotas).astype(np.int64)
    for label in np.flatnonzero(totals):
        short = int(available[label] - counts[:, label].sum())
        # Largest remainders first; among equals the lower client number.
        order = np.argsort(-(quotas - counts)[:, label], kind="stable")
        counts[order[:short], label] += 1
    sums = counts.sum(axis=1)
    for client in np.flatnonzero(sums == 0):
        _give_one(counts, sums, train_counts, int(client))
    return counts


def _give_one(counts: Ints, sums: Ints, train_counts: Ints, client: int) -> None:
    """One test sample to a client without any, of a class that it holds, from a client that has more than one."""
    for label in _largest_first(train_counts[client]):
        spare = np.where(sums > 1, counts[:, label], 0)
        if spare.max() > 0:
            richest = int(spare.argmax())
            counts[[richest, client], label] += [-1, 1]
            sums[[richest, client]] += [-1, 1]
            return


def _share_one(labels: Ints, train_counts: Ints, client: int, seed: int) -> Ints:
    """One test row of the client's largest class that has any, drawn from all of them: it is another client's too."""
    held = _largest_first(train_counts[client])
    for label in held:
        rows = np.flatnonzero(labels == label)
        if len(rows):
            return stream(seed, "shared-test", client).choice(rows, 1)
    raise DataError(
        f"Client {client} holds training samples of {'classes' if len(held) > 1 else 'class'} "
        f"{', '.join(map(str, sorted(held)))}, of which there is no test sample. Lower clients."
    )


def _largest_first(counts: Ints) -> list[int]:
    """The classes of which a client holds training samples, the largest first."""
    return [int(label) for label in np.argsort(-counts, kind="stable") if counts[label]]


def _count(labels: Ints, owners: Ints, classes: int, clients: int) -> Ints:
    """(clients, classes): how many samples of each class each client holds."""
    pairs: Ints = np.bincount(owners * classes + labels, minlength=clients * classes)
    return pairs.reshape(clients, classes)


def _rows_of(owners: Ints, clients: int) -> tuple[Ints, ...]:
    """The rows of each client, increasing."""
    ends = np.cumsum(np.bincount(owners, minlength=clients))
    return tuple(np.split(np.argsort(owners, kind="stable"), ends[:-1]))


def _deal(labels: Ints, counts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Distribute shuffled rows of each class by the given counts."""
    parts: list[list[Ints]] = [[] for _ in range(len(counts))]
    for label in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        for part, rows_of_client in zip(parts, np.split(rows, np.cumsum(counts[:, label])), strict=False):
            part.append(rows_of_client)
    return [np.sort(np.concatenate(part)) for part in parts]
