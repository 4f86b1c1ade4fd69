"""Which cut is taken, and what its rounds cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leanfed.rounds.cuts import Cut, choose
from leanfed.runs.cuts import choose_cut
from leanfed.runs.settings import Settings


def cuts(*rows: tuple[str, float, float]) -> list[Cut]:
    """Cuts of growing size by name, seconds at equal work, gain."""
    return [
        Cut(layer, size, 10 - size, None, None, 1, seconds, 1.0, seconds, gain)
        for size, (layer, seconds, gain) in enumerate(rows, start=1)
    ]


def of_digits(**changes: object) -> Settings:
    partition = {"kind": "class", "classes_per_client": 2, "clients": 10}
    values = {"task": {"split": "auto", "partition": partition}, "algorithm": {"name": "fedper"}}
    return Settings.from_values({**values, **changes})


def test_by_cost_the_walk_goes_on_while_a_fifth_is_saved() -> None:
    found = cuts(("a", 0.50, 0), ("b", 0.55, 0), ("c", 1.49, 0), ("d", 1.69, 0))
    layer, why = choose(found, "c", "cost")
    assert layer == "b"
    assert "from c: b takes 0.55 s" in why
    assert "in place of 1.49; a would take 0.5 s" in why
    assert choose(cuts(("a", 0.8, 0), ("b", 1.0, 0)), "b", "cost")[0] == "a"  # exactly a fifth
    assert choose(cuts(("a", 0.81, 0), ("b", 1.0, 0)), "b", "cost")[0] == "b"
    assert choose(found, "a", "cost") == ("a", "by cost, from a: it stays there")


def test_by_gain_the_walk_goes_on_while_clients_are_alike() -> None:
    found = cuts(("a", 1, 0.1), ("b", 1, 0.9), ("c", 1, 0.5), ("d", 1, 0.49))
    assert choose(found, "a", "gain")[0] == "c"
    assert choose(found, "d", "gain")[0] == "d"  # it never gives up what the model shares by itself
    assert "d is not worth sharing (n*/n 0.49" in choose(found, "a", "gain")[1]


def test_a_cut_that_cannot_be_taken_is_passed_over() -> None:
    found = cuts(("a", 0.1, 0), ("b", 0.5, 0), ("c", 1.0, 0))
    found[1] = replace(found[1], seconds=None, even_seconds=None, refused="no units")
    assert choose(found, "c", "cost")[0] == "a"
    assert choose(found, "b", "cost")[0] == "a"
    assert choose([replace(found[0], refused="no"), *found[1:]], "b", "cost")[0] == "c"


def test_at_equal_work_a_larger_shared_part_never_takes_less_time() -> None:
    joint = {"allocation": {"rule": "joint"}, "algorithm": {"name": "flpdsp"}}
    for settings in (of_digits(), of_digits(**joint)):
        found = choose_cut(settings, gains=False).cuts
        assert [cut.layer for cut in found] == ["conv1", "conv2", "conv3", "fc1"]
        seconds = [cut.even_seconds or 0.0 for cut in found]
        assert seconds == sorted(seconds)
        assert all(cut.gain is None for cut in found)
    assert [cut.head_steps for cut in found] == [1, 1, 5, 20]


def test_without_a_price_of_sending_every_cut_takes_the_same_time() -> None:
    band = {"radio": {"fleet": {"bandwidth_hz": 1e15, "radius_m": 2.0}}}
    seconds = [cut.seconds or 0.0 for cut in choose_cut(of_digits(**band), gains=False).cuts]
    assert seconds == pytest.approx([seconds[0]] * 4, rel=1e-2)


def test_sizes_and_work_add_up_to_the_model() -> None:
    for cut in choose_cut(of_digits(), gains=False).cuts:
        assert cut.shared + cut.private == 61_706
        assert (cut.shared_operations or 0) + (cut.private_operations or 0) == 416_520


def test_gains_tell_like_clients_from_unlike_ones() -> None:
    unlike = choose_cut(of_digits()).cuts
    iid = {"split": "auto:gain", "partition": {"kind": "iid", "clients": 20}}
    alike = choose_cut(of_digits(task=iid))
    assert max(cut.gain or 0.0 for cut in unlike) < 0.1
    assert min(cut.gain or 0.0 for cut in alike.cuts) > 0.5
    assert alike.chosen == "fc1"
