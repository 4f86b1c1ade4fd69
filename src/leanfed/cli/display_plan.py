"""What `leanfed plan` and `leanfed bench` show."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from leanfed.cli.display import notices, screen, show_table

if TYPE_CHECKING:
    from leanfed.allocation.cells import Cell
    from leanfed.allocation.problem import Problem
    from leanfed.allocation.solution import Solution

MOST_ROWS = 40  # clients shown in full
END_ROWS = 10  # of a longer fleet, shown from either end
OUT = "excluded"  # of a plan
MOST_REASONS = 10  # excluded or starved clients explained one by one


@contextmanager
def working(text: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner with a line of text while something runs; the text may change."""
    if quiet:
        yield lambda now: None
        return
    with notices.status(text) as status:
        yield lambda now: status.update(f"{text}: {now}")


def show_plan(cell: Cell, solution: Solution, form: str, *, everyone: bool) -> None:
    """The plan as a table, then what it is best at, the price of bandwidth, and who is left out or starved."""
    from leanfed.allocation.starvation import needs_of

    show_table(plan_table(cell, solution, form, everyone=everyone))
    for line in quality_lines(cell.problem, solution, form):
        screen.print(line, highlight=False, soft_wrap=True)
    fast = form == "fast"
    left = [(cell.name(entry.client), entry.why) for entry in solution.excluded[:MOST_REASONS]]
    title = "sit this round out (a run asks everyone at least once in ten)" if fast else "excluded"
    _show_reasons(title, left, len(solution.excluded))
    if fast:
        return
    named = solution.starved[:MOST_REASONS]
    needs = zip(map(cell.name, named), needs_of(cell.problem, named, solution.payload), strict=True)
    advice = "" if cell.problem.k_min.any() else "; --set k_min=0.01 gives everyone a floor"
    _show_reasons(f"starved, k below 0.01 or at its floor{advice}", list(needs), len(solution.starved))


def _show_reasons(title: str, reasons: Sequence[tuple[str, str]], count: int) -> None:
    if not count:
        return
    screen.print(f"{count} {title}:", highlight=False, soft_wrap=True)
    for name, why in reasons:
        screen.print(f"  {name}: {why}", highlight=False, soft_wrap=True, markup=False)
    if count > len(reasons):
        screen.print(f"  and {count - len(reasons)} more; --json lists all", highlight=False)


