"""Rounds of masked updates: what the server's loop does in place of looking at single ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanfed.deployment.learning.checks import Expected, Masked
from leanfed.deployment.learning.mail import Accepted
from leanfed.deployment.learning.questions import Questions
from leanfed.deployment.masking.rules import Rules
from leanfed.deployment.masking.sums import MaskedRound
from leanfed.records import Floats, RoundPlan


@dataclass
class MaskedRounds:
    """The masked sums of a run, one at a time."""

    run: str
    rules: Rules
    questions: Questions
    now: MaskedRound | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # of this round, for the audit log

    def agree(self, plan: RoundPlan, gamma: Floats) -> RoundPlan:
        """Let the participants exchange keys and shares; returns the plan of those that can be asked to upload."""
        inbox = self.questions.inbox
        self.questions.up.clear()
        self.questions.down.clear()
        cards = {one: inbox.bindings.card(inbox.members[one].node) for one in plan.participants}
        now = MaskedRound(self.run, plan.round, self.rules, self.questions.ask, cards.__getitem__)
        now.agree({one: float(gamma[one]) for one in plan.participants})
        self.now = now
        self.facts = {"asked": len(plan.participants), "keys": len(now.keys), "shared": len(now.weights)}
        return part_of(plan, now.weights)

    def masked(self, orders: list[Expected], base: str) -> list[Expected]:
        """The orders to train, each with what its client needs to mask its update."""
        now, training = self.now, [one for one in orders if one.order.train]
        if now is None or not training:
            return orders
        now.bind(base, training[0].entries)
        bound = now.transcript.hex()
        return [
            replace(one, masked=Masked(now.order_for(one.order.client), now.bits, bound)) if one.order.train else one
            for one in orders
        ]

    def why_not(self, accepted: Mapping[int, Accepted]) -> str | None:
        """Why these updates cannot be summed, before anything of them is shown; None if they can."""
        if self.now is None or not self.now.weights:
            return "too few clients have shared their keys"
        return self.now.why_not(set(accepted))

    def mean(self, size: int, accepted: Mapping[int, Accepted]) -> Tensor:
        """The weighted mean (size,) of the updates, of which the server sees no single one."""
        assert self.now is not None
        uploads = {one: found.upload.values.numpy().astype(np.uint64) for one, found in accepted.items()}
        values = torch.from_numpy(self.now.mean(uploads)).to(torch.float32)
        positions = next(iter(accepted.values())).upload.positions
        return values if positions is None else torch.zeros(size).index_copy_(0, positions, values)

    def bill(self, accepted: Mapping[int, Accepted]) -> dict[int, Accepted]:
        """The updates with the bytes of all of a client's messages in this round."""
        up = self.questions.up
        return {one: replace(found, message_bytes=found.message_bytes + up[one]) for one, found in accepted.items()}

    def told(self, accepted: Mapping[int, Accepted]) -> dict[str, Any]:
        """Facts of the round for the audit log: who did what, and bytes beside orders and updates."""
        sizes = {"bytes_up": self.questions.up.total(), "bytes_down": self.questions.down.total()}
        return {**self.facts, "uploaded": len(accepted), **sizes}


def part_of(plan: RoundPlan, clients: Mapping[int, object]) -> RoundPlan:
    """The plan of some of its participants."""
    return plan.only([place for place, client in enumerate(plan.participants) if client in clients])
