"""A node gone bad, for tests: put this folder first in PYTHONPATH, and the node sends noise instead of its updates,
then frames that claim ten gigabytes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import struct
import sys
from pathlib import Path
from types import ModuleType

TEN_GIGABYTES = 10**10


def spoil(module: ModuleType) -> None:
    honest = module.to_frame

    def to_frame(*arguments: object) -> bytes:
        frame, count = bytes(honest(*arguments)), Path(os.environ["FLWR_HOME"]) / "updates-spoilt"
        with count.open("a") as file:
            file.write("x")
        if count.stat().st_size % 2:
            return os.urandom(len(frame))
        return frame[:20] + struct.pack("<Q", TEN_GIGABYTES) + frame[28:]  # the bytes of values, by the header

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
