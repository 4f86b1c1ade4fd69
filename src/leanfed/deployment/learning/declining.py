"""A node that does not take part says so at home as well."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from leanfed.deployment.door.audit import Audit
from leanfed.deployment.learning.config import NodeConfig
from leanfed.deployment.operations.log_watch import DECLINES
from leanfed.errors import LeanfedError


def decline(node: NodeConfig, error: LeanfedError) -> str:
    """Say on the node why it does not take part in a run or a sum, in its terminal and its audit log; returns why.

    Where the disk is full the terminal has to do.
    """
    why = str(error)
    print(f"{DECLINES}{why}", flush=True)
    folder = Path(node.store).parent
    if (folder / "node.json").is_file():
        with suppress(LeanfedError):
            Audit(folder / "audit.jsonl").write("declined", why=why)
    return why
