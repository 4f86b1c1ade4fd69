"""What the ranks of a test do, each in a process forked from a warm one, and how they are started and heard."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import FileStore

from leanfed.algorithms import ALGORITHMS, Training
from leanfed.algorithms.learner import one_thread
from leanfed.errors import LeanfedError
from leanfed.rounds.loop import start
from leanfed.rounds.ranks import Ranks, RankSettings
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.runs import ranked
from leanfed.runs.ranked import run_on
from leanfed.runs.settings import Settings
from leanfed.simulation.bench import noise
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.process_group import ProcessGroup
from leanfed.tasks.partition import Partition
from leanfed.tasks.task import Task, TaskSettings, build_task

Job = Callable[..., Any]
CLASS_2 = {"kind": "class", "classes_per_client": 2, "clients": 5}
COHORTS = ((0, 1, 4), (1, 2, 3))  # with four ranks one has nobody in either round


def on_ranks(
    size: int,
    folder: Path,
    job: Job,
    *arguments: Any,
    patience_s: float = 240.0,
    victim: tuple[int, float] | None = None,
) -> list[Any]:
    """What the job returns on every rank, or [the error's exit code, its words]; None where a rank died.

    `victim` is a rank to kill, and after how many seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.rank_warm"])
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    store = str(folder / f"store-{job.__name__}-{size}-{len(list(folder.glob('store-*')))}")
    Path(f"{store}-begun").touch()
    ranks = [
        context.Process(target=_rank, args=(store, rank, size, job, arguments, sending), daemon=True)
        for rank, (_, sending) in enumerate(pipes)
    ]
    for rank, (_, sending) in zip(ranks, pipes, strict=True):
        rank.start()
        sending.close()  # so that a rank's death ends its pipe
    if victim is not None:
        timer = threading.Timer(victim[1], ranks[victim[0]].kill)
        timer.start()
    try:
        return [_heard(hearing, patience_s) for hearing, _ in pipes]
    finally:
        if victim is not None:
            timer.cancel()
        for rank in ranks:
            rank.join(timeout=5)
            rank.kill()


def _heard(hearing: Connection, patience_s: float) -> Any:
    if not hearing.poll(patience_s):
        raise TimeoutError("a rank neither answers nor ends")
    try:
        return hearing.recv()
    except EOFError:
        return None


def _rank(store: str, rank: int, size: int, job: Job, arguments: Sequence[Any], answer: Connection) -> None:
    torch.set_num_threads(1)
    group = ProcessGroup(FileStore(store, size), rank, size, RankSettings(timeout_s=60), on_host=size)
    try:
        answer.send(job(group, *arguments))
    except LeanfedError as error:
        answer.send([error.exit_code, str(error), error.silent])
    answer.close()
    group.leave()


def digest(*tensors: torch.Tensor) -> str:
    """SHA-256 of tensors' bytes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def states(ranks: Ranks, cases: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Digests of all that two rounds and a test of each (method, engine) leave behind, as `played` has them."""
    task, found = build_task(TaskSettings(partition=CLASS_2), seed=3), {}
    with one_thread():
        for method, engine in cases:
            fed_back = method == "flpdsp"
            world = World(
                task,
                ALGORITHMS[method](**({"sparsify": {"error_feedback": True}} if fed_back else {})),
                Training(batch_size=8, momentum=0.5 if fed_back else 0.0),
                Participation(cohorts=COHORTS),
            )
            found |= {f"{method} {engine} {key}": value for key, value in played(ranks, world, engine).items()}
    return found


def normalised(ranks: Ranks, statistics: str, task: Task) -> dict[str, str]:
    """The same for a model with running statistics, the clients' own or shared."""
    task = replace(task, settings=task.settings.model_copy(update={"statistics": statistics}))
    world = World(task, ALGORITHMS["flpdsp"](k=0.1), Training(batch_size=4), Participation(cohorts=COHORTS))
    with one_thread():
        return played(ranks, world, "streamed")


def tiny_norm(ranks: Ranks, statistics: str) -> dict[str, str]:
    """Two convolutions with batch normalisation."""
    import tests.conftest  # noqa: F401  (registers the model)

    return normalised(ranks, statistics, build_task(TaskSettings(model="tiny-norm", partition=CLASS_2), seed=3))


def resnet18(ranks: Ranks, statistics: str) -> dict[str, str]:
    """ResNet-18 on noise."""
    task = noise("resnet18")
    rows = tuple(np.arange(8 * client, 8 * client + 8) for client in range(5))
    return normalised(ranks, statistics, replace(task, partition=Partition(rows, rows)))


def played(ranks: Ranks, world: World, name: str, rounds: int = 2) -> dict[str, str]:
    """Digests after some rounds: of the server, of what rows are made of, and of every client that lives here."""
    engine, progress = choose_engine(world, name, threads=1, ranks=ranks), start(world)
    server, clients = progress.server, progress.clients
    for number in range(rounds):
        outcome = engine.run_round(server, clients, world.plan(number))
        server = outcome.server
    tested = engine.evaluate(server, clients)
    columns = (outcome.loss, outcome.samples, outcome.entries, tested.loss_per_client, tested.accuracy_per_client)
    found = {
        "server": digest(server.shared, *(server.memory[name] for name in sorted(server.memory))),
        "rows": digest(*map(torch.from_numpy, columns)),
    }
    for client in ranks.owns(range(world.task.clients)):
        state = clients[client]
        found[f"client {client}"] = digest(state.private, *(state.memory[name] for name in sorted(state.memory)))
    return found


def whole_run(ranks: Ranks, values: dict[str, Any], folder: str, killed: tuple[int, int] | None = None) -> int | None:
    """A run in its folder; the number of rounds on the first rank. `killed` is a rank, and the round it dies in."""
    if killed is not None and killed[0] == ranks.rank:
        lasting, rounds = World.alone, killed[1]

        def alone(world: World, state: Any, client: int, number: int, *rates: Any) -> Any:
            if number == rounds:
                os.kill(os.getpid(), signal.SIGKILL)
            return lasting(world, state, client, number, *rates)

        World.alone = alone  # type: ignore[method-assign]
    done = run_on(ranks, Settings.from_values(values), Path(folder))
    return None if done is None else done.rounds.height


def own_folder(ranks: Ranks, values: dict[str, Any], folder: str) -> int | None:
    """A run whose ranks have a folder each."""
    ranked.PATIENCE_S = 0.5
    return whole_run(ranks, values, f"{folder}-{ranks.rank}")


def own_settings(ranks: Ranks, values: dict[str, Any], folder: str, key: str) -> int | None:
    """A run whose ranks disagree on a setting."""
    return whole_run(ranks, {**values, key: values[key] + ranks.rank}, folder)


def merged(answers: Sequence[dict[str, str]]) -> dict[str, str]:
    """The digests of all ranks; those that several have must be alike."""
    together: dict[str, str] = {}
    for answer in answers:
        for key, value in answer.items():
            assert together.setdefault(key, value) == value, f"ranks differ in {key}"
    return together
