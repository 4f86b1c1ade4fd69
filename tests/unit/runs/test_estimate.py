"""A dry run tries little whatever the settings ask for, and a line through what that took tells the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from leanfed.algorithms.base import Algorithm, Tuning
from leanfed.algorithms.fedala import FedAla
from leanfed.algorithms.fedmask import FedMask
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.learner import FlatLearner
from leanfed.algorithms.local import DivergedError
from leanfed.algorithms.pfedme import PFedMe
from leanfed.records import RoundPlan
from leanfed.rounds.loop import start
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings
from leanfed.runs.trial import Line, Trial, round_seconds, shortened, test_samples
from leanfed.simulation.choose import choose_engine

test_samples.__test__ = False  # a function of the package
PLAN = RoundPlan(0, (0, 3), np.ones(2), np.ones(2))
A_SAMPLE, A_STEP = Line(0.0, 0.0, 1.0), Line(0.0, 1.0, 0.0)


def test_a_small_round_is_tried_as_it_is(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(head_steps=20), batch_size=32, local_steps=20)
    assert (shortened(world).training, shortened(world).algorithm) == (world.training, world.algorithm)


def test_more_steps_and_samples_are_not_tried_but_counted(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(), batch_size=2_048, local_steps=2_000)
    trial = shortened(world)
    assert (trial.training.batch_size, trial.training.local_steps) == (512, 20)
    assert round_seconds(A_SAMPLE, world, trial, (0, 3)) == 2 * 2_048 * 2_000
    assert round_seconds(A_STEP, world, trial, (0, 3)) == 2 * 2_000


def test_epochs_of_many_steps_are_tried_as_steps(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(), batch_size=50, local_epochs=10_000)
    trial, sizes = shortened(world), world.task.partition.sizes[[0, 3]]
    assert (trial.training.local_epochs, trial.training.local_steps) == (None, 20)
    assert round_seconds(A_SAMPLE, world, trial, (0, 3)) == 10_000 * sizes.sum()
    assert round_seconds(A_STEP, world, trial, (0, 3)) == 10_000 * sum(-(-size // 50) for size in sizes.tolist())


def test_head_steps_count_by_their_share_of_a_whole_step(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(head_steps=1_000))
    share = world.head_step_share
    expected = 2 * (1 + 999 * share) / (1 + 19 * share)
    assert round_seconds(A_STEP, world, shortened(world), (0, 3)) == pytest.approx(expected)


def test_steps_before_the_first_round_are_cut(world_of: Callable[..., World]) -> None:
    world = world_of(FedMask(pruning_steps=100_000), batch_size=32)
    assert shortened(world).algorithm.model_dump()["pruning_steps"] == 20
    assert test_samples(world).sum() == sum(map(len, world.task.partition.test))


@pytest.mark.parametrize("tuned", [0, 1, 5_000])
@pytest.mark.parametrize("renewed", [0, 300])
def test_steps_before_a_test_take_their_time_however_few_samples_they_see(
    tuned: int, renewed: int, world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = replace(world_of(Flpdsp(), batch_size=10), tuning=Tuning(tuned, 0.1), renew_statistics=renewed)
    trial = Trial(choose_engine(world, "streamed", 1), world, PLAN)
    asked: list[tuple[int, int]] = []

    def test(rows: int, tuned: int = 0, renewed: int = 0) -> tuple[float, float]:
        """0.003 s and 0.001 for each row, 0.004 for each step of two samples, 0.003 for each renewing batch of two."""
        asked.append((tuned, renewed))
        return float(rows), 0.003 + 0.001 * rows + 0.004 * tuned + 0.003 * renewed

    monkeypatch.setattr(trial, "_test", test)
    expected = tuned * (0.004 + 3 * 8 * 0.001) + renewed * (0.003 + 8 * 0.001)  # eight samples more in a batch
    assert trial.preparing(Line(once=0.003, step=0.0, sample=0.001), world) == pytest.approx(expected)
    assert max((sum(one) for one in asked), default=0) <= 20


class Stopwatch:
    """Seconds as a round would take them: 7 of a client, 3 for each step, 2 for each sample of a step."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.tried = trial, []

    def round(self, steps: int, batch: int) -> float:
        self.tried.append((steps, batch))
        return (7 + steps * (3 + 2 * batch)) / 1_000


