"""How long to wait before something that ended is started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """1, 2, 4, ... seconds up to `most_s`; from the beginning again after `calm_s` seconds without an end."""

    first_s: float = 1.0
    most_s: float = 60.0
    calm_s: float = 120.0
    clock: Callable[[], float] = time.monotonic
    _next: float = field(default=0.0, init=False)
    _last: float = field(default=float("-inf"), init=False)

    def next(self) -> float:
        """Seconds to wait now."""
        now = self.clock()
        if now - self._last - self._next >= self.calm_s:
            self._next = 0.0
        self._next = min(self.most_s, 2 * self._next or self.first_s)
        self._last = now
        return self._next
