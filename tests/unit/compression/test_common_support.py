"""Entries that all clients send alike: what they add up to, what they cost, and what is refused."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

import leanfed
from leanfed.algorithms.contract import Cohort, Training
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.uploads import Upload, sparsified
from leanfed.compression.frame import OVERHEAD_BYTES, FrameError
from leanfed.compression.picks import NumpyPicks
from leanfed.compression.selection import common
from leanfed.compression.sparsify import Sparsification
from leanfed.errors import SettingsError
from leanfed.rounds.adversary import Adversary, Scheme, tampered
from leanfed.rounds.aggregation import WeightedMean
from leanfed.rounds.costs import RadioSettings, upload_bits
from leanfed.rounds.exchange import Answers
from leanfed.rounds.privacy import Ledger, Privacy, release
from leanfed.rounds.wire import from_frame, to_frame
from leanfed.runs.prepare import build_world
from leanfed.runs.settings import Settings

GRADIENT = torch.tensor([[4.0, -2.0, 1.0, 8.0], [1.0, 1.0, -1.0, 0.5]])
COMMON = Sparsification(select="common")
BOTH = {"select": "common", "rescale": True, "error_feedback": True}


def sent(number: int, k: float = 0.5, settings: Sparsification = COMMON) -> list[Upload]:
    """What two clients upload in a round."""
    rates, heads = np.full(2, k), torch.zeros(2, 1)
    cohort = Cohort((3, 8), number, 0, Training(), rates, rates, heads, {"residual": torch.zeros(2, 4)}, [], 1)
    return list(sparsified(GRADIENT.clone(), 4, cohort, NumpyPicks(), settings)[0])


def tiny(**changes: Any) -> Settings:
    where = {"partition": {"kind": "iid", "clients": 5}}
    method = {"name": "flpdsp", "k": 0.05, "r": 1.0, "sparsify": {"select": "common"}}
    values = {"rounds": 2, "task": where, "algorithm": method, "training": {"batch_size": 4}, "run": {"threads": 1}}
    return Settings.from_values({**values, **changes})


def test_the_mean_over_all_supports_is_the_gradient() -> None:
    """Two of four entries, times 4 / 2: every pair of positions is one of six equally likely supports."""
    found: dict[tuple[int, ...], list[Upload]] = {}
    counts: dict[tuple[int, ...], int] = {}
    for number in range(600):
        uploads = sent(number)
        (support,) = {tuple(upload.positions.tolist()) for upload in uploads if upload.positions is not None}
        found[support] = uploads
        counts[support] = counts.get(support, 0) + 1
    assert sorted(found) == list(combinations(range(4), 2))
    for client in range(2):
        mean = sum(uploads[client].dense() for uploads in found.values()) / 6
        assert torch.equal(mean, GRADIENT[client])
    assert max(abs(count - 100) for count in counts.values()) < 4 * (600 / 6 * 5 / 6) ** 0.5


def test_a_keep_rate_of_one_is_the_dense_run_bit_for_bit() -> None:
    dense, common_run = (
        leanfed.run(tiny(algorithm={"name": "flpdsp", "k": 1.0, "r": 0.5, "sparsify": {"select": select}}))
        for select in ("topk", "common")
    )
    assert common_run.rounds.drop("paper_bits").equals(dense.rounds.drop("paper_bits"))
    assert common_run.clients.drop("paper_bits").equals(dense.clients.drop("paper_bits"))


def test_error_feedback_remembers_what_the_support_left_out_and_is_not_rescaled() -> None:
    uploads = sent(0, settings=Sparsification(select="common", error_feedback=True))
    places = uploads[0].positions
    assert places is not None
    assert torch.equal(uploads[0].values, GRADIENT[0, places])


def test_no_positions_are_charged_or_sent() -> None:
    world = build_world(tiny())
    entries = np.array([2534])
    for bits, charged in ((32, 81_088), (16, 40_544)):
        exact, paper = upload_bits(world, RadioSettings(value_bits=bits), entries)
        assert exact.tolist() == paper.tolist() == [charged]
    uploads = sent(0)
    frames = [to_frame(upload, "float32") for upload in uploads]
    assert [len(frame) for frame in frames] == [OVERHEAD_BYTES + 2 * 4] * 2
    read = from_frame(frames[1], max_size=4, known=common(4, 2, 0, 0))
    assert torch.equal(read.dense(), uploads[1].dense())


def test_a_receiver_takes_the_positions_that_it_knows_and_no_others() -> None:
    known, own = common(4, 2, 0, 0), Upload(4, torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    with pytest.raises(FrameError, match="names positions of its own"):
        from_frame(to_frame(own, "float32"), max_size=4, known=known)
    with pytest.raises(FrameError, match="does not know them"):
        from_frame(to_frame(sent(0)[0], "float32"), max_size=4)
    with pytest.raises(FrameError, match="2 values for the 3 positions"):
        from_frame(to_frame(sent(0)[0], "float32"), max_size=4, known=common(4, 3, 0, 0))


def test_a_run_through_the_codec_is_the_run_without_it() -> None:
    one = {"engine": "reference", "threads": 1}
    plain, coded = leanfed.run(tiny(run=one)), leanfed.run(tiny(run=one, radio={"wire": True}))
    assert plain.rounds["train_loss"].to_list() == coded.rounds["train_loss"].to_list()
    bits = coded.clients["coded_bits"]
    assert (bits == 8 * OVERHEAD_BYTES + coded.clients["upload_bits"]).all()


def test_privacy_noises_the_support_alone_and_zero_noise_is_the_plain_run() -> None:
    book = Ledger(Privacy(unit="client", noise_multiplier=1.0, adaptive=False), 1.0, 2.0, 2, 10, seed=0)
    mean = release(book, 1.0, 4, sent(5), 5, common(4, 2, 0, 5)).mean
    assert np.flatnonzero(mean.numpy()).tolist() == common(4, 2, 0, 5).tolist()
    free = {"unit": "client", "noise_multiplier": 0, "clip": None, "adaptive": False}
    plain, private = leanfed.run(tiny()), leanfed.run(tiny(privacy=free))
    assert plain.rounds["accuracy"].to_list() == private.rounds["accuracy"].to_list()
    nobody = {"rule": "poisson", "fraction": 1e-6}
    noisy = {"unit": "client", "noise_multiplier": 1.0, "delta": 0.01}
    assert leanfed.run(tiny(privacy=noisy, participation=nobody)).rounds["participants"].sum() == 0


@pytest.mark.parametrize("kind", ["support", "gaussian", "spread", "turncoat", "veteran", "adaptive"])
def test_attackers_can_only_fill_the_entries_that_all_send(kind: str) -> None:
    uploads = tuple(sent(0))
    blank = np.zeros(2)
    answers = Answers(blank, blank, blank.astype(int), np.array([2, 2]), None, None, uploads, None)
    rule = partial(WeightedMean().combine, 4, np.full(2, 0.5))
    scheme = Scheme(
        Adversary.model_validate({"kind": kind}), frozenset({8}), rule, torch.arange(8.0).double().reshape(2, 4)
    )
    after, _ = tampered(scheme, answers, (3, 8), 0, 0)
    assert after.uploads[1].common
    assert torch.equal(after.uploads[1].positions, uploads[1].positions)
    assert not torch.equal(after.uploads[1].values, uploads[1].values)


def test_the_median_of_common_entries_moves() -> None:
    run = leanfed.run(tiny(aggregation={"name": "median"}))
    assert run.rounds["train_loss"].n_unique() == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": {"name": "flpdsp", "k": [0.1, 0.2], "sparsify": {"select": "common"}}}, "2 different rates"),
        ({"allocation": {"rule": "joint"}}, "plans a keep rate for each client"),
        ({"algorithm": {"name": "flpdsp", "sparsify": BOTH}}, "rescale = true needs"),
    ],
    ids=["rates", "joint", "memory"],
)
def test_what_is_not_common_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        tiny(**changes)
    assert Flpdsp(sparsify=COMMON).upload_form == "common"