def test_the_line_finds_what_a_client_a_step_and_a_sample_take(
    world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(Flpdsp(), batch_size=64, local_steps=8)
    trial = Trial(choose_engine(world, "streamed", 1), world, PLAN)
    watch = Stopwatch(trial)
    monkeypatch.setattr(trial, "_round", watch.round)
    line = trial.training()
    assert (line.once, line.step, line.sample) == pytest.approx((0.007, 0.003, 0.002))
    assert (8, 64) not in watch.tried
    assert line.seconds(np.array([8.0]), np.array([8.0 * 64])) == pytest.approx(watch.round(8, 64))


def test_a_large_model_is_tested_once_and_a_samples_forward_pass_is_a_third_of_its_step(
    world_of: Callable[..., World],
) -> None:
    world = world_of(Flpdsp(), batch_size=8)
    ticks = iter(range(1_000))  # a clock that shows one second more at every look: everything takes long
    trial = Trial(choose_engine(world, "streamed", 1), world, PLAN, lambda: float(next(ticks)))
    line = trial.testing(Line(once=0.0, step=0.0, sample=0.3))
    assert next(ticks) == 2  # one measurement: begun and ended
    assert line.sample == pytest.approx(0.1)
    assert line.seconds(np.zeros(1), np.full(1, 2.0)) == pytest.approx(1 / len(trial.plan.participants))


def test_of_a_large_model_one_worker_is_tried_and_stands_for_all(
    world_of: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(Flpdsp(), batch_size=8)
    built, new_learner = [], World.new_learner

    def counted(of: World) -> FlatLearner:
        built.append(of)
        return new_learner(of)

    monkeypatch.setattr("leanfed.runs.trial.LARGE", world.split.size)
    monkeypatch.setattr(World, "new_learner", counted)
    ticks = iter(range(1_000))
    trial = Trial(choose_engine(world, "streamed", 3), world, PLAN, lambda: float(next(ticks)))
    assert len(trial.plan.participants) == len(built) == 1
    assert trial.training().seconds(np.ones(1), np.full(1, 2.0)) == pytest.approx(1 / 2)  # every round takes 1 s
    assert len(built) == 1
    trial.engine.at(world).run_round(trial.progress.server, start(world).clients, PLAN)
    assert len(built) == 2  # as soon as it is needed


def test_only_the_tried_clients_are_trained_and_tested(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(), batch_size=8)
    trial = Trial(choose_engine(world, "streamed", 2), world, replace(PLAN, participants=(4, 2)))
    assert [len(rows) for rows in trial.world.task.partition.train] == world.task.partition.sizes[[4, 2]].tolist()
    trained = trial.training()
    assert trained.seconds(np.ones(1), np.full(1, 8.0)) > 0
    assert trial.testing(trained).seconds(np.zeros(1), np.ones(1)) > 0
    assert trial.progress.clients.started() == [0, 1]


def test_a_trial_tests_all_its_clients_although_the_run_tests_a_panel(world_of: Callable[..., World]) -> None:
    world = replace(world_of(Flpdsp(), batch_size=8), panel=2)
    trial = Trial(choose_engine(world, "streamed", 4), world, RoundPlan(0, (0, 1, 2, 4), np.ones(4), np.ones(4)))
    assert len(world.tested) == len(test_samples(world)) == 2
    assert len(trial.world.tested) == trial.world.task.clients == len(trial.plan.participants) == 4


def test_a_trial_that_diverges_tells_its_time(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp())
    trial = Trial(choose_engine(world, threads=1), world, PLAN)
    trial.progress.server.shared[0] = float("nan")
    assert trial.testing(trial.training()).once > 0
    with pytest.raises(DivergedError):
        trial.engine.run_round(trial.progress.server, trial.progress.clients, trial.plan)


def test_a_trial_leaves_the_engine_in_its_own_world(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(), batch_size=8)
    engine = choose_engine(world, "streamed", 2)
    trial = Trial(engine, world, RoundPlan(0, (0, 1, 2), np.ones(3), np.ones(3)))
    trial.training()
    assert engine.world is world
    assert len(trial.plan.participants) == engine.clients_at_once == 2


@pytest.mark.parametrize(("method", "times"), [(PFedMe(inner_steps=200), 10.0), (FedAla(mixing_steps=0), 1.0)])
def test_passes_that_were_not_tried_are_counted(
    method: Algorithm, times: float, world_of: Callable[..., World]
) -> None:
    world = world_of(method, batch_size=8)
    assert round_seconds(A_STEP, world, shortened(world), (0, 3)) == pytest.approx(2 * times)


def test_an_estimate_counts_rounds_and_tests() -> None:
    from leanfed.runs.estimate import estimate

    task = {"partition": {"kind": "iid", "clients": 5}}
    told = estimate(Settings(rounds=50, task=task, run={"keep_weights": False}))
    assert told["estimated_seconds"] > 0
    assert told["participants"] == told["clients"] == 5


@pytest.mark.parametrize("fraction", [0.3, 0.01])
def test_an_estimate_of_rounds_in_which_nobody_may_come(fraction: float) -> None:
    from leanfed.runs.estimate import estimate

    task = {"partition": {"kind": "iid", "clients": 5}}
    cohort = {"rule": "poisson", "fraction": fraction}
    told = [estimate(Settings(rounds=2000, seed=seed, task=task, participation=cohort)) for seed in range(3)]
    assert all(one["estimated_seconds"] > 0 for one in told)
