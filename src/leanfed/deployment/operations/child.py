"""Become another program that ends when its parent does.

python -m leanfed.deployment.operations.child PARENT PROGRAM...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int, number: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal at the parent's death (also after kill -9); end at once where it is dead already.

    The parent is the thread that forked: it must live as long as its children should.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before it could be watched
        os._exit(1)


def main() -> None:
    """Bind this process to its parent, then become the program."""
    parent, *program = sys.argv[1:]
    end_with(int(parent))
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
