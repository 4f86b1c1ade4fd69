"""What stays, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from leanfed.algorithms.contract import Cohort, Training
from leanfed.algorithms.flpdsp import HEAD_GRADIENT, Flpdsp
from leanfed.algorithms.uploads import Upload, sparsified
from leanfed.compression import selection
from leanfed.compression.picks import NumpyPicks
from leanfed.compression.prune import Pruning
from leanfed.compression.selection import drawn, largest
from leanfed.compression.sparsify import Sparsification
from leanfed.streams import stream

GRADIENT = np.array([0.1, -3.0, 1e-6, 2.0, -2.0, 0.5], dtype=np.float32)


def test_the_largest_magnitudes_stay_and_the_lower_position_wins_a_tie() -> None:
    assert largest(np.abs(GRADIENT), 2).tolist() == [1, 3]
    assert largest(np.abs(GRADIENT), 3).tolist() == [1, 3, 4]
    assert largest(np.zeros(4, dtype=np.float32), 2).tolist() == [0, 1]


@pytest.mark.parametrize(("count", "kept"), [(0, []), (6, [0, 1, 2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])])
def test_nothing_and_everything(count: int, kept: list[int]) -> None:
    assert largest(np.abs(GRADIENT), count).tolist() == kept


def cohort(k: float = 1.0, r: float = 1.0, seed: int = 0, client: int = 0, **memory: Tensor) -> Cohort:
    """One client whose head is GRADIENT."""
    head = torch.from_numpy(GRADIENT).unsqueeze(0)
    return Cohort((client,), 0, seed, Training(), np.array([k]), np.array([r]), head, memory, [], 1)


def sent(k: float, settings: Sparsification, seed: int = 0) -> tuple[Upload, dict[str, Tensor]]:
    nothing = torch.zeros(1, 6)
    gradient = torch.from_numpy(GRADIENT).unsqueeze(0).clone()
    uploads, memory = sparsified(gradient, 6, cohort(k, seed=seed, residual=nothing), NumpyPicks(), settings)
    (upload,) = uploads
    return upload, memory


def test_sparsification_sends_exactly_k_d_entries() -> None:
    upload, memory = sent(0.5, Sparsification())
    assert upload.positions.tolist() == [1, 3, 4]
    assert upload.values.tolist() == [-3.0, 2.0, -2.0]
    assert memory == {}


def test_what_is_sent_and_what_is_remembered_add_up_to_the_gradient() -> None:
    upload, memory = sent(0.5, Sparsification(error_feedback=True))
    assert np.array_equal(upload.dense() + memory["residual"][0], GRADIENT)


def test_random_selection_rescaled_has_the_gradient_as_its_mean() -> None:
    settings = Sparsification(select="random", rescale=True)
    total = sum(sent(0.5, settings, seed=draw)[0].dense() for draw in range(4000))
    assert total.numpy() / 4000 == pytest.approx(GRADIENT, abs=0.2)  # 4 standard errors of the largest entry


def test_a_smaller_random_draw_is_a_subset_of_a_larger() -> None:
    small, large = (set(drawn(100, count, stream(5, "mask")).tolist()) for count in (10, 40))
    assert small < large


@pytest.mark.parametrize("settings", [{"rescale": True}, {"select": "random", "rescale": True, "error_feedback": True}])
def test_rescaling_is_refused_where_it_makes_no_sense(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="rescale = true needs select = 'random' or 'common'"):
        Sparsification.model_validate(settings)


def mask(score: str, last: np.ndarray | None = None, label: int = 0) -> list[int]:
    """What half of a pruned head keeps."""
    method = Flpdsp(prune=Pruning.model_validate({"score": score}))
    gradient = torch.zeros(1, 6) if last is None else torch.from_numpy(last).unsqueeze(0)
    asked = cohort(r=0.5, client=label, **{HEAD_GRADIENT: gradient})
    learner = SimpleNamespace(picks=NumpyPicks())
    return np.flatnonzero(method.trained_weights(torch.zeros(1), asked, learner).private[0]).tolist()


def test_magnitude_pruning_keeps_the_largest_weights() -> None:
    assert mask("magnitude") == [1, 3, 4]


def test_importance_pruning_weighs_by_the_last_gradient_and_starts_by_magnitude() -> None:
    last = np.array([9.0, 0.0, 9.0, 0.1, 1.0, 1.0], dtype=np.float32)
    assert mask("importance", last) == [0, 4, 5]  # (w g)^2: 0.81, 0, 0, 0.04, 4, 0.25
    assert mask("importance") == mask("magnitude")


def test_random_pruning_follows_its_stream() -> None:
    assert mask("random", label=1) == mask("random", label=1)
    assert len({tuple(mask("random", label=label)) for label in range(20)}) > 5


def test_only_the_redrawn_mask_comes_with_a_warning() -> None:
    assert Pruning(score="random").notes() == ()
    assert "erases heads" in Pruning(score="random-redrawn").notes()[0]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.74, 0.9999])
def test_compiled_selection_of_large_vectors_is_the_plain_one(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = np.abs(rng.standard_normal(40_000)).astype(np.float32)
    values[::3], values[1::7] = 0, 1.5  # ties at zero and elsewhere
    count = int(share * len(values))
    plain = largest(values, count)
    monkeypatch.setattr(selection, "LARGE", 1)
    assert np.array_equal(largest(values, count), plain)
