"""CIFAR-10 and SVHN with a ResNet: every method, every cost and the joint plan; the settings files that ship."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import leanfed as package
from leanfed.algorithms import ALGORITHMS
from leanfed.runs.settings import Settings
from leanfed.tasks.datasets import DATASETS, DatasetSpec, EmbeddedSource
from leanfed.tasks.models import MODELS, ModelSpec
from leanfed.tasks.resnet import ResNet18
from leanfed.tasks.task import TaskSettings, build_task
from tests.methods import FEWEST
from tests.thinned import by_default, in_turn

CONFIGS = Path(package.__file__).parent / "reproduction/configs"
SHIPPED = sorted(path.stem for path in CONFIGS.glob("*.toml") if "cifar10" in path.stem or "svhn" in path.stem)
PARTITIONS: dict[str, dict[str, object]] = {"iid": {}, "class": {"classes_per_client": 2}, "dirichlet": {"alpha": 0.5}}


def blobs(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Colour pictures whose shade tells the class, with noise."""
    rng = np.random.default_rng(1 if split == "train" else 2)
    labels = np.repeat(np.arange(4), 60 if split == "train" else 15)
    shades = np.array([[220, 40, 40], [40, 220, 40], [40, 40, 220], [200, 200, 40]])[labels]
    pictures = shades[:, :, None, None] + rng.integers(-35, 35, (len(labels), 3, 32, 32))
    return pictures.astype(np.uint8), labels


@pytest.fixture(autouse=True)
def small_world() -> Iterator[None]:
    """A narrow ResNet-18 and its pictures, by name."""
    spec = {"mean": (0.5,) * 3, "deviation": (0.25,) * 3, "shape": (3, 32, 32), "rows": {"train": 240, "test": 60}}
    DATASETS.add("blobs", DatasetSpec(EmbeddedSource("numpy", blobs), ("image",), 4, **spec))
    narrow = partial(ResNet18, stem="large", widths=(4, 6, 8, 10))
    MODELS.add("narrow", ModelSpec(narrow, input_shape=(3, 32, 32), default_split="stage4.0"))
    yield
    DATASETS.remove("blobs")
    MODELS.remove("narrow")


def settings_of(name: str, **values: object) -> Settings:
    partition = {"kind": "class", "classes_per_client": 2, "clients": 4}
    return Settings.from_values(
        {
            "rounds": 2,
            "task": {"dataset": "blobs", "model": "narrow", "partition": partition, "augment": ["crop", "flip"]},
            "algorithm": {"name": name, **FEWEST.get(name, {})},
            "training": {"batch_size": 8, "learning_rate": 0.05},
            "evaluation": {"every": 2, "renew_statistics": 1},
            "radio": {"wire": True},
            **values,
        }
    )


# Every method is met on a small model by the conformance battery; here by default one of every kind of state.
@pytest.mark.parametrize(
    "name", by_default(ALGORITHMS, "flpdsp", "local", "fedbn", "fedmask", "scaffold", "apfl", "spafl")
)
def test_every_method_runs_and_is_charged(name: str) -> None:
    run = package.run(settings_of(name))
    assert ((run.clients["communication_s"] > 0) == (run.clients["entries"] > 0)).all()
    sends = bool(run.clients["entries"].sum())
    for column in ("latency_s", "energy_j", "flops", *(("upload_bits", "exact_bits", "coded_bits") if sends else ())):
        assert (run.rounds[column] > 0).all()
    assert 0.5 <= run.summary["majority_guess"] <= 0.75  # two classes each, in unequal shares
    assert 0 <= run.accuracy <= 1


def test_a_planned_run_learns_pictures_of_two_classes_each() -> None:
    limits = {"rule": "joint", "deadline_s": 5.0, "energy_budget_j": 5.0, "k_max": 0.5}
    run = package.run(
        settings_of("flpdsp", allocation=limits, rounds=6, training={"batch_size": 16, "local_steps": 4}, radio={})
    )
    assert run.accuracy >= run.summary["majority_guess"] + 0.1
    assert (run.clients["k"] <= 0.5).all()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_settings_are_whole(name: str) -> None:
    settings = Settings.from_toml(CONFIGS / f"{name}.toml")
    assert settings.task.model.startswith("resnet")
    asked = {len(cohort) for cohort in settings.participation.cohorts or ()} or {
        round(settings.participation.fraction * settings.task.partition.clients)
    }
    assert asked == {10}  # a round, of 100 clients or of all ten
    if "small" not in name and "felt" not in name:
        assert settings.task.partition.clients == 100
        assert settings.training.batch_size == 32
        assert settings.task.model == "resnet18"


@pytest.fixture(scope="module")
def some(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets with every twentieth real picture: to decode all of them takes half a minute."""
    root = tmp_path_factory.mktemp("some")
    for dataset, split in itertools.product(("cifar10", "svhn"), ("train", "test")):
        name = DATASETS[dataset].source.path(split)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pl.read_parquet(real_data / name).gather_every(20).write_parquet(root / name)
    return root


@pytest.mark.parametrize(("dataset", "kind"), in_turn(("cifar10", "svhn"), PARTITIONS))
def test_real_pictures_are_dealt_and_normalised(dataset: str, kind: str, some: Path) -> None:
    check_pictures(dataset, kind, some, step=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize("dataset", ["cifar10", "svhn"])
def test_all_real_pictures_are_dealt_and_normalised(dataset: str, kind: str, real_data: Path) -> None:
    check_pictures(dataset, kind, real_data, step=40)


def check_pictures(dataset: str, kind: str, root: Path, step: int) -> None:
    values = {"dataset": dataset, "model": "narrow", "partition": {"kind": kind, "clients": 20, **PARTITIONS[kind]}}
    task = build_task(TaskSettings.model_validate(values), 0, root)
    assert sum(task.partition.sizes) == len(task.train.labels)
    inputs = task.train.batch(np.arange(0, len(task.train.labels), step)).inputs
    assert abs(float(inputs.mean())) < 0.1
    assert float(inputs.std()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("pictures", ["some", pytest.param("real_data", marks=pytest.mark.slow)])
def test_the_paper_sized_plan_fits_the_limits(pictures: str, request: pytest.FixtureRequest) -> None:
    """FLPDSP-OPT's first round with the paper's model and fleet: planned, not trained."""
    from leanfed.runs.prepare import prepare

    settings = Settings.from_toml(CONFIGS / "joint_cifar10.toml")
    plan = prepare(settings, request.getfixturevalue(pictures)).planner.plan(0).plan
    assert 1 <= len(plan.participants) <= 10
    assert plan.share is not None
    assert plan.share.sum() <= 1 + 1e-9


def test_what_a_large_run_takes_is_told_from_a_few_clients() -> None:
    from leanfed.runs.estimate import estimate

    told = estimate(settings_of("fedper", run={"keep_weights": False}))
    assert told["estimated_seconds"] > 0
    assert told["engine"].startswith("streamed: ")
    assert told["folder_bytes"] < 1.5 * told["checkpoint_bytes"]
