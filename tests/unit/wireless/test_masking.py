"""Masked sums: bits and cycles by hand, the published total, and what a run is charged."""

from __future__ import annotations

from typing import Any

import pytest

import leanfed
from leanfed.errors import SettingsError
from leanfed.runs.settings import Settings
from leanfed.wireless.masking import MaskedSum

COMMON = {"name": "flpdsp", "k": 0.05, "r": 1.0, "sparsify": {"select": "common"}}


def settings(**changes: Any) -> Settings:
    where = {"partition": {"kind": "iid", "clients": 4}}
    values = {"rounds": 1, "task": where, "algorithm": COMMON, "training": {"batch_size": 4}, "run": {"threads": 1}}
    return Settings.from_values({**values, **changes})


def test_bits_and_cycles_by_hand() -> None:
    """Five clients, two neighbours each, 10 values of 16 bits: 5 x 65,535 takes 19 bits."""
    masked = MaskedSum.of(5, 2, 16)
    assert masked.ring_bits == 19
    assert masked.sent_bits([10, 0]).tolist() == [2 * 256 + 2 * 2 * 256 + 3 * 256 + 190, 0]
    assert masked.received_bits == 2 * 2 * 256 + 2 * 2 * 256
    assert masked.cycles([10, 0]).tolist() == [2 * 2 * 2e5 + 3 * 190 / 8 * 2, 0]


def test_with_all_others_both_directions_are_the_published_total() -> None:
    """2 n a_K + (5 n - 4) a_S + m ceil(log2 R) (Bonawitz et al. 2017)."""
    n, m = 100, 1000
    masked = MaskedSum.of(n, None, 32)
    total = float(masked.sent_bits(m)) + masked.received_bits
    assert total == 2 * n * 256 + (5 * n - 4) * 256 + m * masked.ring_bits


def test_nobody_has_more_neighbours_than_there_are_others() -> None:
    assert MaskedSum.of(3, 20, 32).neighbours == 2
    assert MaskedSum.of(0, None, 32).sent_bits([0]).tolist() == [0.0]


def test_a_run_is_charged_for_its_masks_and_learns_the_same() -> None:
    plain, masked = leanfed.run(settings()), leanfed.run(settings(radio={"masked_sum": True, "mask_neighbours": 2}))
    assert masked.rounds["accuracy"].to_list() == plain.rounds["accuracy"].to_list()
    sent = 512 + 7 * 256 + 34 * masked.clients["entries"]  # four clients: 32 bits and two more
    assert masked.clients["upload_bits"].to_list() == sent.to_list()
    assert (masked.clients["computation_s"] > plain.clients["computation_s"]).all()
    assert (masked.clients["energy_j"] > plain.clients["energy_j"]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": {"name": "flpdsp"}}, r"each client chooses its own; set .*'common'"),
        ({"algorithm": {"name": "fedmask"}}, r"same entries for all"),
        ({"aggregation": {"name": "clip"}}, r"sees no single uploads; set aggregation.name = 'mean'"),
        ({"radio": {"masked_sum": True, "values": "log8"}}, r"whole numbers"),
        ({"radio": {"masked_sum": True, "wire": True}}, r"whole numbers"),
        ({"allocation": {"wait": "pace"}}, r"without what masks cost"),
    ],
    ids=["own", "votes", "robust", "logarithmic", "wire", "pace"],
)
def test_what_cannot_be_summed_under_masks_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**{"radio": {"masked_sum": True}, **changes})
