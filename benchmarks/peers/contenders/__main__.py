"""python -m benchmarks.peers.contenders NAME [ARGUMENT...]: one contender, as run.py starts it in its environment.

The module is imported rather than run, so that other processes of its framework can import it too.
"""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    import_module(f"benchmarks.peers.contenders.{sys.argv[1]}").main(*sys.argv[2:])
