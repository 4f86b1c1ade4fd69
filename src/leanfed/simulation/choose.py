"""Choice of the engine: the fastest that can run the world, or the one named in the settings."""

from __future__ import annotations

from typing import Final

from leanfed.errors import SettingsError
from leanfed.rounds.engine import ENGINES, Engine
from leanfed.rounds.ranks import ALONE, Ranks
from leanfed.rounds.world import World
from leanfed.simulation import reference, streamed  # noqa: F401  (registers them)
from leanfed.simulation.batched import engine as batched
from leanfed.simulation.ranks import RankedEngine, check_spread

AUTO: Final = "auto"  # the fastest that fits


def choose_engine(
    world: World, name: str = AUTO, threads: int | None = None, *, wire: str | None = None, ranks: Ranks = ALONE
) -> Engine:
    """The engine of a run; `.name` and `.reason` say which and why.

    `threads` is the number of worker threads, by default as many as torch would use; the results do not depend on it.
    `wire` sends every upload through the codec as values of that type. On several `ranks` it computes the clients of
    this one, with the answers of all.
    """
    check_spread(world, ranks)
    chosen, reason = _fastest(world, wire, ranks) if name == AUTO else (name, f"The {name} engine was asked for.")
    spec = ENGINES[chosen]
    if obstacle := spec.obstacle(world, wire):
        raise SettingsError(f"The {name!r} engine cannot run this: {obstacle}. Choose engine 'auto' or 'streamed'.")
    engine = spec.build(world, threads, wire)
    engine.reason = reason
    serve_rule(engine, world)
    if ranks.size == 1:
        return engine
    if not engine.any_company:
        raise SettingsError(
            f"The engine {engine.name!r} rounds a client's numbers differently in chunks of another size, so "
            f"{ranks.size} ranks would not give the result of one. Choose run.engine = 'auto' or 'streamed'."
        )
    return RankedEngine(engine, ranks)


def _fastest(world: World, wire: str | None, ranks: Ranks) -> tuple[str, str]:
    """The fastest engine that fits a world, and why it is that one."""
    if obstacle := ENGINES["batched-torch"].obstacle(world, wire):
        reason = "The streamed engine trains clients one after another; the batched engine does not fit"
        return "streamed", f"{reason}: {obstacle}."
    if not batched.has_numba() and ranks.size > 1:
        return "streamed", "The streamed engine trains clients one after another; the batched engine needs numba."
    if not batched.has_numba():
        reason = "The batched-torch engine trains chunks of clients at once; with numba installed it would be faster."
        return "batched-torch", reason
    return "batched", "The batched engine trains chunks of clients at once with compiled kernels."


def serve_rule(engine: Engine, world: World) -> None:
    """Refuse an aggregation rule that needs single uploads from an engine that provides only their sum."""
    if world.aggregation.single_uploads and not engine.single_uploads:
        raise SettingsError(
            f"The aggregation rule {type(world.aggregation).__name__} looks at every upload by itself, but the engine "
            f"{engine.name!r} gives their sum only. Choose run.engine = 'streamed', or aggregation.name = 'mean'."
        )


def warm() -> None:
    """Compile the kernels, or load them from the cache of an earlier run; does nothing without numba."""
    if batched.has_numba():
        from leanfed.simulation.batched.fast import warm_kernels

        warm_kernels()
