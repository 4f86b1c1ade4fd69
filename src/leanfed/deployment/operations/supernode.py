"""flower-supernode with two changes: its process ends when its worker does, and it takes the fleet's own app only.

python -m leanfed.deployment.operations.supernode BUNDLE ARGUMENTS...

As shipped (1.41.0), a SuperNode whose worker thread has given up stays as a process that does nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal as worker

from leanfed.deployment.operations.folder import Bundle
from leanfed.deployment.operations.handshake import say_hello
from leanfed.deployment.operations.release import Release
from leanfed.errors import LeanfedError

UNSIGNED = "an app that the fleet's owner has not signed"
ENDED = 70  # exit code where the worker ended by itself


class AppGuard:
    """Decides which app a node runs; every decision is in the node's audit log."""

    def __init__(self, bundle: Bundle, server: str | None) -> None:
        self.bundle = bundle
        self.server = server  # asked for a newer release; None: nobody is

    def admits(self, archive: bytes) -> bool:
        """Whether this is the signed app; a newer release is looked for before it is refused."""
        digest = hashlib.sha256(archive).hexdigest()
        if digest != self._signed() and self.server is not None:
            with contextlib.suppress(LeanfedError, OSError):
                say_hello(self.bundle, self.server)
        signed = self._signed()
        if digest == signed:
            self.bundle.audit.write("app accepted", app=digest)
            return True
        self.bundle.audit.write("refused", why=UNSIGNED, app=digest, signed=signed)
        print(f"refused {UNSIGNED}: {digest}", flush=True)
        return False

    def _signed(self) -> str | None:
        release = Release.load(self.bundle.path)
        if release is None or release.fault(self.bundle.path / "ca.crt") is not None:
            return None
        return release.app


def put_before(guard: AppGuard) -> None:
    """Let Flower's own check of trusted apps ask the guard: a refused app is answered with an error, and never run."""
    connect: Any = worker._init_connection
    start: Any = worker.start_client_internal

    @contextlib.contextmanager
    def connection(**options: Any) -> Iterator[Any]:
        with connect(**options) as calls:
            node_id, receive, send, get_run, get_fab, *rest = calls

            def fetch(digest: str, run: int) -> Fab:
                fab = get_fab(digest, run)
                return Fab(fab.hash_str, fab.content, {"valid_license": "leanfed"})  # its check goes on to `admits`

            yield (node_id, receive, send, get_run, fetch, *rest)

    seams: Any = worker  # names of flwr 1.41.0; a test holds that they are there
    seams._init_connection = connection
    seams._verify_fab = lambda fab, entities: guard.admits(fab.content)
    _program().start_client_internal = lambda **options: start(**{**options, "trusted_entities": {"leanfed": ""}})


def end(fault: object = None) -> NoReturn:
    """End the whole process, threads of its own API included."""
    if fault is not None:
        traceback.print_exception(fault.exc_value)  # type: ignore[attr-defined]
    print("the worker of this SuperNode has ended", flush=True)
    sys.stderr.flush()
    os._exit(ENDED)


def main() -> None:
    """Take the bundle's folder off the arguments, then be flower-supernode."""
    bundle = Bundle.open(Path(sys.argv.pop(1)))
    server = sys.argv[sys.argv.index("--superlink") + 1]
    put_before(AppGuard(bundle, None if "--insecure" in sys.argv else server))
    threading.excepthook = end  # its heartbeat would otherwise stop without a word
    _program().flower_supernode()
    end()


def _program() -> Any:
    """The module of the command; its package has a function of the same name."""
    return import_module("flwr.supernode.cli.flower_supernode")


if __name__ == "__main__":
    main()
