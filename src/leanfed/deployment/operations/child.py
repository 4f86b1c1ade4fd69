"""Become another program that ends when its parent does.

python -m leanfed.deployment.operations.child PARENT PROGRAM...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Ask the kernel for SIGTERM at the parent's death (also after kill -9), then become the program."""
    parent, *program = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before it could be watched
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
