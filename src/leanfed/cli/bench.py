"""The verbs `leanfed bench ...`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from leanfed.cli.display_plan import show_row, show_rows, working
from leanfed.cli.options import Json

bench = typer.Typer(
    help="Measure how fast leanfed is on this machine.\n\nExample: leanfed bench plan --json", no_args_is_help=True
)


@bench.command("engine")
def bench_engine(
    clients: Annotated[
        int | None, typer.Option(min=1, help="Clients in the round.", show_default="100, 4 of a large model")
    ] = None,
    model: Annotated[str, typer.Option(help="A model by name, for example resnet18.")] = "lenet5",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Worker threads.", show_default="as many as torch uses")
    ] = None,
    grown: Annotated[int | None, typer.Option("--to", min=1, help="Time a round of so many clients, too.")] = None,
    as_json: Json = False,
) -> None:
    """Time a whole round against plain centralised training on the same samples.

    Example: leanfed bench engine --clients 100 --to 1000 --threads 1
    """
    from leanfed.simulation.bench import engine_bench

    with working("running rounds", quiet=as_json):
        row = engine_bench(clients, model, threads, grown=grown)
    show_row(row, "a round against centralised training", as_json)


@bench.command("codec")
def bench_codec(as_json: Json = False) -> None:
    """Compare coded sizes with the entropy bound, and time encoding and decoding.

    Example: leanfed bench codec --json
    """
    from leanfed.compression.bench import CASES, codec_rows

    with working("coding", quiet=as_json) as tell:

        def announced() -> Iterator[tuple[int, float]]:
            for size, keep_rate in CASES:
                tell(f"{size:,} values, k = {keep_rate:g}")
                yield size, keep_rate

        rows = codec_rows(announced())
    show_rows(rows, "coded updates", as_json)


@bench.command("plan")
def bench_plan(
    clients: Annotated[
        list[int] | None, typer.Option(min=1, help="Fleet sizes.", show_default="100 to 100,000")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Fleets of 100 clients; fewer of larger ones.")] = 20,
    dca: Annotated[bool, typer.Option(help="Time Algorithm 2 too, at 100 clients.")] = True,
    payload: Annotated[str, typer.Option(help="exact or paper.")] = "exact",
    as_json: Json = False,
) -> None:
    """Time the solvers and the tuned form on the paper's fleet with the sizes of LeNet-5 and ResNet-18.

    Example: leanfed bench plan --clients 100 --clients 10000
    """
    from leanfed.allocation.bench import plan_rows

    with working("planning", quiet=as_json) as tell:
        sizes = {"clients": clients} if clients else {}
        rows = plan_rows(seeds=seeds, dca=dca, payload=payload, progress=tell, **sizes)
    show_rows(rows, "seconds per plan", as_json)


@bench.command("scale")
def bench_scale(
    clients: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1_000_000, help="Numbers of clients.", show_default="1,000 to 1,000,000"),
    ] = None,
    participants: Annotated[int, typer.Option(min=1, help="Clients in a round.")] = 1_000,
    threads: Annotated[int, typer.Option(min=1, help="Worker threads.")] = 1,
    as_json: Json = False,
) -> None:
    """Time a round of as many participants among more and more clients.

    Example: leanfed bench scale --clients 1000 --clients 100000
    """
    from leanfed.runs.bench_scale import SIZES, scale_rows
    from leanfed.simulation.bench import torch_threads

    with working("running rounds", quiet=as_json) as tell, torch_threads(threads):
        rows = list(scale_rows(clients or SIZES, participants, threads, tell))
    show_rows(rows, "processor seconds of a round", as_json)


@bench.command("rules")
def bench_rules(
    uploads: Annotated[
        list[int] | None, typer.Option(min=1, max=10_000, help="Numbers of uploads.", show_default="100, 1,000")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time what every rule of aggregation takes for a round of sparse uploads, beside the mean.

    Example: leanfed bench rules --uploads 100
    """
    from leanfed.rounds.bench import CLIENTS, rule_rows

    with working("combining", quiet=as_json) as tell:
        rows = rule_rows(uploads or CLIENTS, progress=tell)
    show_rows(rows, "milliseconds of the server a round (LeNet-5's base, k = 0.05)", as_json)
