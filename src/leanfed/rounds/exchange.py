"""Training of a round's clients, on a simulator or a device: the method, and the clients' running statistics.

Methods know weights and gradients only. The running statistics of normalisation layers are loaded into the model before
a client trains and saved afterwards, so that no client ever computes with another client's. If a task shares the
statistics of shared layers, they are sent along with the upload and the server averages them after the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ClientState, Cohort, ServerState, Training, Updates
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.local import DivergedError
from leanfed.algorithms.stepping import counts_steps
from leanfed.algorithms.uploads import Listed, Upload, Uploads
from leanfed.compression import exact
from leanfed.errors import InputError
from leanfed.records import Floats, Ints
from leanfed.rounds.coding import with_coded_values
from leanfed.rounds.nested import STATISTICS as STATISTICS
from leanfed.rounds.nested import narrowed, widened
from leanfed.rounds.wire import through_wire
from leanfed.streams import stream_seed
from leanfed.tasks.transfer import CPU, arrival, returned, sent


def train(
    algorithm: Algorithm, server: ServerState, cohort: Cohort, learner: FlatLearner, *, waits: bool = True
) -> Updates:
    """`algorithm.client_update` with each client's own statistics and its own random stream for dropout.

    The uploads own their memory: the learner may go on to other clients. Unless it `waits`, what clients keep may
    still be on its way from the device, until an `arrival` that is asked for afterwards. A client whose model is
    narrower trains that.
    """
    if cohort.nest is None:
        return _trained(algorithm, server, cohort, learner, waits=waits)
    return widened(_trained(algorithm, *narrowed(server, cohort, learner), waits=True), cohort, learner)


def _trained(
    algorithm: Algorithm, server: ServerState, cohort: Cohort, learner: FlatLearner, *, waits: bool
) -> Updates:
    model, keeps = learner.model, learner.model.statistics.size > 0
    shared, cohort = learner.here(0, server.shared), moved(cohort, learner.device)
    if keeps or model.random:
        labels = ("dropout", cohort.round)
        seeds = [stream_seed(cohort.seed, *labels, client) % 2**63 for client in cohort.clients if model.random]
        own = cohort.memory.get(STATISTICS, model.statistics.initial.expand(len(cohort.clients), -1))
    with _own_random(learner) if model.random else nullcontext():
        if keeps or model.random:
            learner.load_clients(_with_shared(own, server, learner), seeds)
        try:
            updates = algorithm.client_update(shared, cohort, learner)
        except ValueError as error:
            raise _of_one_sample(error, cohort, learner) from error
    updates = coded(kept_here(updates, learner.device), cohort, learner.device)
    if keeps:
        after, places = learner.statistics(), model.statistics.places
        memory = {**updates.memory, STATISTICS: returned(after)}
        shown = returned(after[:, places]) if len(places) else None
        updates = replace(updates, memory=memory, statistics=shown)
    if waits:
        arrival(learner.device)()
    return updates


def moved(cohort: Cohort, device: torch.device) -> Cohort:
    """The cohort's states on a device, or on their way there; its batches follow one by one."""
    if cohort.private.device == device:
        return cohort
    return replace(
        cohort,
        private=sent(cohort.private, device),
        memory={name: rows if counts_steps(name) else sent(rows, device) for name, rows in cohort.memory.items()},
        batches=(batch.to(device) for batch in cohort.batches),
    )


def kept_here(updates: Updates, device: torch.device) -> Updates:
    """The updates with uploads of their own, which stay on the device, and what clients keep on its way to the host."""
    uploads = Listed(list(updates.uploads))
    if device.type == "cpu":
        return replace(updates, uploads=uploads)
    memory = {name: returned(rows) for name, rows in updates.memory.items()}
    return replace(updates, uploads=uploads.bounded(), private=returned(updates.private), memory=memory)


def coded(updates: Updates, cohort: Cohort, device: torch.device) -> Updates:
    """`with_coded_values` of what `kept_here` gives: rounding reads the memories, which must have arrived."""
    if cohort.values == "float32":
        return updates
    arrival(device)()
    return with_coded_values(updates, cohort)


def _own_random(learner: FlatLearner) -> AbstractContextManager[None]:
    """Restore torch's random state afterwards."""
    device = learner.device
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device.index or 0], device_type=device.type)


def _of_one_sample(error: ValueError, cohort: Cohort, learner: FlatLearner) -> Exception:
    """In place of torch's error for batch normalisation over one sample, one that says what to do."""
    if "more than 1 value per channel" not in str(error):
        return error
    return InputError(
        f"Client {cohort.clients[learner.row]} has a batch of a single sample in round {cohort.round}, which batch "
        "normalisation cannot use. Change training.batch_size, or set training.local_steps in place of local_epochs."
    )


def _with_shared(own: Tensor, server: ServerState, learner: FlatLearner) -> Tensor:
    """The statistics (..., size) that clients compute with: their own, with the shared ones taken from the server."""
    if STATISTICS not in server.memory:
        return own
    shared, places = learner.here(1, server.memory[STATISTICS]), learner.model.statistics.places
    return own.index_copy(-1, places, shared.expand(*own.shape[:-1], -1))


def personal_model(
    algorithm: Algorithm, server: ServerState, client: ClientState, learner: FlatLearner
) -> tuple[Tensor, Tensor]:
    """The (shared, private) weights of a client's model; its statistics are loaded into the learner's model."""
    model, here = learner.model, replace(server, shared=learner.here(0, server.shared))
    weights = algorithm.personal_weights(here, client.private.unsqueeze(0).to(learner.device), learner)
    own = client.memory.get(STATISTICS, model.statistics.initial).to(learner.device)
    model.statistics.write(_with_shared(own, server, learner))
    return weights.row(0)


