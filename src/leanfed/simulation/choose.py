"""Choice of the engine: the fastest that can run the world, or the one named in the settings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from leanfed.errors import SettingsError, nearest
from leanfed.rounds.engine import Engine
from leanfed.rounds.world import World
from leanfed.simulation.batched.engine import BatchedEngine, misfit
from leanfed.simulation.reference import ReferenceEngine
from leanfed.simulation.streamed import StreamedEngine

NAMES: Final = ("auto", "reference", "streamed", "batched", "batched-torch")


def choose_engine(world: World, name: str = "auto", threads: int | None = None, *, wire: str | None = None) -> Engine:
    """The engine of a run; `.name` and `.reason` say which and why.

    `threads` is the number of worker threads, by default as many as torch would use; the results do not depend on it.
    `wire` sends every upload through the codec as values of that type.
    """
    if name not in NAMES:
        raise SettingsError(f"Unknown engine {name!r}: {nearest(name, NAMES)}")
    obstacle = _obstacle(world, name, wire)
    if obstacle and name != "auto":
        raise SettingsError(f"The {name!r} engine cannot run this: {obstacle}. Choose engine 'auto' or 'streamed'.")
    engine: Engine
    if name == "reference":
        engine = ReferenceEngine(world, wire)
    elif name == "streamed" or obstacle:
        engine = StreamedEngine(world, wire, threads)
    else:
        engine = _batched(world, name, threads)
    engine.reason = _reason(name, obstacle, engine)
    serve_rule(engine, world)
    return engine


def serve_rule(engine: Engine, world: World) -> None:
    """Refuse an aggregation rule that needs single uploads from an engine that provides only their sum."""
    if world.aggregation.single_uploads and not engine.single_uploads:
        raise SettingsError(
            f"The aggregation rule {type(world.aggregation).__name__} looks at every upload by itself, but the engine "
            f"{engine.name!r} gives their sum only. Choose run.engine = 'streamed', or aggregation.name = 'mean'."
        )


def _obstacle(world: World, name: str, wire: str | None) -> str | None:
    """Why the batched engine cannot be used under this name, or None if it can."""
    if name in ("reference", "streamed"):
        return None
    if name == "batched" and not has_numba():
        return "numba, which compiles its kernels, is not installed; 'batched-torch' does without"
    return "radio.wire codes each client's upload by itself" if wire else misfit(world)


def _batched(world: World, name: str, threads: int | None) -> Engine:
    return BatchedEngine(world, compiled=name != "batched-torch" and has_numba(), threads=threads)


def _reason(name: str, obstacle: str | None, engine: Engine) -> str:
    if name != "auto":
        return f"The {engine.name} engine was asked for."
    if obstacle:
        return f"The streamed engine trains clients one after another; the batched engine does not fit: {obstacle}."
    if not has_numba():
        return "The batched-torch engine trains chunks of clients at once; with numba installed it would be faster."
    return "The batched engine trains chunks of clients at once with compiled kernels."


def has_numba() -> bool:
    """Whether kernels can be compiled."""
    return find_spec("numba") is not None


def warm() -> None:
    """Compile the kernels, or load them from the cache of an earlier run; does nothing without numba."""
    if has_numba():
        from leanfed.simulation.batched.fast import warm_kernels

        warm_kernels()
