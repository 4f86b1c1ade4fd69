"""One exchange as a simulator or a device makes it: the method, with the client's running statistics around it.

Methods know weights and gradients only. What a model keeps beside them (running statistics of normalisation layers) is
put in place before a client trains and taken away after it, so that no client ever computes with another's. Where a
task shares the statistics of shared layers, they travel beside the upload and the server averages them after the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from leanfed.algorithms.base import Algorithm, ClientState, ClientUpdate, Job, ServerState, Training, Upload
from leanfed.errors import InputError
from leanfed.streams import stream_seed
from leanfed.tasks.split import FlatModel

STATISTICS = "statistics"  # the memory of clients (all statistics) and of the server (those that are shared)


def train_client(
    algorithm: Algorithm, server: ServerState, client: ClientState, job: Job, model: FlatModel
) -> ClientUpdate:
    """`algorithm.client_update` with the client's own statistics, and with dropout drawn from a stream of the job."""
    model.statistics.write(personal_statistics(server, client, model))
    with _drawing_from(job) if model.random else nullcontext(), _enough_samples(job):
        update = algorithm.client_update(server.shared, client, job, model)
    if model.statistics.size == 0:
        return update
    after, places = model.statistics.read(), model.statistics.places
    state = ClientState(update.client.private, {**update.client.memory, STATISTICS: after})
    upload = replace(update.upload, statistics=after[places]) if len(places) else update.upload
    return replace(update, client=state, upload=upload)


@contextmanager
def _drawing_from(job: Job) -> Iterator[None]:
    """What a model draws in training (dropout) follows from seed, round and client; torch's generator is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(job.seed, "dropout", job.round, job.client) % 2**63)
        yield


@contextmanager
def _enough_samples(job: Job) -> Iterator[None]:
    """Say what to do where torch says that one value has no variance."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            f"Client {job.client} has a batch of a single sample in round {job.round}, which batch normalisation "
            "cannot use. Change training.batch_size, or set training.local_steps in place of local_epochs."
        ) from error


def personal_statistics(server: ServerState, client: ClientState, model: FlatModel) -> Tensor:
    """What a client computes with: its own statistics, and the server's where they are shared."""
    own, shared = client.memory.get(STATISTICS, model.statistics.initial), server.memory.get(STATISTICS)
    return own if shared is None else own.index_copy(0, model.statistics.places, shared)


def personal_model(algorithm: Algorithm, server: ServerState, client: ClientState, model: FlatModel) -> Tensor:
    """The weights that a client uses; the model is left with the statistics that go with them."""
    weights = algorithm.personal_weights(server, client, model)
    model.statistics.write(personal_statistics(server, client, model))
    return weights


def update_server(
    algorithm: Algorithm,
    server: ServerState,
    uploads: Iterable[tuple[float, Upload]],
    training: Training,
    round_number: int,
) -> ServerState:
    """`algorithm.server_update`, and the gamma-weighted mean of the statistics that came along, if any did."""
    total, weight = torch.empty(0), 0.0

    def passing() -> Iterator[tuple[float, Upload]]:
        nonlocal total, weight
        for gamma, upload in uploads:
            if upload.statistics is not None:
                total = gamma * upload.statistics if weight == 0 else total.add_(upload.statistics, alpha=gamma)
                weight += gamma
            yield gamma, upload

    after = algorithm.server_update(server, passing(), training, round_number)
    return ServerState(after.shared, {**after.memory, STATISTICS: total / weight}) if weight > 0 else after