def plan_table(cell: Cell, solution: Solution, form: str, *, everyone: bool = True) -> Table:
    """One row per client: rates, share, latency, energy and the limit that binds; long fleets are cut in the middle."""
    import numpy as np

    from leanfed.allocation.forms import held_by
    from leanfed.allocation.limits import plan_cost

    problem = cell.problem
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, solution.payload)
    band_hz = np.broadcast_to(problem.band_hz, problem.clients)
    held, starved = held_by(problem, solution, form), set(() if form == "fast" else solution.starved)
    how = "" if solution.solver in ("certified", "fast") else f" by {solution.solver}"
    table = _slim_table(f"{form} plan{how} for {problem.clients} devices, {_medium(problem)}")
    table.add_column("device" if cell.names else "client", justify="left" if cell.names else "right", no_wrap=True)
    for heading in ("k", "r", "share %", "kbit/s" if problem.linked else "kHz", "latency s", "energy J"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("held by")
    cut = not everyone and problem.clients > MOST_ROWS
    shown = [*range(END_ROWS), *range(problem.clients - END_ROWS, problem.clients)] if cut else range(problem.clients)
    for n in shown:
        name = escape(cell.name(n)) if cell.names else str(n)
        if held[n] == OUT:
            table.add_row(name, *"-" * 6, "sits out" if form == "fast" else OUT)
            continue
        share = solution.l[n]
        numbers = (f"{solution.k[n]:.3f}", f"{solution.r[n]:.3f}", f"{100 * share:.3f}")
        costs = (f"{share * band_hz[n] / 1e3:.2f}", f"{latency[n]:.4g}", f"{energy[n]:.4g}")
        names = [held[n]] * (held[n] != "nothing") + ["starved"] * (n in starved)
        table.add_row(name, *numbers, *costs, ", ".join(names) or "nothing")
        if cut and n == END_ROWS - 1:
            table.add_row("...", *[""] * 7)
    if cut:
        table.caption = "--all shows every device"
    return table


def _medium(problem: Problem) -> str:
    """What the devices send over."""
    return "each on its own link" if problem.linked else f"{problem.bandwidth_hz / 1e6:g} MHz"


def _slim_table(title: str) -> Table:
    """A table without walls, so that its columns fit a narrow terminal."""
    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def quality_lines(problem: Problem, solution: Solution, form: str) -> list[str]:
    """What the plan is best at, how good it is, what holds the clients, and what more bandwidth would be worth."""
    from leanfed.allocation.forms import AIMS, held_by, in_words
    from leanfed.allocation.what_if import summary_of

    if solution.objective is None:
        return [f"{solution.status}: no client can take part ({_duration(solution.seconds)})"]
    summary, held = summary_of(problem, solution), Counter(held_by(problem, solution, form))
    certified = solution.lower_bound is not None and solution.relative_gap is not None
    bound = f"; no plan is below {solution.lower_bound:.6g}, gap {solution.relative_gap:.1e}" if certified else ""
    value = "" if form == "fast" else f": objective {solution.objective:.6g}{bound}"
    lines = [
        f"aim of the form {form}: {AIMS[form]}",
        f"{solution.status} in {_duration(solution.seconds)}{value}",
        f"in words: {in_words(problem, solution, form)}",
        f"{summary['participants']} of {problem.clients} take part: mean k {summary['mean_k']:.3f}, "
        f"mean r {summary['mean_r']:.3f}",
        f"held by: {', '.join(f'{name} {count}' for name, count in held.most_common())}",
    ]
    if solution.price is not None and not problem.linked:
        per_mhz = solution.price / (problem.bandwidth_hz / 1e6)
        meaning = "what more of it would take off the objective" if solution.price > 0 else "there is enough"
        lines.append(f"price of bandwidth: {solution.price:.4g} per share, {per_mhz:.4g} per MHz ({meaning})")
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def show_cuts(choice: Mapping[str, Any]) -> None:
    """Every cut of a model as a row, then which one is taken and why."""
    numbers = (
        "shared",
        "private",
        "multiply-adds",
        "of the head",
        "head steps",
        "s a round",
        "at equal work",
        "J",
        "n*/n",
    )
    table = Table("cut after", *numbers, "")
    for cut in choice["cuts"]:
        both = (cut["shared_operations"], cut["private_operations"])
        known = [f"{sum(both):,}", f"{both[1] / max(1, sum(both)):.1%}"] if None not in both else ["-", "-"]
        planned = [_short(cut[name]) for name in ("seconds", "even_seconds", "joules", "gain")]
        marks = [
            name for name, layer in (("chosen", choice["chosen"]), ("its own", choice["own"])) if layer == cut["layer"]
        ]
        note = escape(cut["refused"] or ", ".join(marks))
        sizes = [f"{cut['shared']:,}", f"{cut['private']:,}", *known, str(cut["head_steps"])]
        table.add_row(escape(cut["layer"]), *sizes, *planned, note)
    show_table(table)
    screen.print(f"cut after {choice['chosen']}, {choice['why']}", highlight=False, soft_wrap=True, markup=False)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def show_what_if(field: str, rows: Sequence[Mapping[str, Any]], form: str) -> None:
    """One row per value of the question: who takes part, whom the round waits for, and what it spends."""
    table = _slim_table(f"what if {field} changes ({form} plans)")
    value_head = [] if form == "fast" else ["objective", "gap"]
    for heading in (field, "take part", "round s", "slowest", "energy J", "mean k", "mean r", *value_head, "r < 0.05"):
        table.add_column(heading, justify="left" if heading == "slowest" else "right", no_wrap=True)
    for row in rows:
        value = "no limit" if row[field] is None else f"{row[field]:,}" if field == "clients" else f"{row[field]:g}"
        part = f"{row['participants']} of {row['clients']}"
        if row["objective"] is None:
            table.add_row(value, part, str(row["status"]), *"-" * (5 + len(value_head)))
            continue
        costs = (f"{row['slowest_s']:.4g}", escape(row["slowest"]), f"{row['energy_j']:.4g}")
        gap = "-" if row["relative_gap"] is None else f"{row['relative_gap']:.1e}"
        judged = [f"{row['objective']:.6g}", gap] if value_head else []
        rates = (f"{row['mean_k']:.3f}", f"{row['mean_r']:.3f}")
        table.add_row(value, part, *costs, *rates, *judged, str(row["erased"]))
    show_table(table)


def draw_plan(path: Path, cell: Cell, solution: Solution, form: str) -> None:
    """The picture of a plan: over distance where it is known, else over the channel's gain."""
    import numpy as np

    from leanfed.charts.cell import CellPicture, draw_cell

    problem = cell.problem
    with np.errstate(divide="ignore"):
        gain_db = np.maximum(10.0 * np.log10(problem.channel_gain), -400.0)  # no gain at all is drawn at the edge
    place, label = (
        (gain_db, "channel gain [dB]")
        if problem.link_bit_per_s is None
        else (
            problem.link_bit_per_s / 1e6,
            "own link [Mbit/s]",
        )
    )
    picture = CellPicture(
        place=place if cell.distance_m is None else cell.distance_m,
        place_label=label if cell.distance_m is None else "distance to the base station [m]",
        k=solution.k,
        r=solution.r,
        share=100.0 * solution.l,
        cpu_ghz=problem.cpu_hz / 1e9,
        excluded=[entry.client for entry in solution.excluded],
        starved=() if form == "fast" else solution.starved,
        title=f"{form} plan: {problem.clients} devices, {_medium(problem)}",
        left_out="sits out" if form == "fast" else OUT,
        names=cell.names,
    )
    draw_cell(path, picture)


def show_rows(rows: Sequence[Mapping[str, Any]], title: str, as_json: bool) -> None:
    """Measured rows as a table, or as the JSON list that a machine reads."""
    if as_json:
        typer.echo(json.dumps([{name: _finite(value) for name, value in row.items()} for row in rows]))
        return
    headings = list(dict.fromkeys(name for row in rows for name in row))
    same = [name for name in headings if len(rows) > 1 and len({row.get(name) for row in rows}) == 1]
    table = _slim_table(title + "".join(f", {name} {_cell_text(rows[0][name])}" for name in same))
    for heading in headings:
        if heading not in same:
            table.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_cell_text(row.get(heading)) for heading in headings if heading not in same))
    show_table(table)


def show_row(row: Mapping[str, Any], title: str, as_json: bool) -> None:
    """One measurement: a line per quantity, or a JSON object."""
    if as_json:
        typer.echo(json.dumps({name: _finite(value) for name, value in row.items()}))
        return
    table = Table(title=title, show_header=False)
    for name, value in row.items():
        table.add_row(name.replace("_", " "), _cell_text(_finite(value)))
    show_table(table)


def _finite(value: Any) -> Any:
    """What could not be measured becomes null: JSON has neither NaN nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
