"""The verb `leanfed plan`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from leanfed.cli.display import screen, warn
from leanfed.cli.display_plan import draw_plan, show_cuts, show_plan, show_what_if, working
from leanfed.cli.options import DataDir, Import, Json, import_all
from leanfed.errors import InputError, nearest
from leanfed.files import check_parent

if TYPE_CHECKING:
    from leanfed.allocation.cells import Source


class PlanCommand(TyperCommand):
    """`leanfed plan`, whose help lists the allocators that are registered; they are imported only then."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the help of --solver."""
        from leanfed.allocation import ALLOCATORS

        for parameter in self.params:
            if isinstance(parameter, TyperOption) and parameter.name == "solver":
                parameter.help = f"How safe and plain are planned: {', '.join(ALLOCATORS)}; or your own, with --import."
        super().format_help(ctx, formatter)


Form = Annotated[
    str | None,
    typer.Option(
        help="What to aim at: fast (most learning per second), safe or plain (the paper's).", show_default="fast"
    ),
]
WhatIf = Annotated[
    str | None, typer.Option(help="Solve once per value, for example bandwidth_hz=5e6,1e7 or clients=50,100")
]
Cuts = Annotated[
    Path | None,
    typer.Option(
        help="Instead of a round: every cut of the model in this settings file, what a round would take with it, and "
        "which one task.split = auto takes. --set then changes a setting."
    ),
]
Fleet = Annotated[
    str | None, typer.Option(help="Plan for this fleet instead of a file: paper, or a fleet as CSV or Parquet.")
]
Model = Annotated[
    str | None, typer.Option(help="Sizes and limits that go with --fleet: lenet5 or resnet18.", show_default="lenet5")
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of the paper's fleet and of the random solver.", show_default="0")
]
Radius = Annotated[float | None, typer.Option(help="Radius of the cell that --fleet paper draws.", show_default="200")]


def plan(
    problem: Annotated[Path | None, typer.Argument(help="Problem file (JSON); or use --fleet.")] = None,
    form: Form = None,
    solver: Annotated[str | None, typer.Option(help="How to plan.")] = None,
    payload: Annotated[str, typer.Option(help="Bits of an upload: exact, or the paper's count (paper).")] = "exact",
    fleet: Fleet = None,
    model: Model = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Take only (or draw) so many clients.")] = None,
    seed: Seed = None,
    radius_m: Radius = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change one field of the problem, for example --set k_min=0.05")
    ] = None,
    what_if: WhatIf = None,
    k: Annotated[float, typer.Option(min=0, max=1, help="The k that fixed and fastest aim at.")] = 0.5,
    r: Annotated[float, typer.Option(min=0, max=1, help="The r that fixed and fastest aim at.")] = 0.5,
    save: Annotated[Path | None, typer.Option(help="Write the problem that was solved to this file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw k, r and the shares over the cell (PNG).")] = None,
    cuts: Cuts = None,
    data_dir: DataDir = None,
    everyone: Annotated[bool, typer.Option("--all", help="Show every client, however many there are.")] = False,
    imports: Import = None,
    as_json: Json = False,
) -> None:
    """Plan one round: who sends how much (k), keeps how much of its head (r), and gets which share of the band.

    Example: leanfed plan --fleet paper --clients 20 --picture cell.png
    """
    from leanfed.allocation.forms import chosen_form
    from leanfed.allocation.what_if import parse_change, parse_question

    import_all(imports)
    if cuts is not None:
        _show_cuts(cuts, change or [], data_dir, as_json, given=(problem, fleet, what_if, save, picture))
        return
    _check(k, r, payload, (save, picture))
    drawn = {"--radius-m": radius_m, "--model": model, "--seed": None if solver == "random" else seed}
    _refuse_drawn(problem if fleet is None else None, drawn)
    seed = seed or 0
    source = _plan_source(problem, fleet, model or "lenet5", clients, seed, radius_m)
    changes = dict(parse_change(text) for text in change or [])
    form = chosen_form(form, solver)
    options = {"form": form, "solver": solver, "payload": payload, **_wanted(solver, k=k, r=r, seed=seed)}
    if what_if is not None:
        if save is not None or picture is not None:
            raise InputError("--what-if solves many problems, but --save and --picture are for one. Leave them out.")
        _answer(source, *parse_question(what_if), changes, options, as_json)
    else:
        _plan_once(source, changes, options, save=save, picture=picture, everyone=everyone, as_json=as_json)


