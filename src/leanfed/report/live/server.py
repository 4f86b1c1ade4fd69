"""`leanfed serve`: the list of runs, a live page for each run, and the planner, over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from threading import Thread
from typing import Any

import uvicorn
from markupsafe import Markup
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from leanfed.errors import InputError, LeanfedError
from leanfed.files import parse_json
from leanfed.report.data import report_data
from leanfed.report.live.board import Board
from leanfed.report.live.metrics import Metrics
from leanfed.report.live.starting import RefusedError, Wanted, checked_settings, form_fields
from leanfed.report.live.web_access import Guard, Rules
from leanfed.report.packing import script_json
from leanfed.report.page import SCRIPTS as REPORT_SCRIPTS
from leanfed.report.page import environment, plotly_script, static
from leanfed.report.planner.answers import Question, answer, presets
from leanfed.report.planner.curves import curves
from leanfed.results import RunFolder

LOOK_EVERY_S = 0.5  # how often a run folder is checked while its page is open
MOST_COMPARED = 20  # runs on one page
SIGN_OF_LIFE_S = 15.0  # interval of empty lines that keep the connection open
KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
PLOTTING = "plotly.min.js"
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
SCRIPTS = {  # page -> the scripts that it loads, in order
    "runs": ("core.js", "serve.js", "live_state.js", "runs.js"),
    "planner": (
        *(PLOTTING, "core.js", "cards.js", "tables.js", "serve.js", "live_state.js"),
        *("planner_controls.js", "planner_figures.js", "planner.js"),
    ),
    "missing": ("core.js", "serve.js"),
    "new": ("core.js", "serve.js", "live_state.js", "new.js"),
    "compare": (PLOTTING, *REPORT_SCRIPTS),
    "run": (PLOTTING, *REPORT_SCRIPTS, "live_state.js", "live.js"),
}


class Pages:
    """The responses to requests; all data comes from the run folders."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.closing = False  # ends the open event streams
        self.gauges = Metrics(board)

    def routes(self) -> list[Route]:
        """The routes of all pages and actions."""
        return [
            Route("/", self.runs),
            Route("/planner", self.planner),
            Route("/new", self.new),
            Route("/api/start", self.start, methods=["POST"]),
            Route("/compare", self.compare),
            Route("/run/{name:path}", self.run),
            Route("/data/{name:path}", self.data),
            Route("/events", self.all_events),
            Route("/events/{name:path}", self.run_events),
            Route("/stop/{name:path}", self.stop, methods=["POST"]),
            Route("/resume/{name:path}", self.resume, methods=["POST"]),
            Route("/api/plan", self.plan, methods=["POST"]),
            Route("/api/curves", self.curves, methods=["POST"]),
            Route("/metrics", self.metrics),
            Route("/static/{name}", static_file),
        ]

    def runs(self, request: Request) -> Response:
        """The list of runs."""
        return _page("runs.html", "runs", rows=self.board.rows(), root=str(self.board.root))

    def planner(self, request: Request) -> Response:
        """The planner."""
        return _page("planner.html", "planner", presets=presets())

    def new(self, request: Request) -> Response:
        """The form that starts a run."""
        return _page("new.html", "new", fields=form_fields(), root=str(self.board.root))

    async def start(self, request: Request) -> Response:
        """Check the settings of the form and start a run with them, or say what is wrong beside its fields."""
        values = await _json_body(request)
        try:
            wanted = Wanted.model_validate(values)
        except ValidationError as error:
            raise InputError(f"The form's content is not as expected: {error.errors()[0]['msg']}.") from None
        try:
            where = self.board.processes.data_dir
            file, folder = await run_in_threadpool(checked_settings, self.board.root, wanted, where)
        except RefusedError as refused:  # with status 200: browsers log other statuses as errors of the page
            return JSONResponse({"refused": refused.reasons})
        self.board.processes.start(file, folder)
        return JSONResponse({"started": wanted.name})

    def compare(self, request: Request) -> Response:
        """The report of some runs side by side."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        folders = [self.board.find(name) for name in names[:MOST_COMPARED]]
        if not folders or None in folders:
            raise NotThereError("Choose runs of the list to compare; one of these is not there.")
        data = report_data([folder.path for folder in folders if folder is not None])
        return _page("compare.html", "compare", title=data["title"], data=Markup(script_json(data)))

    def run(self, request: Request) -> Response:
        """One run's page."""
        name, folder = self._asked(request)
        data = self.board.data(name, folder)
        values = {"title": name, **(data or {})}
        row = self.board.row(name, folder, fresh=True)
        return _page(
            "live.html", "run", title=values["title"], data=Markup(script_json(data) if data else "null"), row=row
        )

    def data(self, request: Request) -> Response:
        """The current data of a run's page; null before its first round has ended."""
        return JSONResponse(self.board.data(*self._asked(request)), headers={"Cache-Control": "no-store"})

    def metrics(self, request: Request) -> Response:
        """What all runs measure, for Prometheus."""
        return Response(self.gauges.text(), media_type=METRICS_TYPE)

    async def all_events(self, request: Request) -> Response:
        """The rows of the list, whenever one of them changes."""
        return self._stream(self.board.rows)

    async def run_events(self, request: Request) -> Response:
        """The status of one run, whenever it changes."""
        name, folder = await run_in_threadpool(self._asked, request)
        return self._stream(lambda: self.board.row(name, folder))

    def stop(self, request: Request) -> Response:
        """Ask a run to end."""
        name, folder = self._asked(request)
        self.board.processes.stop(folder)
        return JSONResponse(self.board.row(name, folder, fresh=True))

    def resume(self, request: Request) -> Response:
        """Resume a stopped run."""
        name, folder = self._asked(request)
        self.board.processes.resume(folder)
        return JSONResponse(self.board.row(name, folder, fresh=True))

    async def plan(self, request: Request) -> Response:
        """A planned round."""
        return await _ask(answer, request)

    async def curves(self, request: Request) -> Response:
        """The curves around a planned round."""
        return await _ask(curves, request)

    def _asked(self, request: Request) -> tuple[str, RunFolder]:
        name = request.path_params["name"]
        folder = self.board.find(name)
        if folder is None:
            raise NotThereError(f"There is no run {name!r} here.")
        return name, folder

    def _stream(self, read: Callable[[], Any]) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._changes(read), media_type="text/event-stream", headers=headers)

    async def _changes(self, read: Callable[[], Any]) -> AsyncIterator[str]:
        """Server-sent events: the result of `read`, whenever it changes."""
        last, silent_s = "", 0.0
        while not self.closing:
            now = json.dumps(await run_in_threadpool(read))
            if now != last:
                yield f"data: {now}\n\n"
                last, silent_s = now, 0.0
            elif silent_s >= SIGN_OF_LIFE_S:
                yield ": here\n\n"
                silent_s = 0.0
            await asyncio.sleep(LOOK_EVERY_S)
            silent_s += LOOK_EVERY_S


