"""Text models: tokens made once, adapters that learn, a backbone that never changes and never travels."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.contract import Training
from leanfed.errors import DataError, InputError, SettingsError
from leanfed.rounds.costs import Accountant, RadioSettings
from leanfed.rounds.evaluation import Hits, evaluate, majority_f1
from leanfed.rounds.loop import start
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.reference import ReferenceEngine
from leanfed.tasks import encoder, text
from leanfed.tasks.bert_lora import BertLora, distance_features, lora_split, pair_features, texts_apart
from leanfed.tasks.bert_sketch import BertSketch, sketch_of, sketches
from leanfed.tasks.datasets import DATASETS, DatasetSpec, HubSource
from leanfed.tasks.models import build_model
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.split import FlatModel, split_after
from leanfed.tasks.task import Task, TaskSettings, build_task
from leanfed.tasks.text import IDS, MASK, SEGMENTS, TextSettings, load_tokens
from tests.encoders import tiny_encoder
from tests.methods import method_of
from tests.thinned import by_default

EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))
KINDS = ("fedavg", "fedper", "lg-fedavg", "flpdsp", "fedmask")
SPEC = DatasetSpec(
    source=HubSource("toy/pairs", "plain"), columns=("a", "b"), classes=2, rows={"train": 120, "test": 40}
)
SAME, OTHER = ("the cat sat", "a cat sat on the mat"), ("the cat sat", "dog ran away and not home")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Pairs of sentences, one third alike, as Parquet files in the hub's layout."""
    root = tmp_path_factory.mktemp("data")
    for split, rows in SPEC.rows.items():
        file = root / SPEC.source.path(split)
        file.parent.mkdir(parents=True, exist_ok=True)
        chosen = [SAME if row % 3 else OTHER for row in range(rows)]
        columns = {"a": [a for a, _ in chosen], "b": [b for _, b in chosen], "label": [int(c == SAME) for c in chosen]}
        pl.DataFrame(columns).write_parquet(file)
    DATASETS.add("pairs", SPEC)
    yield root
    DATASETS.remove("pairs")


@pytest.fixture(scope="module")
def task(tiny: str, pairs: Path) -> Task:
    settings = TaskSettings(
        dataset="pairs",
        model="bert-lora",
        text=TextSettings(encoder=tiny, length=24, rank=2, pooling="pair", scale=8.0),
        partition=PartitionSettings(kind="dirichlet", alpha=1.0, clients=3),
    )
    return build_task(settings, seed=1, data_root=pairs)


def world_of(task: Task, name: str, **training: object) -> World:
    given = {"batch_size": 6, "local_steps": 2, "learning_rate": 0.2, **training}
    return World(task, method_of(name), Training(**given), Participation())


def test_tokens_are_those_of_the_encoder_without_its_padding(task: Task) -> None:
    batch = task.train.batch(np.array([0, 1]))  # OTHER, then SAME
    assert batch.inputs.shape == (2, 3, 12)
    words = [encoder.load_tokenizer(task.settings.text.encoder).convert_ids_to_tokens(r) for r in batch.inputs[:, IDS]]
    assert words[0] == ["[CLS]", "the", "cat", "sat", "[SEP]", "dog", "ran", "away", "and", "not", "home", "[SEP]"]
    assert words[1][:11] == ["[CLS]", "the", "cat", "sat", "[SEP]", "a", "cat", "sat", "on", "the", "mat"]
    assert batch.inputs[:, MASK].sum(1).tolist() == [12, 12]
    assert batch.inputs[0, SEGMENTS].tolist() == [0] * 5 + [1] * 7
    assert batch.labels.tolist() == [0, 1]


