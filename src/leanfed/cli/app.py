"""Assembles the command line from its verbs. Exit codes: 0 ok, 2 the user's input, 3 infeasible, 1 a fault of ours."""

from __future__ import annotations

import atexit
import gc
import os
import select
import sys
from typing import Annotated

import typer
from rich.markup import escape

from leanfed.cli.bench import bench
from leanfed.cli.compare import compare
from leanfed.cli.data import data
from leanfed.cli.demo import demo
from leanfed.cli.deploy import deploy
from leanfed.cli.display import notices
from leanfed.cli.export import export
from leanfed.cli.models import models
from leanfed.cli.plan import PlanCommand, plan
from leanfed.cli.report import report
from leanfed.cli.reproduce import reproduce
from leanfed.cli.run import resume, run
from leanfed.cli.schema import schema
from leanfed.cli.serve import serve
from leanfed.cli.study import study
from leanfed.errors import InputError, LeanfedError

app = typer.Typer(
    name="leanfed",
    help="Lightweight personalised federated learning for the mobile edge.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
READER_GONE = 141  # what a shell shows of a program that SIGPIPE ended: `leanfed data | head -1` is no fault
VERBS = (
    demo,
    run,
    resume,
    compare,
    study,
    reproduce,
    report,
    export,
    serve,
    plan,
    data,
    models,
    schema,
)  # as --help shows them
for verb in VERBS:
    app.command(cls=PlanCommand if verb is plan else None)(verb)
app.add_typer(bench, name="bench")
app.add_typer(deploy, name="deploy")


def main() -> None:
    """Run the command line; an error that leanfed can explain ends it with a message and its exit code."""
    output = _output()
    atexit.register(gc.freeze)  # the interpreter would search all that torch and numba brought for cycles: 0.7 s
    try:
        for word in sys.argv[1:]:
            _check_text(word)
        app()
    except SystemExit as end:
        if end.code == 1 and output is not None and _nobody_reads(output):  # click and rich end with 1, as for a fault
            sys.exit(READER_GONE)
        raise
    except LeanfedError as error:
        _end("" if error.silent else str(error), error.exit_code)
    except OSError as error:  # asking whether a file is there can fail, too: no permission, a name that is too long
        if error.filename is None:
            raise
        _end(
            f"Cannot use {error.filename}: {error.strerror}. Check the path and its permissions.", InputError.exit_code
        )
    except KeyboardInterrupt:  # where nothing is lost and there is nothing to say
        sys.exit(130)


def _output() -> int | None:
    """Standard output under a number of its own, which outlives what libraries do to it; None: there is none."""
    try:
        return os.dup(1)
    except OSError:
        return None


def _nobody_reads(pipe: int) -> bool:
    if not hasattr(select, "poll"):  # Windows has no such pipes
        return False
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _check_text(word: str) -> None:
    """Refuse a name that is no text in the encoding of file names: libraries that write our files cannot take it."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{os.fsencode(word)!r} is not text in the encoding of file names, {sys.getfilesystemencoding()}. Rename "
            "the file or folder, or set LC_ALL to a UTF-8 locale."
        ) from None


def _end(message: str, exit_code: int) -> None:
    if message:  # an error may have been told by another rank
        notices.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True, markup=True)
    sys.exit(exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        from leanfed import __version__

        typer.echo(f"leanfed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:  # bare `leanfed` asks what there is: no mistake, so exit code 0
        typer.echo(context.get_help())


if __name__ == "__main__":
    main()