class NotThereError(LeanfedError):
    """The requested page or run does not exist."""


async def _ask(reply: Callable[[Question], dict[str, Any]], request: Request) -> Response:
    """Validate a question of the planner page and answer it in a worker thread."""
    values = await _json_body(request)
    try:
        return JSONResponse(await run_in_threadpool(lambda: reply(Question.of(values))))
    except InputError as error:  # with status 200: browsers log other statuses as errors of the page
        return JSONResponse({"error": str(error)})


async def _json_body(request: Request) -> object:
    """What a page sent."""
    try:
        return parse_json(await request.body())
    except ValueError as error:
        raise InputError(f"The question is not valid JSON: {error}.") from None


def static_file(request: Request) -> Response:
    """A script or style sheet by its name, which is looked up and never joined to a path."""
    name = request.path_params["name"]
    content = static_files().get(name)
    if content is None:
        raise NotThereError(f"There is no file {name!r} here.")
    kind = KINDS[name[name.rindex(".") :]]
    return Response(content, media_type=kind, headers={"Cache-Control": "max-age=3600"})


@cache
def static_files() -> dict[str, str]:
    """All files that pages load by name: our own, and the plotting script from its package."""
    names = [
        entry.name for entry in (files("leanfed.report") / "static").iterdir() if entry.name.endswith(tuple(KINDS))
    ]
    return {**{name: static(name) for name in names}, PLOTTING: plotly_script()}


def _page(template: str, here: str, *, status: int = 200, **values: Any) -> Response:
    text = environment().get_template(template).render(here=here, scripts=SCRIPTS[here], **values)
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


def _explain(request: Request, error: Exception) -> Response:
    """The response to an error of leanfed or of the system: an HTML page for browsers, JSON for scripts."""
    status = 404 if isinstance(error, NotThereError) else 400
    message = f"A file cannot be read: {error.strerror}." if isinstance(error, OSError) else str(error)
    if "text/html" in request.headers.get("accept", ""):
        return _page("missing.html", "missing", status=status, message=message)
    return JSONResponse({"error": message}, status)


def create_app(board: Board, rules: Rules) -> tuple[Guard, Pages]:
    """The application wrapped in its guard, and its pages."""
    pages = Pages(board)
    app = Starlette(routes=pages.routes(), exception_handlers={LeanfedError: _explain, OSError: _explain})
    return Guard(app, rules), pages


class _Server(uvicorn.Server):
    """A server that ends its event streams before it waits for connections to close."""

    pages: Pages

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.pages.closing = True
        super().handle_exit(sig, frame)


def serve(board: Board, rules: Rules, listener: socket.socket, warm: Callable[[], None]) -> None:
    """Serve until a signal arrives; `warm` runs in the background, so that compiling does not delay the first plan."""
    app, pages = create_app(board, rules)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3, ws="none"
    )
    server = _Server(config)
    server.pages = pages
    Thread(target=warm, daemon=True).start()
    server.run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Bind a port (0: any free one); the error says why it cannot be used."""
    try:
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=kind, backlog=128)
    except OSError as error:
        raise InputError(
            f"Cannot listen on {host} port {port}: {error.strerror or error}. Choose another --port (0: any free one), "
            "or an address of this machine as --host."
        ) from error
