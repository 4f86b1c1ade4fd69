"""Records shared by several packages: frozen, typed, and validated when they are made."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
STARVED_BELOW = 0.01  # a client with a lower k hardly contributes


class Section(BaseModel):
    """A frozen table of settings; unknown keys, NaN, infinity, and text in the place of numbers are refused.

    What a setting means stands in a string after it (`meanings`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _a_number_is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation: Any = cls.model_fields[info.field_name or ""].annotation
        kinds = _kinds(annotation)
        if not kinds & {int, float}:
            return value
        if value == "none" and type(None) in kinds and str not in kinds:  # TOML has no word for it
            return None
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, bool) and bool not in kinds:
                raise PydanticCustomError("number", "must be a number; {word} is none", {"word": str(each).lower()})
            if isinstance(each, str) and str not in kinds:
                raise PydanticCustomError("number", "must be a number; write it without quotes")
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, meaning in meanings(cls).items():
            properties[name]["description"] = meaning
        return schema


@cache
def meanings(section: type[Section]) -> dict[str, str]:
    """Setting -> the string after it in the source, its parents' included.

    Read when asked for: pydantic's `use_attribute_docstrings` reads all sources at every import, a third of its time.
    """
    found: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if issubclass(each, Section) and each is not Section:
            found |= _strings_after(each)
    return {name: found[name] for name in section.model_fields if name in found}


def _strings_after(section: type[Section]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(section))
    except (OSError, TypeError):  # typed at a prompt
        return {}
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: inspect.cleandoc(after.value.value)
        for field, after in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


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

    def only(self, places: Sequence[int]) -> RoundPlan:
        """The plan for the participants at some places; their shares of the band are as they were.

        >>> both = RoundPlan(3, (4, 7), np.array([0.1, 0.2]), np.ones(2), np.array([0.4, 0.6]), 5)
        >>> last = both.only([1])
        >>> last.participants, last.k.tolist(), last.share.tolist(), last.head_steps
        ((7,), [0.2], [0.6], 5)
        """
        chosen = list(places)
        share = None if self.share is None else self.share[chosen]
        participants = tuple(self.participants[place] for place in chosen)
        return replace(self, participants=participants, k=self.k[chosen], r=self.r[chosen], share=share)

    def each(self) -> Iterator[tuple[int, float, float, int | None]]:
        """Every participant's number, k, r and head steps."""
        for client, k, r in zip(self.participants, self.k.tolist(), self.r.tolist(), strict=True):
            yield client, k, r, self.head_steps


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