def _show_cuts(
    config: Path, changes: Sequence[str], data_dir: Path | None, as_json: bool, given: Sequence[object]
) -> None:
    """The cuts of a settings file's model."""
    from leanfed.runs.cuts import choose_cut
    from leanfed.runs.packaged import settings_file
    from leanfed.runs.settings import Settings

    if any(other is not None for other in given):
        raise InputError("--cuts plans for a settings file. Leave out the problem, --fleet, --what-if and files.")
    settings = Settings.from_toml(settings_file(config), changes)
    with working("planning for every cut (the first use compiles)", quiet=as_json):
        choice = choose_cut(settings, data_dir)
    if as_json:
        typer.echo(json.dumps(choice.to_json()))
    else:
        show_cuts(choice.to_json())


def _refuse_drawn(problem: Path | None, options: Mapping[str, object]) -> None:
    """Refuse what says how clients are drawn, for a problem that holds its own."""
    for option, value in options.items():
        if problem is not None and value is not None:
            raise InputError(f"{option} is for --fleet, but {problem} holds its clients. Leave it out.")


def _check(k: float, r: float, payload: str, files: tuple[Path | None, ...]) -> None:
    """Refuse rates that are no numbers, an unknown count of bits, and files in folders that are not there."""
    from leanfed.allocation.curves import PAYLOADS

    if payload not in PAYLOADS:
        raise InputError(f"--payload is {payload!r}, which is no count of bits: {nearest(payload, PAYLOADS)}")
    if math.isnan(k) or math.isnan(r):
        raise InputError(f"--k is {k} and --r is {r}, but both must be numbers from 0 to 1.")
    for wanted in files:
        if wanted is not None:
            check_parent(wanted)


def _wanted(solver: str | None, **options: float) -> dict[str, float]:
    """Those of the command line's options that the allocator has."""
    from leanfed.allocation import ALLOCATORS

    known = signature(ALLOCATORS[solver]).parameters if solver is not None else ()
    return {name: value for name, value in options.items() if name in known}


def _plan_source(
    problem: Path | None, fleet: str | None, model: str, clients: int | None, seed: int, radius_m: float | None
) -> Source:
    """Where the problem comes from: exactly one of file and fleet."""
    from leanfed.allocation.cells import from_file, from_fleet

    if problem is not None and fleet is None:
        return from_file(problem, clients=clients)
    if fleet is not None and problem is None:
        return from_fleet(fleet, model=model, clients=clients, seed=seed, radius_m=radius_m)
    given = "neither is given" if problem is None else "both are given"
    raise InputError(f"A plan needs a problem file or --fleet, but {given}. For example: leanfed plan --fleet paper")


def _plan_once(
    source: Source,
    changes: dict[str, Any],
    options: dict[str, Any],
    *,
    save: Path | None,
    picture: Path | None,
    everyone: bool,
    as_json: bool,
) -> None:
    """Solve, show, draw and save one problem."""
    from leanfed.allocation.cells import save_problem
    from leanfed.allocation.forms import erased_warning, plan_in
    from leanfed.allocation.warm import load

    form = options["form"]
    cell = source(None).changed(changes).in_form(form)
    if save is not None:
        save_problem(save, cell.problem)
    with working("solving (the first use compiles)", quiet=as_json):
        load(form)
        solution = plan_in(problem=cell.problem, **options)
    if picture is not None:
        draw_plan(picture, cell, solution, form)
    if as_json:
        typer.echo(json.dumps(solution.to_json()))
    else:
        show_plan(cell, solution, form, everyone=everyone)
        for name, path in (("problem", save), ("picture", picture)):
            if path is not None:
                screen.print(f"{name}: {path}", highlight=False, soft_wrap=True)
    if (warning := erased_warning(cell.problem, solution, form)) is not None:
        warn(warning)
    raise typer.Exit(_exit_code([str(solution.status)]))


def _answer(
    source: Source,
    field: str,
    values: list[float | None],
    changes: dict[str, Any],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Solve one problem per value of a what-if question."""
    from leanfed.allocation.warm import load
    from leanfed.allocation.what_if import what_if as ask

    with working("solving", quiet=as_json) as tell:
        load(options["form"])
        rows = ask(source, field, values, changes=changes, progress=tell, **options)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        show_what_if(field, rows, options["form"])
    raise typer.Exit(_exit_code([row["status"] for row in rows]))


def _exit_code(statuses: Sequence[str]) -> int:
    """0 where anything was solved, 3 where nothing is feasible, 1 where the solver failed us."""
    if {"solved", "step_limit"} & set(statuses):
        return 0
    return 3 if "infeasible" in statuses else 1
