"""Choice of the engine: the fastest that can run the world, or the one named in the settings."""

from __future__ import annotations

from typing import Final

from leanfed.errors import SettingsError
from leanfed.rounds.engine import ENGINES, Engine
from leanfed.rounds.ranks import ALONE, Ranks
from leanfed.rounds.world import World
from leanfed.simulation import reference, streamed  # noqa: F401  (registers them)
from leanfed.simulation.batched import engine as batched
from leanfed.simulation.batched import stacked_engine
from leanfed.simulation.ranks import RankedEngine, check_spread

AUTO: Final = "auto"  # the fastest that fits


def choose_engine(
    world: World,
    name: str = AUTO,
    threads: int | None = None,
    *,
    wire: str | None = None,
    ranks: Ranks = ALONE,
    begun: str | None = None,
) -> Engine:
    """The engine of a run; `.name` and `.reason` say which and why.

    `threads` is the number of worker threads, by default as many as torch would use; the results do not depend on it.
    `wire` sends every upload through the codec as values of that type. On several `ranks` it computes the clients of
    this one, with the answers of all. A run that goes on keeps the engine that it was `begun` on, if that fits.
    """
    check_spread(world, ranks)
    if name != AUTO:
        chosen, reason = name, f"The {name} engine was asked for."
    elif begun is not None and begun in ENGINES and not ENGINES[begun].obstacle(world, wire):
        chosen, reason = begun, f"The {begun} engine began this run."
    else:
        chosen, reason = _fastest(world, wire, ranks)
    spec = ENGINES[chosen]
    if name != AUTO and (obstacle := spec.obstacle(world, wire)):  # else it was looked at above
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
    """The fastest engine that fits a world, and why; it follows from the settings, never from a clock."""
    if obstacle := ENGINES["batched-torch"].obstacle(world, wire):
        return _for_any_model(world, wire, ranks, obstacle)
    if not batched.has_numba() and ranks.size > 1:
        return "streamed", "The streamed engine trains clients one after another; the batched engine needs numba."
    if not batched.has_numba():
        reason = "The batched-torch engine trains chunks of clients at once; with numba installed it would be faster."
        return "batched-torch", reason
    return "batched", "The batched engine trains chunks of clients at once with compiled kernels."


def _for_any_model(world: World, wire: str | None, ranks: Ranks, kernels: str) -> tuple[str, str]:
    """The stacked engine where it pays, else the streamed one, and why; `kernels` is what the batched one lacks.

    One process and several ranks must choose alike, so on the processor it is taken only where any company will do.
    """
    one_by_one = "The streamed engine trains clients one after another; the batched engine does not fit"
    if not stacked_engine.pays(world):
        return "streamed", f"{one_by_one}: {kernels}."
    obstacle = ENGINES["stacked"].obstacle(world, wire)
    if obstacle is None and (ranks.size > 1 or world.device.type == "cpu") and not stacked_engine.same_alone(world):
        obstacle = "a client's last digits would depend on who computes beside it (batch sizes by 16 avoid that)"
    if obstacle is not None:
        return "streamed", f"{one_by_one}: {kernels}; nor does the stacked engine: {obstacle}."
    return "stacked", "The stacked engine trains chunks of clients at once, layer by layer."


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
