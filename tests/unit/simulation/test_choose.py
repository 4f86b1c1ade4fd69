"""The engine that is chosen, why, and what is refused."""

from dataclasses import replace

import pytest

from leanfed.algorithms import ALGORITHMS, Training
from leanfed.errors import SettingsError
from leanfed.rounds.aggregation import Aggregation
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.batched import engine as batched
from leanfed.simulation.choose import choose_engine
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.task import TaskSettings, build_task


@pytest.fixture(scope="module")
def task():
    return build_task(TaskSettings(partition=PartitionSettings(kind="iid", clients=3)), seed=0)


def world_of(task, algorithm=None, **training):
    return World(task, algorithm or ALGORITHMS["flpdsp"](), Training(**training), Participation())


@pytest.mark.parametrize("name", ["flpdsp", "fedper", "lg-fedavg", "fedavg", "fedavg-s", "fedavg-p", "fedmask"])
def test_the_kernels_are_chosen_for_every_method(task, name):
    engine = choose_engine(world_of(task, ALGORITHMS[name]()))
    assert engine.name == "batched"
    assert engine.reason == "The batched engine trains chunks of clients at once with compiled kernels."


def test_without_numba_torch_alone_is_chosen(task, monkeypatch):
    monkeypatch.setattr(batched, "has_numba", lambda: False)
    assert choose_engine(world_of(task)).name == "batched-torch"
    with pytest.raises(SettingsError, match="numba, which compiles its kernels, is not installed"):
        choose_engine(world_of(task), "batched")


def test_what_does_not_fit_is_streamed(task):
    epochs = world_of(task, local_epochs=1)
    assert choose_engine(epochs).name == "streamed"
    assert "training.local_epochs gives clients different numbers of batches" in choose_engine(epochs).reason


@pytest.mark.parametrize("name", ["batched", "batched-torch"])
def test_an_engine_that_does_not_fit_is_refused(task, name):
    with pytest.raises(SettingsError, match=f"The {name!r} engine cannot run this: training.local_epochs"):
        choose_engine(world_of(task, local_epochs=1), name)


@pytest.mark.parametrize("name", ["reference", "streamed", "batched", "batched-torch"])
def test_an_engine_can_be_asked_for(task, name):
    engine = choose_engine(world_of(task), name, threads=1)
    assert engine.name == name
    assert engine.reason == f"The {name} engine was asked for."


def test_an_unknown_engine_is_refused_with_the_nearest(task):
    with pytest.raises(SettingsError, match="did you mean 'batched'"):
        choose_engine(world_of(task), "bached")


def test_large_batches_make_smaller_chunks(task):
    assert batched.chunk_clients(world_of(task)) == batched.CHUNK_CLIENTS
    assert batched.chunk_clients(world_of(task, batch_size=3000)) < batched.CHUNK_CLIENTS
    assert batched.chunk_clients(world_of(task, batch_size=100_000)) == 1


def test_a_rule_that_looks_at_single_uploads_is_refused_where_only_sums_are_given(task, monkeypatch):
    class First(Aggregation):
        def combine(self, size, gamma, uploads):
            return uploads[0].dense()

    world = replace(world_of(task), aggregation=First())
    assert choose_engine(world).name == "batched"
    monkeypatch.setattr(batched.BatchedEngine, "single_uploads", False)
    with pytest.raises(SettingsError, match=r"First looks at every upload by itself.*'batched' gives their sum only"):
        choose_engine(world)