def test_a_split_is_tokenised_once(tiny: str, pairs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEANFED_CACHE", str(tmp_path))
    settings = TextSettings(encoder=tiny, length=10)
    first = load_tokens("pairs", "test", settings, pairs)
    assert np.diff(first.ends, prepend=0).max() == 10  # longer pairs are cut
    monkeypatch.setattr(text, "tokenise", lambda *_: pytest.fail("tokenised again"))
    again = load_tokens("pairs", "test", settings, pairs)
    assert isinstance(again.ids, np.memmap)
    assert np.array_equal(again.ids, first.ids)
    with pytest.raises(pytest.fail.Exception):  # another length is another cache
        load_tokens("pairs", "test", TextSettings(encoder=tiny, length=12), pairs)


def test_padding_and_the_order_of_samples_do_not_change_an_answer(task: Task) -> None:
    model = task.new_model("base").eval()
    rows = np.arange(9)
    with torch.no_grad():
        together = model(task.train.batch(rows).inputs)
        alone = torch.cat([model(task.train.batch(rows[i : i + 1]).inputs) for i in rows])
        padded = model(torch.nn.functional.pad(task.train.batch(rows).inputs, (0, 5)))
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together, padded, atol=1e-5)


def test_adapters_start_as_no_change_at_all(tiny: str, task: Task) -> None:
    model = task.new_model("base").eval()
    tokens = task.train.batch(np.arange(4)).inputs
    with torch.no_grad():
        adapted = model.encoder(input_ids=tokens[:, IDS], attention_mask=tokens[:, MASK]).last_hidden_state
        plain = encoder.load_encoder(tiny)(input_ids=tokens[:, IDS], attention_mask=tokens[:, MASK]).last_hidden_state
    assert torch.allclose(adapted, plain, atol=1e-6)


def test_pair_features_are_symmetric_and_of_a_moderate_norm() -> None:
    u, v = torch.randn(5, 64), torch.randn(5, 64)
    assert torch.equal(pair_features(u, v), pair_features(v, u))
    assert torch.count_nonzero(pair_features(u, u)[:, :64]) == 0
    assert 3 < float(pair_features(u, v).norm(dim=1).mean()) < 8


def test_two_texts_taken_apart_are_those_tokenised_alone(task: Task) -> None:
    tokenizer = encoder.load_tokenizer(task.settings.text.encoder)
    pair = task.train.batch(np.array([0, 1])).inputs  # OTHER, then SAME
    padded = torch.nn.functional.pad(pair, (0, 3))
    for tokens in (pair, padded):
        for place, texts in enumerate(texts_apart(tokens)):
            alone = tokenizer([OTHER[place], SAME[place]], padding="max_length", max_length=texts.shape[2])
            assert texts[:, IDS].tolist() == alone["input_ids"]
            assert texts[:, MASK].tolist() == alone["attention_mask"]
            assert texts[:, SEGMENTS].sum() == 0


def test_the_distance_of_a_text_from_itself_is_nothing_and_leads_the_features() -> None:
    u, v = torch.randn(5, 64), torch.randn(5, 64)
    features = distance_features(u, v)
    assert features.shape == (5, 1 + 2 * 64)
    cosine = (u * v).sum(1) / (u.norm(dim=1) * v.norm(dim=1))
    assert torch.allclose(features[:, 0], 8 * (1 - cosine), atol=1e-5)
    assert float(distance_features(u, u)[:, 0].abs().max()) < 1e-5
    assert float(features[:, 1:].norm(dim=1).max()) < 2  # small beside the distance's 8


def test_texts_encoded_apart_do_not_see_each_other(tiny: str, pairs: Path) -> None:
    model = build_model("bert-lora", 2, 0, TextSettings(encoder=tiny, pooling="distance")).eval()
    tokens = load_tokens("pairs", "train", TextSettings(encoder=tiny), pairs).batch(np.arange(6)).inputs
    first, second = texts_apart(tokens)
    with torch.no_grad():
        means = []
        for text_of in (first, second):
            hidden = encoder.load_encoder(tiny)(input_ids=text_of[:, IDS], attention_mask=text_of[:, MASK])
            weights = text_of[:, MASK].unsqueeze(-1)
            means.append((hidden.last_hidden_state * weights).sum(1) / weights.sum(1))
        assert torch.allclose(model(tokens), model.classifier(distance_features(*means)), atol=1e-5)


