"""Numbers for a page: thinned to what a screen can show, and packed because text would be too long."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from leanfed.records import Floats, Ints

LEVELS = 65_534  # of a packed matrix; 65,535 stands for an empty cell
Packed = dict[str, Any]


def thinned(count: int, most: int) -> Ints:
    """At most about `most` evenly spaced positions out of `count`, including the first and the last.

    >>> thinned(10, 4).tolist()
    [0, 3, 6, 9]
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def floats(values: npt.ArrayLike) -> Packed:
    """A column in single precision; empty values are NaN."""
    return {"f32": _text(np.asarray(values, dtype="<f4"))}


def whole(values: npt.ArrayLike) -> Packed:
    """A column of whole numbers below 2^32."""
    return {"u32": _text(np.asarray(values, dtype="<u4"))}


def matrix(values: Floats) -> Packed:
    """A matrix quantised to 65,534 even steps between its smallest and largest entry; empty cells are NaN."""
    filled = np.isfinite(values)
    low, high = (float(values[filled].min()), float(values[filled].max())) if filled.any() else (0.0, 0.0)
    step = (high - low) / LEVELS or 1.0
    coded = np.full(values.shape, LEVELS + 1, dtype="<u2")
    coded[filled] = np.round((values[filled] - low) / step)
    shape = {"rows": values.shape[0], "columns": values.shape[1]}
    return {"u16": _text(coded), **shape, "low": low, "high": high, "step": step}


def unpacked(packed: Packed) -> Floats:
    """The numbers of a packed column or matrix, as the page reads them."""
    if "u16" in packed:
        codes = np.frombuffer(base64.b64decode(packed["u16"]), "<u2").reshape(packed["rows"], packed["columns"])
        return np.where(codes > LEVELS, np.nan, packed["low"] + codes * packed["step"])
    kind = "f32" if "f32" in packed else "u32"
    return np.frombuffer(base64.b64decode(packed[kind]), f"<{kind[0]}4").astype(float)


def script_json(value: Mapping[str, Any]) -> str:
    """JSON that cannot close the script element around it, whatever texts it contains."""
    text = json.dumps(clean(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return text.translate({ord(letter): code for letter, code in escapes.items()})


def clean(value: Any) -> Any:
    """Plain JSON values: numbers that are not finite become null, arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): clean(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return clean(value.tolist())
    if isinstance(value, (list, tuple)):
        return [clean(inner) for inner in value]
    if isinstance(value, np.generic):
        return clean(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _text(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
