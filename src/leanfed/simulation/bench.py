"""The time of a round as a ratio to plain centralised training on the same samples, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.algorithms.contract import PRIVATE, Training
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.errors import SettingsError
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import Engine
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.choose import choose_engine, warm
from leanfed.streams import stream
from leanfed.tasks.models import MODELS, LeNet5
from leanfed.tasks.partition import Partition
from leanfed.tasks.task import Images, Task, TaskSettings, build_task

CHUNKS = 10  # batches of the second baseline
SAMPLES_PER_CLIENT = 64


def engine_bench(
    clients: int | None = None,
    model: str = "lenet5",
    threads: int | None = None,
    batch: int = 32,
    repeats: int | None = None,
    grown: int | None = None,
) -> dict[str, float | int | str]:
    """Best time of a full FLPDSP round (k = 0.1, r = 0.8) against centralised training on the same samples.

    Defaults of `clients` and `repeats`: 100 and 7 for LeNet-5, 4 and 2 for a larger model. On a busy machine the ratios
    of processor time are reliable, those of wall-clock time are not. `growth` is the time of a round of `grown` clients
    over that of `clients`, in turns with it.

    >>> engine_bench(clients=100)["ratio_one_batch"]  # doctest: +SKIP
    0.12
    """
    small = model == "lenet5"
    clients, repeats = clients or (100 if small else 4), repeats or (7 if small else 2)
    threads = threads or torch.get_num_threads()
    world = bench_world(clients, model, batch)
    with torch_threads(threads):
        store = started(world)
        engine, extra = build_measured(world, store, threads)
        rivals = contestants(world, engine, store)
        if grown is not None:
            more = bench_world(grown, model, batch)
            rivals["grown"] = round_of(more, choose_engine(more, threads=threads), started(more))
        best, busy = best_times(rivals, repeats)
    growth: dict[str, float | int] = {}
    if grown is not None:
        growth = {"grown": grown, "growth": best["grown"] / best["round"], "cpu_growth": busy["grown"] / busy["round"]}
    return {
        "clients": clients,
        "batch": batch,
        "threads": threads,
        "model": model,
        "engine": engine.name,
        "round_s": best["round"],
        "one_batch_s": best["one_batch"],
        "chunked_s": best["chunked"],
        "ratio_one_batch": best["round"] / best["one_batch"],
        "ratio_chunked": best["round"] / best["chunked"],
        "cpu_ratio_one_batch": busy["round"] / busy["one_batch"],
        "cpu_ratio_chunked": busy["round"] / busy["chunked"],
        **growth,
        "peak_extra_mib": extra,
        "repeats": repeats,
    }


def round_of(world: World, engine: Engine, store: ClientStore) -> Callable[[], object]:
    """The first round of a world, however often it is called."""
    server, plan = world.algorithm.start_server(world.task), world.plan(0)
    return lambda: engine.run_round(server, store, plan)


def centralised(model: nn.Module, inputs: Tensor, labels: Tensor, size: int) -> None:
    """The baseline: plain forward and backward passes over all samples, `size` at a time."""
    model.zero_grad(set_to_none=False)
    for start in range(0, len(labels), size):
        part = slice(start, start + size)
        functional.cross_entropy(model(inputs[part]), labels[part]).backward()  # type: ignore[no-untyped-call]


class LinearLeNet5(nn.Module):
    """LeNet-5 with conv3, whose input has the size of its kernel, as a linear layer: the faster baseline."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        pool = nn.MaxPool2d(2)
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.ReLU(), pool, nn.Conv2d(6, 16, 5), nn.ReLU(), pool, nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 32, 32) -> (batch, classes)."""
        logits: Tensor = self.layers(images)
        return logits


def contestants(world: World, engine: Engine, store: ClientStore) -> dict[str, Callable[[], object]]:
    """The round and its two baselines; all use samples in memory."""
    batch = world.training.batch_size
    rows = np.concatenate([rows[:batch] for rows in world.task.partition.train])
    samples = world.task.train.batch(rows)
    whole = world.task.new_model("base")
    faster = LinearLeNet5(world.task.classes) if isinstance(whole, LeNet5) else whole
    count = len(rows)
    chunk = -(-count // CHUNKS) if isinstance(whole, LeNet5) else batch
    return {
        "round": round_of(world, engine, store),
        "one_batch": lambda: centralised(whole, samples.inputs, samples.labels, count),
        "chunked": lambda: centralised(faster, samples.inputs, samples.labels, chunk),
    }


def best_times(contestants: dict[str, Callable[[], object]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """(wall-clock, processor): the best time of each in seconds; they take turns, so other load affects all alike."""
    best, busy = (dict.fromkeys(contestants, float("inf")) for _ in range(2))
    for number in range(repeats + 1):
        for name, run in contestants.items():
            start, start_busy = time.perf_counter(), time.process_time()
            run()
            if number:  # the first pass is a warm-up
                best[name] = min(best[name], time.perf_counter() - start)
                busy[name] = min(busy[name], time.process_time() - start_busy)
    return best, busy


def bench_world(clients: int, model: str, batch: int) -> World:
    """Any number of clients on the embedded digits, or on noise for colour models; clients may share samples."""
    digits = picture_shape(model)[0] == 1
    task = build_task(TaskSettings(model=model), seed=0) if digits else noise(model)
    return World(
        replace(task, partition=shared_samples(task, clients, max(batch, SAMPLES_PER_CLIENT))),
        Flpdsp(k=0.1, r=0.8),
        Training(batch_size=batch),
        Participation(),
    )


def picture_shape(model: str) -> tuple[int, ...]:
    """The input shape of an image model; text models have no benchmark."""
    shape = MODELS[model].input_shape
    if shape is None:
        raise SettingsError(f"Model {model!r} takes texts, but the bench has pictures only. Choose another.")
    return shape


def noise(model: str) -> Task:
    """Random images of a model's input size: its speed does not depend on their content."""
    rng, shape, settings = stream(0, "noise"), picture_shape(model), TaskSettings(dataset="cifar10", model=model)
    pixels, labels = rng.integers(0, 256, (256, *shape), dtype=np.uint8), rng.integers(0, 10, 256)
    pictures = Images(pixels, labels, torch.full((shape[0], 1, 1), 0.5), torch.full((shape[0], 1, 1), 0.25))
    return Task(settings, 0, pictures, pictures, Partition((), ()))