@pytest.mark.parametrize("pooling", ["pair", "distance"])
def test_comparing_needs_two_texts(tiny: str, pairs: Path, pooling: str) -> None:
    DATASETS.add("ones", dataclasses.replace(SPEC, columns=("a",)))
    try:
        with pytest.raises(SettingsError, match="compares two texts, but the samples of 'ones' have one"):
            load_tokens("ones", "test", TextSettings.model_validate({"encoder": tiny, "pooling": pooling}), pairs)
    finally:
        DATASETS.remove("ones")


def test_the_base_is_the_early_adapters_and_the_head_the_late_ones_and_the_classifier(task: Task) -> None:
    shared, private = list(task.split.shared), list(task.split.private)
    assert all("lora_" in name for name in shared)
    assert {name.split("layer.")[1][0] for name in shared} == {"0", "1"}  # a third of three layers is private
    assert {name.split("layer.")[1][0] for name in private if "lora_" in name} == {"2"}
    assert private[-2:] == ["classifier.weight", "classifier.bias"]
    # Two layers with queries and values, A (2, 16) and B (16, 2) each; one layer, and a classifier of 32 x 2 + 2.
    assert (task.split.shared_size, task.split.private_size) == (2 * 2 * 64, 2 * 64 + 66)


@pytest.mark.parametrize(("layers", "private", "last"), [(12, None, 7), (6, None, 3), (6, 1, 4), (3, 0, 2)])
def test_how_many_layers_are_private(tmp_path: Path, layers: int, private: int | None, last: int) -> None:
    name = tiny_encoder(tmp_path / "encoder", layers)
    assert lora_split(TextSettings(encoder=name, private_layers=private)) == f"encoder.encoder.layer.{last}"


def test_at_least_one_layer_is_shared(tiny: str) -> None:
    with pytest.raises(SettingsError, match="private_layers = 3 leaves no layer of 3"):
        lora_split(TextSettings(encoder=tiny, private_layers=3))


def test_another_family_of_encoders_works_too(tmp_path: Path) -> None:
    name = tiny_encoder(tmp_path / "distil", family="distilbert")
    settings = TextSettings(encoder=name, pooling="mean")
    model = build_model("bert-lora", 2, 0, settings)
    assert any("q_lin.lora_A" in key for key, p in model.named_parameters() if p.requires_grad)
    assert model(torch.ones(2, 3, 4, dtype=torch.int64)).shape == (2, 2)
    assert lora_split(settings) == "encoder.transformer.layer.1"


@pytest.mark.parametrize("pooling", ["pair", "distance"])
def test_gradients_are_those_of_plain_autograd(task: Task, pairs: Path, pooling: str) -> None:
    text_settings = task.settings.text.model_copy(update={"pooling": pooling})
    task = build_task(task.settings.model_copy(update={"text": text_settings}), seed=1, data_root=pairs)
    flat, plain = FlatModel(task.new_model("base"), task.split), task.new_model("base")
    weights = flat.initial + 0.05 * torch.randn(task.split.size, generator=torch.Generator().manual_seed(0))
    parameters, start_at = dict(plain.named_parameters()), 0
    for name, shape in task.split.shapes.items():
        parameters[name].data = weights[start_at : start_at + shape.numel()].view(shape).clone()
        start_at += shape.numel()
    batch = task.train.batch(np.arange(10))
    _, gradient = flat.loss_and_gradient(weights, batch.inputs, batch.labels)
    # One sample at a time, so that grouping by length is not in it.
    logits = torch.cat([plain(batch.inputs[row : row + 1]) for row in range(10)])
    torch.nn.functional.cross_entropy(logits, batch.labels).backward()
    expected = torch.cat([parameters[name].grad.reshape(-1) for name in task.split.shapes])
    assert float((gradient - expected).norm() / expected.norm()) < 1e-5
    assert all(p.grad is None for p in plain.parameters() if not p.requires_grad)


