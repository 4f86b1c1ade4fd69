"""How participants are cut into chunks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.rounds.world import World
from leanfed.simulation.batched.chunked import even_cuts
from leanfed.simulation.batched.engine import BatchedEngine


@given(st.integers(0, 500), st.integers(1, 60), st.integers(1, 8))
def test_cuts_are_even_cover_everything_and_keep_all_workers_busy(count: int, most: int, workers: int) -> None:
    cuts = even_cuts(count, most, workers)
    lengths = [cut.stop - cut.start for cut in cuts]
    assert sum(lengths) == count
    assert all(before.stop == after.start for before, after in pairwise(cuts))
    if count:
        assert max(lengths) <= most
        assert max(lengths) - min(lengths) <= 1
        assert len(cuts) % workers == 0 or len(cuts) == count


def test_threads_change_the_cuts_only_where_they_cannot_change_a_bit(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp())

    def cuts(compiled: bool) -> list[list[slice]]:
        return [BatchedEngine(world, compiled=compiled, threads=threads)._cuts(60) for threads in (1, 4)]

    ours, plain = cuts(compiled=True), cuts(compiled=False)
    assert len(ours[0]) < len(ours[1])
    assert plain[0] == plain[1]
