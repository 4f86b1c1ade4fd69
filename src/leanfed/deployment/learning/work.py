"""A node's work, independent of Flower: settle the store, test, train, encode, store the new state, answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.contract import ClientState, ServerState
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.uploads import Upload
from leanfed.deployment.learning.config import NodeConfig, read_settings
from leanfed.deployment.learning.device import EnergyMeter, battery, calibrate
from leanfed.deployment.learning.messages import UNKNOWN, Answer, Device, Hello, MessageError, Order
from leanfed.deployment.learning.store import NodeStore
from leanfed.deployment.learning.views import followed, name_of, read_base
from leanfed.deployment.masking.answers import Hidden, covered
from leanfed.deployment.masking.node import Cover, MaskRefusedError
from leanfed.errors import SettingsError
from leanfed.rounds.evaluation import client_result
from leanfed.rounds.exchange import train
from leanfed.rounds.wire import to_frame
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings
from leanfed.simulation.devices import device_of
from leanfed.tasks.guess import guess_score
from leanfed.tasks.task import build_task


@dataclass(frozen=True)
class Bench:
    """What a node computes with: the world with this client's data, and a model."""

    settings: Settings
    world: World
    learner: FlatLearner

    @property
    def shows(self) -> bool:
        """Whether losses, tests and guesses leave the node; it decides by the settings, whatever an order says."""
        return self.world.metrics == "shown"


used: list[tuple[str, NodeConfig]] = []  # arguments of `bench_of` in this process, for a warm parent to preload


def bench_of(settings_text: str, node: NodeConfig) -> Bench:
    """Data, method and model, cached for the life of the process, so that a warm node loads them once."""
    used[:] = [(settings_text, node)]
    bench = _bench(settings_text, node.data_root, node.client_id if node.data == "own" else None)
    clients = bench.world.task.clients
    if node.client_id >= clients:
        raise SettingsError(f"node-config: client-id is {node.client_id}, but the settings have {clients} clients.")
    return bench


@lru_cache(maxsize=1)  # many virtual nodes in one process share it
def _bench(settings_text: str, data_root: Path | None, owner: int | None) -> Bench:
    torch.set_num_threads(1)  # so that results do not depend on the machine
    settings = read_settings(settings_text)
    task = build_task(settings.task, settings.seed, data_root, owner=owner)
    if task.loss.judged_by != "accuracy":
        raise SettingsError("Devices report accuracies, which this task does not have. Choose a task with classes.")
    world = World(
        task,
        settings.algorithm,
        settings.training,
        settings.participation,
        renew_statistics=settings.evaluation.renew_statistics,
        tuning=settings.evaluation.tuning(settings.algorithm, settings.training),
        values=settings.radio.values or "float32",
        metrics=settings.privacy.metrics,
        reports=settings.allocation.measures,
        device=device_of(settings.run.device),
        precision=settings.run.precision,
    )
    return Bench(settings, world, world.new_learner())


def greet(run: str, settings_text: str, node: NodeConfig) -> tuple[Hello, Device]:
    """The node's identity and data, and its device."""
    bench, client = bench_of(settings_text, node), node.client_id
    task = bench.world.task
    with NodeStore(Path(node.store), run, client, bench.settings.seed).open() as store:
        last, view = store.round, store.view_name
    rows, tests, shown = task.partition.train[client], task.partition.test[client], bench.shows
    guess = guess_score(task.loss, task.train.labels[rows], task.test.labels[tests], task.outputs) if shown else None
    hello = Hello(
        client=client,
        samples=len(rows),
        test_samples=len(tests) if shown else None,
        majority_guess=guess,
        round=last,
        view=view,
        sent_at=time.time(),
    )
    return hello, Device(flops_per_s=calibrate(), battery=battery())