def test_every_copy_of_the_model_shares_one_backbone(tiny: str, task: Task) -> None:
    frozen = {p.data_ptr() for p in encoder.load_encoder(tiny).parameters()}
    for model in (task.new_model("base"), task.new_model("head", 2), FlatModel(task.new_model("x"), task.split).model):
        mine = {p.data_ptr() for p in model.parameters() if not p.requires_grad}
        assert mine == frozen


@EVERY
def test_the_backbone_never_changes_and_never_travels(name: str, task: Task, tiny: str) -> None:
    backbone = encoder.load_encoder(tiny)
    before = [p.clone() for p in backbone.parameters()]
    world = world_of(task, name)
    engine = choose_engine(world, wire="float32")
    progress = start(world)
    outcome = engine.run_round(progress.server, progress.clients, world.plan(0))
    assert all(torch.equal(a, b) for a, b in zip(before, backbone.parameters(), strict=True))
    # What is sent, in bytes as coded, is at most what the method shares of the trainable part, not the backbone.
    assert world.split.size == task.split.size
    assert (outcome.coded_bits <= 32 * world.vector_size + 8 * 64).all()
    assert world.vector_size < sum(p.numel() for p in backbone.parameters()) / 4
    bill = Accountant(RadioSettings(), world).bill(world.plan(0), outcome)
    assert (bill.exact_bits <= 32 * world.vector_size).all()


@pytest.mark.parametrize("name", by_default(KINDS, "flpdsp", "fedmask"))  # what is sparse, and what has no gradients
def test_a_method_of_each_kind_learns_the_pairs(name: str, task: Task) -> None:
    world = world_of(task, name, local_steps=4, learning_rate=0.1)
    engine, progress = ReferenceEngine(world), start(world)
    server, losses = progress.server, []
    for number in range(8):
        outcome = engine.run_round(server, progress.clients, world.plan(number))
        server = outcome.server
        losses.append(outcome.loss.mean())
    assert losses[-1] < 0.95 * losses[0]


def test_masks_move_the_adapters(task: Task) -> None:
    world = world_of(task, "fedmask")
    private = start(world).clients[0].private.unsqueeze(0)
    weights = torch.cat(world.algorithm.personal_weights(start(world).server, private, world.new_learner()).row(0))
    place = 0
    for name, shape in world.split.shapes.items():
        if "lora_B" in name:  # starts at zero, where a mask would have nothing to choose from
            assert torch.count_nonzero(weights[place : place + shape.numel()]) > 0
        place += shape.numel()


def test_f1_is_pooled_over_clients() -> None:
    one = Hits.count(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0]))
    two = Hits.count(np.array([1, 1]), np.array([1, 1]))
    assert (one.true, one.named, one.present) == (1, 2, 2)
    assert (one + two).f1 == pytest.approx(2 * 3 / (4 + 4))  # not the mean of 1/2 and 1
    assert Hits(0, 0, 0).f1 == 0.0


def test_an_evaluation_of_two_classes_has_an_f1(task: Task) -> None:
    world = world_of(task, "fedper")
    learner, progress = world.new_learner(), start(world)
    found = evaluate(world, progress.server, progress.clients, learner)
    answers, labels = [], []
    for client, rows in enumerate(task.partition.test):
        batch = task.test.batch(rows)
        private = progress.clients[client].private.unsqueeze(0)
        weights = world.algorithm.personal_weights(progress.server, private, learner)
        answers += learner.model.logits(weights.row(0), batch.inputs).argmax(1).tolist()
        labels += batch.labels.tolist()
    right = sum(a == y == 1 for a, y in zip(answers, labels, strict=True))
    assert found.f1 == pytest.approx(2 * right / (sum(answers) + sum(labels)))