@dataclass(frozen=True)
class Answers:
    """The participants' answers in a round, in the order of the plan."""

    gamma: Floats  # (participants,) weights
    loss: Floats
    samples: Ints
    entries: Ints
    coded_bits: Floats | None  # None without the codec
    total: Tensor | None  # (d_shared,) float64 sum of gamma x upload (`compression.exact`); None with `single`
    uploads: tuple[Upload, ...]  # every upload; empty unless `single`
    statistics: Tensor | None  # float64 sum of gamma x shared running statistics
    reach: Floats | None = None  # (participants,) of `compression.exact.reach`; None with `single`
    signals: Floats | None = None  # (participants, SIGNALS) where clients report them


class Partial(NamedTuple):
    """The weighted sum of some clients' uploads, and how near each comes to what such a sum can hold."""

    total: Tensor  # (d_shared,) float64
    reach: Floats  # (C,)


def summed(uploads: Uploads, gamma: Floats, total: Tensor) -> Partial:
    """Add uploads to `total` (d_shared,), which is returned."""
    uploads.add_to(total, gamma)
    return Partial(total, exact.reach(uploads.largest(), gamma))


def check_range(answers: Answers, participants: Sequence[int], training: Training, number: int) -> None:
    """Refuse answers whose sum could depend on the order of the clients: they are too large to be of any use."""
    reach = answers.reach
    if reach is None or not len(reach) or (reach.max() < exact.ADDEND and reach.sum() < exact.TOTAL):
        return
    worst = int(np.argmax(np.where(np.isnan(reach), np.inf, reach)))
    raise DivergedError(
        f"Client {participants[worst]} diverged in round {number} while training: what it sends is {reach[worst]:.3g} "
        f"times as large as a sum can hold, at learning rate {training.rate(number):g}. Lower training.learning_rate "
        "(or scale the targets, where numbers are predicted) and start again."
    )


class Collector:
    """Collects the answers of a round, which arrive in the order of the plan."""

    def __init__(self, size: int, *, single: bool, wire: str | None = None, device: torch.device = CPU) -> None:
        # MPS has no float64: its uploads are added up by the processor.
        self._device = CPU if device.type == "mps" else device
        self.wire = wire  # value type of coded uploads; None: uploads are not coded
        self._single = single
        self._total = None if single else exact.zeros(size, self._device)
        self._gamma: list[Floats] = []
        self._columns: list[tuple[Floats, Ints, Ints]] = []
        self._bits: list[int] = []
        self._uploads: list[Upload] = []
        self._statistics: Tensor | None = None
        self._reach: list[Floats] = []
        self._signals: list[Floats] = []

    def receive(self, gamma: Floats, updates: Updates, partial: Partial | None = None) -> None:
        """Add some clients' answers; `partial` is the weighted sum of their uploads, if it is known already."""
        self._gamma.append(gamma)
        self._columns.append((updates.loss, updates.samples, updates.uploads.entries))
        self._signals += [] if updates.signals is None else [updates.signals]
        uploads = updates.uploads
        if self.wire is not None:
            uploads = Listed([self._through_wire(upload, self.wire) for upload in uploads])
        if self._single or self.wire is not None or self._device.type == "cpu":
            uploads = Listed([upload.cpu() for upload in uploads]) if isinstance(uploads, Listed) else uploads
        if self._single:
            self._uploads += uploads
        elif self._total is not None and partial is not None:
            # With numpy: torch would use threads that keep spinning afterwards and take cores from the workers.
            np.add(self._total.numpy(), partial.total.numpy(), out=self._total.numpy())
            self._reach.append(partial.reach)
        elif self._total is not None:
            self._reach.append(summed(uploads, gamma, self._total).reach)
        if updates.statistics is not None:
            self._receive_statistics(gamma, updates.statistics)

    def answers(self) -> Answers:
        """The answers of all participants."""
        gamma = np.concatenate(self._gamma)
        loss, samples, entries = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        bits = None if self.wire is None else np.array(self._bits, dtype=float)
        reach = np.concatenate(self._reach) if self._reach else None
        total = None if self._total is None else self._total.cpu()
        signals = np.concatenate(self._signals) if self._signals else None
        uploads = tuple(self._uploads)
        return Answers(gamma, loss, samples, entries, bits, total, uploads, self._statistics, reach, signals)

    def _receive_statistics(self, gamma: Floats, rows: Tensor) -> None:
        if self._statistics is None:
            self._statistics = exact.zeros(rows.shape[1])
        exact.add_rows(self._statistics, self._coded(rows), gamma, exact.STATISTICS)
        if self._reach:
            wide = exact.reach(exact.largest(rows), gamma, exact.STATISTICS)
            self._reach[-1] = np.maximum(self._reach[-1], wide)

    def _through_wire(self, upload: Upload, dtype: str) -> Upload:
        read, bits = through_wire(upload, dtype)
        self._bits.append(bits)
        return read

    def _coded(self, statistics: Tensor) -> Tensor:
        """Statistics as the server receives them; with a codec, their bits are added to the clients' counts."""
        if self.wire is not None:
            for place, row in enumerate(statistics, start=len(self._bits) - len(statistics)):
                self._bits[place] += through_wire(Upload(len(row), row), "float32")[1]
        return statistics
