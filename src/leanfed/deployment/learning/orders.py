"""Each client's order of a round, and what an honest answer to it looks like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from leanfed.algorithms.contract import SIGNALS
from leanfed.deployment.learning.checks import Expected
from leanfed.deployment.learning.members import Member
from leanfed.deployment.learning.messages import Order
from leanfed.records import RoundPlan
from leanfed.rounds.loop import shares_of
from leanfed.rounds.world import World

NOTHING = (0.0, 0.0, 0.0, 0)  # k, r, share and entries of a client that only tests


def make_orders(
    run: str,
    number: int,
    members: Iterable[Member],
    plan: RoundPlan | None,
    world: World,
    *,
    evaluate: bool,
    values: str,
    views: Callable[[Member], Sequence[str] | None] = lambda member: None,
) -> list[Expected]:
    """Training for the plan's participants; where a test is due, all members test, participants before they train.

    `views` names those that a member is led through where differences are sent.
    """
    given = _given(plan, world) if plan is not None else {}
    expected = []
    for member in members:
        if member.client not in given and not evaluate:
            continue
        k, r, share, entries = given.get(member.client, NOTHING)
        order = Order(
            run=run,
            token=os.urandom(16).hex(),
            round=number,
            client=member.client,
            applied=member.applied,
            applied_token=member.applied_token,
            train=member.client in given,
            evaluate=evaluate,
            k=k,
            r=r,
            share=share,
            head_steps=plan.head_steps if plan is not None and member.client in given else None,
            views=None if (through := views(member)) is None else list(through),
        )
        mask = world.algorithm.upload_form == "mask"
        size = world.vector_size
        most = most_samples(world, member)
        told = len(SIGNALS) if world.reports else 0
        known = world.support(number, entries) if order.train else None
        shown = world.metrics == "shown"
        expected.append(Expected(order, size, entries, mask, values, member.last_frame, most, told, shown, known))
    return expected


def most_samples(world: World, member: Member) -> float:
    """An upper bound of the samples that go through a client's training, by what it said to have."""
    training = world.training
    if training.local_epochs is None:
        return float(training.batch_size * training.local_steps)
    return training.local_epochs * float(member.samples) + training.batch_size


def _given(plan: RoundPlan, world: World) -> dict[int, tuple[float, float, float, int]]:
    """client -> (k, r, share, entries)."""
    entries = world.entries(plan)
    columns = zip(plan.k.tolist(), plan.r.tolist(), shares_of(plan).tolist(), entries.tolist(), strict=True)
    return dict(zip(plan.participants, columns, strict=True))