def shared_samples(task: Task, clients: int, count: int) -> Partition:
    """`count` training rows for each client."""
    rng = stream(task.seed, "bench")
    rows = tuple(np.sort(rng.choice(len(task.train.labels), count, replace=False)) for _ in range(clients))
    return Partition(rows, rows)


def started(world: World) -> ClientStore:
    """A store in which every client's state is initialised."""
    store = world.new_clients()
    head, everyone = world.task.initial_private(world.split, 0), range(world.task.clients)
    store.prepare(PRIVATE, len(head), everyone)
    store.scatter(PRIVATE, everyone, head.expand(len(everyone), -1))
    store.mark(everyone, [PRIVATE])
    return store


def build_measured(world: World, store: ClientStore, threads: int) -> tuple[Engine, float]:
    """The engine, and the additional MiB that building it and running a round take."""
    warm()  # so that the compiler's memory is not counted
    before = reset_peak_bytes()
    engine = choose_engine(world, threads=threads)
    engine.run_round(world.algorithm.start_server(world.task), store, world.plan(0))
    return engine, (peak_bytes() - before) / 2**20


def reset_peak_bytes() -> float:
    """Reset the process's memory peak and return the bytes in use now; NaN if the system does not support it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): 5 resets the peak resident set size
    except OSError:
        return float("nan")
    return peak_bytes()


def peak_bytes() -> float:
    """The peak resident set size since the last reset."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return float(line.split()[1]) * 1024  # kB


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let the baselines use as many torch threads as the engine has workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