def test_the_f1_of_the_majority_guess_is_that_of_constant_answers(task: Task) -> None:
    right = named = present = 0
    for train, test in zip(task.partition.train, task.partition.test, strict=True):
        guess, labels = np.bincount(task.train.labels[train]).argmax(), task.test.labels[test]
        right, named, present = right + guess * labels.sum(), named + guess * len(labels), present + labels.sum()
    assert majority_f1(world_of(task, "fedper")) == pytest.approx(2 * right / (named + present))


def test_pictures_have_no_f1_and_no_tokens(digits: Task) -> None:
    assert majority_f1(world_of(digits, "fedper")) is None
    with pytest.raises(SettingsError, match="'bert-lora' takes texts, but 'mnist-5k' has"):
        build_task(TaskSettings(dataset="mnist-5k", model="bert-lora"), 0)
    with pytest.raises(SettingsError, match="holds images"):
        load_tokens("mnist-5k", "test", TextSettings())


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    encoder.load_tokenizer.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'leanfed\[nlp\]'"):
        encoder.load_tokenizer(encoder.PACKAGED)


def test_an_encoder_that_is_nowhere_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"asked again after {seconds} s")  # as the hub's library does by itself, for a minute

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(DataError, match="neither on this machine nor reachable"):
        encoder.load_encoder("nobody/has-this-encoder")
    with pytest.raises(DataError, match="no config.json"):
        encoder.load_encoder(str(tmp_path))


def test_a_target_that_is_not_there_is_refused(tiny: str) -> None:
    with pytest.raises(SettingsError, match="no layer 'quarry' to adapt: did you mean 'query'"):
        BertLora(2, TextSettings(encoder=tiny, targets=("quarry",)))


@pytest.mark.data
def test_mrpc_with_the_packaged_encoder(real_data: Path) -> None:
    settings = TaskSettings(
        dataset="mrpc",
        model="bert-lora",
        test_on="validation",
        text=TextSettings(pooling="pair"),
        partition=PartitionSettings(kind="dirichlet", alpha=1.0, clients=10),
    )
    task = build_task(settings, seed=0, data_root=real_data)
    # Four of six layers: two matrices, A (8, 384) and B (384, 8) each; two layers, and a classifier of 768 x 2 + 2.
    assert (task.split.shared_size, task.split.private_size) == (49_152, 26_114)
    world = world_of(task, "fedper", local_steps=1)
    progress = start(world)
    cohort = world.alone(progress.clients[0], 0, 0, 1.0, 1.0)
    updates = world.algorithm.client_update(progress.server.shared, cohort, world.new_learner())
    assert 0.3 < updates.loss[0] < 1.2
    assert torch.count_nonzero(next(iter(updates.uploads)).values) > 0


def test_a_sketch_of_an_encoder_has_its_names_sizes_and_arithmetic() -> None:
    given = TextSettings(pooling="distance")
    whole = build_model("bert-lora", 2, 0, given)
    with sketches():
        sketch, cut = build_model("bert-lora", 2, 0, given), lora_split(given)
    assert isinstance(sketch.encoder, BertSketch)
    assert not isinstance(whole.encoder, BertSketch)
    assert cut == lora_split(given)
    assert split_after(sketch, cut) == split_after(whole, cut)
    sketch.load_state_dict({name: values for name, values in whole.state_dict().items() if "position_ids" not in name})
    rows = torch.tensor([[[101, 2023, 102, 2008, 2009, 102], [1] * 6, [0, 0, 0, 1, 1, 1]]] * 2)
    rows[1, 1, 5] = 0  # one token less
    torch.testing.assert_close(sketch(rows), whole(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", ["[]", "{", '{"model_type": "distilbert"}', '{"model_type": "bert"}'])
def test_what_cannot_be_sketched_is_left_to_transformers(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with sketches():
        assert sketch_of(str(tmp_path)) is None
