"""What a run may spend: it ends with the round that reaches a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Budget:
    """Limits by column of the rounds table, and what has been spent of each. Not frozen: rounds spend it.

    >>> budget = Budget({"latency_s": 3.0})
    >>> [budget.spend({"latency_s": 2.0}), budget.spend({"latency_s": 2.0})]
    [False, True]
    """

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = dict(limits)
        self.spent = dict.fromkeys(self.limits, 0.0)

    def spend(self, row: Mapping[str, Any]) -> bool:
        """Count a round's row; tells whether a limit is reached."""
        for column in self.limits:
            self.spent[column] += float(row.get(column) or 0.0)
        return self.reached

    @property
    def reached(self) -> bool:
        """Whether a limit is reached."""
        return any(self.spent[column] >= limit for column, limit in self.limits.items())
