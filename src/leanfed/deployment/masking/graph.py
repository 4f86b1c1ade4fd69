"""Who masks with whom, and how many shares rebuild a secret: the same for everybody from seed, round and clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from leanfed.streams import stream

LEAST: Final = 3  # of two summands each knows the other
Graph = Mapping[int, tuple[int, ...]]  # client -> its neighbours, ascending


def graph_of(clients: Collection[int], wanted: int | None, seed: int, number: int) -> Graph:
    """Every client's neighbours: all others (None), or those next to it on a ring drawn anew each round.

    An odd number of neighbours is one more, so that both sides of the ring are alike.

    >>> {len(found) for found in graph_of(range(9), 3, seed=0, number=0).values()}
    {4}
    """
    members = sorted(clients)
    count = len(members)
    half = count if wanted is None else (wanted + 1) // 2
    if 2 * half >= count - 1:
        return {one: tuple(other for other in members if other != one) for one in members}
    ring = [members[place] for place in stream(seed, "masks", number).permutation(count).tolist()]
    steps = [step for step in range(-half, half + 1) if step]
    return {one: tuple(sorted(ring[(at + step) % count] for step in steps)) for at, one in enumerate(ring)}


def threshold(neighbours: int) -> int:
    """Shares that rebuild a secret: two thirds of those who hold one, neighbours and client, rounded up.

    Twice as many are more than there are, so that holders who each give one kind of share cannot give both secrets.

    >>> [threshold(neighbours) for neighbours in (2, 3, 4, 20)]
    [2, 3, 4, 14]
    """
    return -(-2 * (neighbours + 1) // 3)


def holders(client: int, graph: Graph) -> tuple[int, ...]:
    """Who holds shares of a client's secrets, in the order in which they were made."""
    return tuple(sorted((client, *graph[client])))


def connected(clients: Collection[int], graph: Graph) -> bool:
    """Whether masks link all these clients: the sums of parts that nothing links would show one by one."""
    left = set(clients)
    reached = [left.pop()] if left else []
    while reached:
        found = left & set(graph[reached.pop()])
        left -= found
        reached.extend(found)
    return not left


def why_too_few(survivors: Collection[int], shared: Collection[int], graph: Graph) -> str | None:
    """Why masks of the clients in `shared` cannot be taken off, or must not, when only `survivors` have uploaded."""
    if len(survivors) < LEAST:
        return f"{len(survivors)} uploads, and {LEAST} are the least that a sum hides"
    if not connected(survivors, graph):
        return "the uploads that came are not all linked by masks, so that parts of the sum would show"
    for client in sorted(shared):
        there = len(set(holders(client, graph)) & set(survivors))
        if there < (most := threshold(len(graph[client]))):
            return f"{there} holders of client {client}'s shares are left, and {most} are needed"
    return None


def why_unfair(weights: Sequence[float]) -> str | None:
    """Why a sum with these weights would be little more than one client's update; None if it is not so."""
    total = sum(weights)
    if not total or max(weights) > total / 2:
        return f"one of {len(weights)} clients has {max(weights, default=0) / (total or 1):.0%} of the weight"
    return None