def carry_out(
    order: Order, frames: Sequence[bytes], settings_text: str, node: NodeConfig, hidden: Hidden | None = None
) -> tuple[Answer, Device]:
    """One client's round: returns the answer to an order; the head stays in the store.

    `hidden` says how the update is masked, where the run masks updates.
    """
    began = time.perf_counter()
    bench, client = bench_of(settings_text, node), node.client_id
    if order.client != client:
        raise MessageError("malformed", f"the order is for client {order.client}, this node is client {client}")
    with NodeStore(Path(node.store), order.run, client, bench.settings.seed).open() as store:
        shared = _shared(order, frames, bench, store)
        cover = None
        if hidden is not None and order.train:
            cover = hidden.prepared(bench.settings, order, store, node, name_of(shared))
        settled = store.settle(order.applied, order.applied_token)
        found = time.perf_counter()
        state = settled.state or bench.world.algorithm.start_client(bench.world.task, client)
        ready = time.perf_counter()
        tested = _test(bench, shared, state, client) if order.evaluate and bench.shows else (None, None)
        done = time.perf_counter()
        answer: dict[str, object] = {"store": settled.standing, "ready_s": found - began, "test_s": done - ready}
        answer |= {"prepare_s": ready - found} if settled.state is None else {}
        answer |= {"accuracy": tested[0], "test_loss": tested[1]}
        device = Device(flops_per_s=calibrate(), battery=battery())
        if order.train:
            trained, device = _train(bench, shared, state, order, store, device, cover)
            answer |= trained
    heading = order.model_dump(include={"run", "token", "round", "client"})
    return Answer.model_validate({"train_s": 0.0, **heading, **answer, "sent_at": time.time()}), device


def _train(
    bench: Bench,
    shared: Tensor,
    state: ClientState,
    order: Order,
    store: NodeStore,
    device: Device,
    cover: Cover | None,
) -> tuple[dict[str, object], Device]:
    """Train and store the new state; returns the coded update with its measurements, and the device."""
    began, meter = time.perf_counter(), EnergyMeter.start()
    cohort = bench.world.alone(state, order.client, order.round, order.k, order.r, order.head_steps)
    updates = train(bench.world.algorithm, ServerState(shared), cohort, bench.learner)
    if updates.statistics is not None:
        raise SettingsError(
            "A frame holds an update only. Set task.statistics = 'private', so that nothing else travels."
        )
    seconds, joules, samples = time.perf_counter() - began, meter.joules(), int(updates.samples[0])
    (upload,) = updates.uploads
    sent = _coded(upload, bench, order, store, cover)
    store.hold(updates.state(0), order.round, order.token)
    loss = float(updates.loss[0]) if bench.shows else None
    trained: dict[str, object] = {**sent, "loss": loss, "samples": samples, "train_s": seconds}
    if updates.signals is not None:
        trained["signals"] = np.nan_to_num(updates.signals[0], nan=UNKNOWN).tolist()
    measured: dict[str, float | None] = {
        "step_s": seconds,
        "step_samples": samples,
        "step_r": order.r,
        "step_j": joules,
    }
    measured["step_head_steps"] = order.head_steps
    return trained, device.model_copy(update=measured)


def _coded(upload: Upload, bench: Bench, order: Order, store: NodeStore, cover: Cover | None) -> dict[str, bytes | str]:
    """The update as it travels, coded or masked; what is sent is noted first."""
    if cover is None:
        if bench.settings.radio.masked_sum:
            raise MaskRefusedError("the run masks its updates, and this one would be sent as it is")
        frame = to_frame(upload, bench.settings.radio.wire_type)
        store.note_sent(order.round, frame)
        return {"frame": frame}
    frame, bound, cut = covered(cover, upload)
    store.note_sent(order.round, frame, cut=cut)
    return {"frame": frame, "masked": bound}


def _test(bench: Bench, shared: Tensor, state: ClientState, client: int) -> tuple[float, float]:
    """(accuracy, mean loss) of the client's own model on its own test set."""
    result = client_result(bench.world, ServerState(shared), state, bench.learner, client)
    return result.scores["accuracy"], result.loss


def _shared(order: Order, frames: Sequence[bytes], bench: Bench, store: NodeStore) -> Tensor:
    """The shared part to train on; where differences are sent, the node keeps it for the next of them."""
    size = bench.world.vector_size
    if order.views is None:
        return read_base(frames, size)
    view = followed(store.view(), order.views, frames, size)
    store.keep_view(view, order.views[-1])
    return view
