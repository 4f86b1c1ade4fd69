"""Settings drawn from the JSON schema, valid and damaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from leanfed.runs.settings import json_schema

WORDS = ("", "mnist-5k", "lenet5", "test", "conv2", "fc1", "crop", "mean", "naïve ☃", "../x", "-", "a" * 300)
FREE = {
    "dataset": ("mnist-5k",),
    "model": ("lenet5", "lenet5", "tiny", ""),
    "split": ("conv2", "fc1", "fc2", "nowhere"),
    "test_on": ("test", "test", "validation"),
}
WRONG: tuple[Any, ...] = (
    *(None, True, False, "", "5", "nan", [], {}, [[]], {"name": 3}, -1, 0, 1, 1e-320, 0.5, 1e300, -1e300),
    *(10**12, -(10**30), 10**299, math.nan, math.inf, -math.inf, "a\x00b", [1, "two", None], {"x": {"y": [{}]}}),
)
SMALL = {"clients": 40, "batch_size": 64, "threads": 4, "devices": 200, "rounds": 1_000}
"""Larger numbers of these make a trial round slow, or are refused; they are drawn only now and then."""


def settings() -> SearchStrategy[dict[str, Any]]:
    """Settings as a user may write them, with up to three places that are wrong."""
    schema = json_schema()
    whole = _values(schema, schema["$defs"], "")
    return st.one_of(whole, st.builds(_damaged, whole, st.lists(st.integers(0, 10**6), max_size=3), _wrong()))


def _wrong() -> SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(WRONG) | st.text(max_size=5) | st.floats(), min_size=3, max_size=3)


def _values(schema: Mapping[str, Any], known: Mapping[str, Any], name: str) -> SearchStrategy[Any]:
    """Values that a JSON schema allows, with a liking for its limits."""
    if "$ref" in schema:
        return _values(known[schema["$ref"].rpartition("/")[2]], known, name)
    if "anyOf" in schema:
        return st.one_of([_values(each, known, name) for each in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    match schema["type"]:
        case "object":
            return _tables(schema, known)
        case "array":
            return _lists(schema, known, name)
        case "integer":
            return _integers(schema, name)
        case "number":
            return _numbers(schema)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return st.sampled_from(FREE.get(name, WORDS))


def _tables(schema: Mapping[str, Any], known: Mapping[str, Any]) -> SearchStrategy[dict[str, Any]]:
    parts = {key: _values(inner, known, key) for key, inner in schema["properties"].items()}
    needed = {key: parts.pop(key) for key in schema.get("required", ())}
    return st.fixed_dictionaries(needed, optional=parts)


def _lists(schema: Mapping[str, Any], known: Mapping[str, Any], name: str) -> SearchStrategy[list[Any]]:
    if "prefixItems" in schema:
        return st.tuples(*(_values(each, known, name) for each in schema["prefixItems"])).map(list)
    return st.lists(_values(schema["items"], known, name), max_size=6)


def _integers(schema: Mapping[str, Any], name: str) -> SearchStrategy[int]:
    low, high = schema.get("minimum", -3), schema.get("maximum", 10**9)
    usual = st.integers(low, min(high, SMALL.get(name, 50)))
    return usual | usual | st.sampled_from([low, schema.get("default") or low]) | st.integers(low, high)


def _numbers(schema: Mapping[str, Any]) -> SearchStrategy[float]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1.0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1e9))
    edges = [schema[key] for key in ("minimum", "maximum", "default") if schema.get(key) is not None]
    limits = {"exclude_min": "exclusiveMinimum" in schema, "exclude_max": "exclusiveMaximum" in schema}
    usual = st.floats(low, min(high, 10.0), **limits)
    return usual | st.floats(low, high, **limits) | (st.sampled_from(edges) if edges else usual)


def _damaged(values: dict[str, Any], places: list[int], wrong: list[Any]) -> dict[str, Any]:
    """The values with something wrong put into some places: instead of a value, or under a key of its own."""
    for place, value in zip(places, wrong, strict=False):
        tables = list(_inner(values))
        table = tables[place % len(tables)]
        keys = [*table, "unknown_key"]
        table[keys[place % len(keys)]] = deepcopy(value)  # or a table of WRONG would be changed, even put into itself
    return values


def _inner(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [values, *(found for value in values.values() if isinstance(value, dict) for found in _inner(value))]
