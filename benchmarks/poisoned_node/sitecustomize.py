"""A node gone bad: put this folder first in PYTHONPATH, and the node sends its updates a thousand times too large."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

TIMES = 1000.0


def spoil(module: ModuleType) -> None:
    honest = module.to_frame

    def to_frame(upload: Any, *more: Any) -> bytes:
        return bytes(honest(replace(upload, values=upload.values * TIMES), *more))

    module.to_frame = to_frame  # type: ignore[attr-defined]


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "leanfed.deployment.learning.work":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            spoil(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
