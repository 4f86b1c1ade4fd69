"""Records shared by several packages: frozen, typed, and validated when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
STARVED_BELOW = 0.01  # a client with a lower k hardly contributes


class Section(BaseModel):
    """A frozen table of settings; unknown keys, NaN, infinity, and text in the place of numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _a_number_is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation: Any = cls.model_fields[info.field_name or ""].annotation
        kinds = _kinds(annotation)
        if not kinds & {int, float}:
            return value
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, bool) and bool not in kinds:
                raise PydanticCustomError("number", "must be a number; {word} is none", {"word": str(each).lower()})
            if isinstance(each, str) and str not in kinds:
                raise PydanticCustomError("number", "must be a number; write it without quotes")
        return value


@cache
def _kinds(annotation: Any) -> frozenset[type]:
    """The plain types that a field may hold, those inside unions, tuples and literals included."""
    if get_origin(annotation) is Literal:
        return frozenset(type(value) for value in get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return frozenset({annotation})
    return frozenset[type]().union(*(_kinds(part) for part in get_args(annotation)))


@dataclass(frozen=True)
class RoundPlan:
    """Who takes part in a round, and how much each keeps of its gradient (k) and of its head (r)."""

    round: int
    participants: tuple[int, ...]  # client numbers, increasing
    k: Floats  # (participants,) keep rate of the base gradient
    r: Floats  # (participants,) keep rate of the head
    share: Floats | None = None  # (participants,) share of the bandwidth; None: even shares
    head_steps: int | None = None  # of each participant on a batch; None: the method's own number


def kept_counts(rate: npt.ArrayLike, size: npt.ArrayLike) -> Ints:
    """How many of `size` entries a keep rate keeps: rate x size rounded down, so that no deadline is exceeded.

    >>> int(kept_counts(0.1, 50_692))
    5069
    """
    # 1e-9 compensates the rounding of products such as 0.29 x 100 = 28.999999999999996.
    whole = np.floor(np.multiply(rate, size) + 1e-9)
    return np.minimum(whole, size).astype(np.int64)


def kept_count(rate: float, size: int) -> int:
    """`kept_counts` for one vector."""
    return int(kept_counts(rate, size))
