"""The verb `leanfed serve`."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Annotated

import typer

from leanfed.cli.display import screen
from leanfed.cli.options import DATA_DIR


def serve(
    folder: Annotated[Path, typer.Argument(help="A folder of run folders, or one run folder.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback asks visitors for a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 8050,
    token: Annotated[bool, typer.Option("--token", help="Ask for a token on loopback too.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name under which browsers reach the server; may be repeated.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of data sets for resumed runs.", show_default=DATA_DIR)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print where it listens as one JSON object.")] = False,
) -> None:
    """Show runs while they go on, stop and resume them, and plan rounds, in a browser.

    Example: leanfed serve runs --port 8050
    """
    from leanfed.allocation.warm import warm
    from leanfed.report.live.board import Board
    from leanfed.report.live.processes import Processes
    from leanfed.report.live.server import listen
    from leanfed.report.live.server import serve as answer_requests
    from leanfed.report.live.web_access import Rules, choose_token

    board = Board(folder, Processes(data_dir))
    secret = choose_token(host, token)
    listener = listen(host, port)
    taken = int(listener.getsockname()[1])
    names = {name.lower() for name in (socket.gethostname(), *(allow_host or []))}
    rules = Rules(host, taken, secret, frozenset(names))
    _announce(host, taken, secret, folder, as_json)
    answer_requests(board, rules, listener, warm)


def _announce(host: str, port: int, token: str | None, folder: Path, as_json: bool) -> None:
    """Where to point the browser."""
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    if as_json:
        print(json.dumps({"url": address, "folder": str(folder), "token": token}), flush=True)
        return
    screen.print(f"runs of {folder} and the planner: {address}", highlight=False, soft_wrap=True, markup=False)
    if token:
        note = "The token travels in the clear: beyond networks you trust, tunnel it (ssh -L) or put TLS in front."
        screen.print(note, highlight=False, soft_wrap=True)
    screen.print("Ctrl-C ends it; runs go on without it.", highlight=False)
