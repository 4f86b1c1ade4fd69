"""Every method on another device: the pretend one of tests/pretend_device.py here, a real GPU under the mark `gpu`.

The pretend device must be registered before torch differentiates for the first time, so `test_devices.py` runs this
file in a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.contract import Cohort
from leanfed.algorithms.learner import one_thread
from leanfed.compression.picks import NumpyPicks, places
from leanfed.compression.tensor_picks import TensorPicks
from leanfed.errors import SettingsError
from leanfed.rounds.engine import Engine
from leanfed.rounds.loop import start
from leanfed.rounds.world import World
from leanfed.runs.carry_out import run
from leanfed.runs.settings import Settings
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.devices import device_of
from leanfed.simulation.pipeline import ahead, behind
from leanfed.streams import stream
from leanfed.tasks.batch import Batch
from leanfed.tasks.task import TaskSettings, build_task
from leanfed.tasks.transfer import arrival, returned
from tests import pretend_device
from tests.rank_jobs import COHORTS, digest
from tests.thinned import by_default

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ALGORITHMS},
    "flpdsp, error feedback": {"name": "flpdsp", "k": 0.1, "sparsify": {"error_feedback": True}, "head_steps": 2},
    "flpdsp, common": {"name": "flpdsp", "k": 0.1, "sparsify": {"select": "common"}},
    "flpdsp, random": {"name": "flpdsp", "k": 0.1, "sparsify": {"select": "random"}, "prune": {"score": "random"}},
}
# Methods that keep or send something of their own.
SENDING = ("fedmask", "scaffold", "apfl", "spafl", "flpdsp, error feedback", "flpdsp, common")


def world_on(world_of, values: dict[str, Any], device: torch.device | None = None, **training: Any) -> World:
    """Three of five clients a round, with momentum."""
    method = ALGORITHMS[values["name"]](**{key: value for key, value in values.items() if key != "name"})
    here = world_of(method, participation={"cohorts": COHORTS}, **{"batch_size": 8, "momentum": 0.5, **training})
    return here if device is None else replace(here, device=device)


def play(engine: Engine, rounds: int = 2) -> dict[str, str]:
    """Digests of the server, of rows and of every client after some rounds and a test."""
    progress = start(engine.world)
    server, clients = progress.server, progress.clients
    with one_thread():
        for number in range(rounds):
            outcome = engine.run_round(server, clients, engine.world.plan(number))
            server = outcome.server
        tested = engine.evaluate(server, clients)
    columns = (outcome.loss, outcome.entries, tested.loss_per_client, tested.accuracy_per_client)
    kept = clients.snapshot(range(5))
    return {
        "server": digest(server.shared, *(server.memory[name] for name in sorted(server.memory))),
        "rows": digest(*map(torch.from_numpy, columns)),
        **{name: digest(rows) for name, rows in kept.items()},
    }


@pytest.mark.parametrize("state", ["kept", "dropped"])
def test_an_optimiser_has_the_same_bits_on_a_device(state: str, world_of) -> None:
    adam = {"optimizer": "adam", "optimizer_state": state, "optimizer_rate": 0.01, "local_steps": 2}
    there, here = (
        play(choose_engine(world_on(world_of, VARIANTS["fedper"], device, **adam), "streamed", threads=1))
        for device in (pretend_device.device(), None)
    )
    assert there == here


@pytest.mark.parametrize("values", ["bfloat16", "log8"])
def test_coded_values_have_the_same_bits_on_a_device(values: str, world_of) -> None:
    worlds = [
        replace(world_on(world_of, VARIANTS["flpdsp, error feedback"], device), values=values)
        for device in (pretend_device.device(), None)
    ]
    there, here = (play(choose_engine(world, "streamed", threads=1)) for world in worlds)
    assert there == here


# By default one of every kind of state: none of its own, personal models, masks, memories here and there, choices.
@pytest.mark.parametrize("variant", by_default(VARIANTS, "fedavg", *SENDING, "flpdsp, random"))
def test_a_method_has_the_same_bits_on_a_device(variant: str, world_of) -> None:
    values = VARIANTS[variant]
    there = play(choose_engine(world_on(world_of, values, pretend_device.device()), "streamed", threads=1))
    assert there == play(choose_engine(world_on(world_of, values), "streamed", threads=1))


@pytest.mark.parametrize("statistics", ["private", "shared"])
def test_running_statistics_are_the_same_on_a_device(statistics: str, world_of) -> None:
    settings = TaskSettings(model="tiny-norm", statistics=statistics, partition=build_partition())
    worlds = [
        replace(world_on(world_of, VARIANTS["flpdsp"], device), task=build_task(settings, seed=3))
        for device in (None, pretend_device.device())
    ]
    ends = [play(choose_engine(world, "reference")) for world in worlds]
    assert ends[0] == ends[1]


def build_partition() -> Any:
    return {"kind": "class", "classes_per_client": 2, "clients": 5}


# Engines wait, but for what a method reads of its answer: by default those that keep or send something of their own.
@pytest.mark.parametrize("variant", by_default(VARIANTS, *SENDING))
def test_a_client_waits_once(variant: str, world_of) -> None:
    """For its loss; then a round waits for what the last client keeps and for the sum.

    How many bits a client of FedMask sends follows from its mask, which only the device knows: another wait.
    """
    engine = choose_engine(world_on(world_of, VARIANTS[variant], pretend_device.device()), "reference")
    progress = start(engine.world)
    server = engine.run_round(progress.server, progress.clients, engine.world.plan(0)).server
    pretend_device.COUNTS["waits"] = 0
    plan = engine.world.plan(1)
    engine.run_round(server, progress.clients, plan)
    each = 2 if variant == "fedmask" else 1
    assert pretend_device.COUNTS["waits"] <= each * len(plan.participants) + 2


def test_a_round_copies_the_shared_vector_once_and_further_steps_wait_for_nothing(world_of) -> None:
    values = VARIANTS["flpdsp, error feedback"]
    counted = []
    for steps in (1, 3):
        engine = choose_engine(world_on(world_of, values, pretend_device.device(), local_steps=steps), "streamed")
        progress = start(engine.world)
        pretend_device.COUNTS.update(dict.fromkeys(pretend_device.COUNTS, 0))
        engine.run_round(progress.server, progress.clients, engine.world.plan(0))
        counted.append(dict(pretend_device.COUNTS))
    clients, shared = 3, len(progress.server.shared)
    assert counted[1]["waits"] == counted[0]["waits"] == clients + 2
    own = sum(rows.shape[1] for name, rows in progress.clients.snapshot(range(1)).items() if "." not in name)
    assert counted[0]["values to device"] <= shared + clients * (own + 8 * (32 * 32 + 1))


def test_the_largest_entries_are_those_of_the_processors_rule() -> None:
    rng = stream(1, "ties")
    for _ in range(200):
        rows = torch.from_numpy(rng.integers(-3, 4, (2, 30)).astype(np.float32))
        counts = rng.integers(0, 32, 2)
        ours, theirs = TensorPicks().largest(rows, counts, 29), NumpyPicks().largest(rows, counts, 29)
        assert torch.equal(ours.mask(), theirs.mask())
        assert torch.equal(ours.rest(), theirs.rest())
        assert all(torch.equal(ours.positions(row), theirs.positions(row)) for row in range(2))
        sums = [torch.zeros(29, dtype=torch.float64) for _ in range(2)]
        for total, chosen in zip(sums, (ours, theirs), strict=True):
            chosen.add_to(total, np.array([0.3, 0.7]))
        assert torch.equal(*sums)


@pytest.mark.parametrize("size", [1, 7, 30])
def test_the_places_of_a_mask_are_found_without_a_wait(size: int) -> None:
    rng = stream(2, "masks", size)
    for count in range(size + 1):
        chosen = np.sort(rng.choice(size, count, replace=False))
        mask = torch.zeros(size)
        mask[chosen] = 1
        pretend_device.COUNTS["waits"] = 0
        found = places(mask.to(pretend_device.device()), count)
        assert pretend_device.COUNTS["waits"] == 0
        assert found.cpu().tolist() == places(mask, count).tolist() == chosen.tolist()


def test_what_is_no_number_is_sent_from_a_device() -> None:
    rows = torch.tensor([[1.0, float("nan"), 3.0, float("inf")]]).to(pretend_device.device())
    chosen = TensorPicks().largest(rows, np.array([2]), 4)
    assert chosen.positions(0).cpu().tolist() == [1, 3]


def test_the_next_client_is_brought_to_the_device_while_one_is_in_work(world_of) -> None:
    world = world_on(world_of, VARIANTS["fedper"], pretend_device.device())
    clients, drawn = start(world).clients, [threading.Event() for _ in range(3)]

    def cohort(client: int) -> Cohort:
        made = world.alone(clients[client], client, 0, 1.0, 1.0)

        def batches() -> Iterator[Batch]:
            for batch in made.batches:
                drawn[client].set()
                yield batch

        return replace(made, batches=batches())

    for client, there in enumerate(ahead(map(cohort, range(3)), world.device)):
        assert drawn[min(client + 1, 2)].wait(60), "nobody prepared the next one"
        assert not any(event.is_set() for event in drawn[client + 2 :])  # one ahead, and no more
        assert there.private.device == next(iter(there.batches)).inputs.device == world.device
        assert torch.equal(there.private.cpu()[0], clients[client].private)


def test_an_answer_read_before_it_has_arrived_is_of_no_use() -> None:
    """The pretend device notices who does not wait, and `behind` does not."""
    there = torch.arange(4.0).to(pretend_device.device())
    early = returned(there)
    wait = arrival(there.device)
    assert early.isnan().all()
    wait()
    assert early.tolist() == [0, 1, 2, 3]
    later = behind((returned(there * n) for n in range(3)), there.device)
    assert [answer.sum().item() for answer in later] == [0, 6, 12]


def test_the_pretend_device_refuses_a_mixture() -> None:
    there = torch.ones(2).to(pretend_device.device())
    with pytest.raises(RuntimeError, match="mixes"):
        there + torch.ones(2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(name: str, tmp_path) -> None:
    settings = Settings.from_values({"rounds": 1, "run": {"device": name}})
    with pytest.raises(SettingsError, match=f"run.device = '{name}' is not there: .* Set run.device = 'auto' or 'cpu'"):
        run(settings, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    assert device_of("auto").type in ("cpu", "mps")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"run\.device is 'gpu', but"):
        Settings.from_values({"run": {"device": "gpu"}})


def test_bfloat16_learns_nearly_the_same_with_float32_states(world_of) -> None:
    world = world_on(world_of, VARIANTS["fedper"])
    engines = [
        choose_engine(replace(world, precision=precision), "streamed", threads=1)
        for precision in ("float32", "bfloat16")
    ]
    ends = []
    for engine in engines:
        progress = start(world)
        ends.append(engine.run_round(progress.server, progress.clients, world.plan(0)).server.shared)
        assert progress.clients[0].private.dtype == torch.float32
    gap = (ends[0] - ends[1]).norm() / (ends[0] - start(world).server.shared).norm()
    assert 1e-6 < gap < 0.1  # bfloat16 has eight bits of mantissa


def test_layers_for_several_clients_are_chosen_on_a_device_and_compute_what_the_processor_does(world_of) -> None:
    world = world_on(world_of, VARIANTS["fedper"])
    assert choose_engine(replace(world, precision="bfloat16")).name == "streamed"
    there = choose_engine(replace(world, device=pretend_device.device()))
    assert there.name == "stacked"
    ends = []
    for engine in (there, choose_engine(world, "stacked")):
        progress = start(engine.world)
        ends.append(engine.run_round(progress.server, progress.clients, world.plan(0)))
    assert torch.equal(ends[0].server.shared, ends[1].server.shared)
    assert ends[0].loss.tolist() == ends[1].loss.tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_method_learns_on_a_gpu_as_on_the_processor(variant: str, world_of) -> None:
    name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
    if name is None:
        pytest.skip("there is no GPU")
    worlds = [world_on(world_of, VARIANTS[variant], device) for device in (None, device_of(name))]
    ends = []
    for world in worlds:
        progress, engine = start(world), choose_engine(world, "streamed", threads=1)
        ends.append(engine.run_round(progress.server, progress.clients, world.plan(0)))
    expected, found = ends
    assert (found.server.shared - expected.server.shared).norm() <= 1e-3 * expected.server.shared.norm() + 1e-6
    assert np.allclose(found.loss, expected.loss, rtol=1e-3)


def test_a_node_computes_on_the_device_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds over a grid in memory: the same rows and weights, and the device was really used."""
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    from leanfed.deployment.learning import work
    from tests.unit.deployment.fleets import Trial, settings_of
    from tests.unit.deployment.identity import as_run_one

    settings = settings_of(algorithm={"name": "flpdsp", "k": 0.1, "sparsify": {"error_feedback": True}})
    found = {}
    for name, device in (("here", torch.device("cpu")), ("there", pretend_device.device())):
        monkeypatch.setattr(work, "device_of", lambda asked, device=device: device)
        work._bench.cache_clear()
        pretend_device.COUNTS["to device"] = 0
        trial = Trial(settings, tmp_path / name, {"fleet": "profile"})
        with as_run_one():
            trial.play()
        assert (pretend_device.COUNTS["to device"] > 0) is (name == "there")
        found[name] = trial.table("rounds")
    work._bench.cache_clear()
    same = ("train_loss", "accuracy", "loss", "entries")
    assert all(found["here"][column].to_list() == found["there"][column].to_list() for column in same)
