"""Which share of a run is spent in rounds, from its event log: 100 rounds, 100 clients, MNIST, a test every 10 rounds.

LEANFED_DATA=... python benchmarks/where_time_goes.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import leanfed
from leanfed.results import RunFolder

CONFIG = Path(__file__).resolve().parents[1] / "src/leanfed/reproduction/configs/mnist_alpha01.toml"


def main() -> None:
    settings = leanfed.Settings.from_toml(CONFIG)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        leanfed.run(settings, Path(folder) / "run")
        whole = time.perf_counter() - began
        events = [e["seconds"] for e in RunFolder(Path(folder) / "run").read_events() if e["event"] == "round"]
    train, test, loop = (sum(event[name] for event in events) for name in ("train", "test", "total"))
    print(f"whole run {whole:6.2f} s, of which loop {loop:.2f} s")
    for name, seconds in (
        ("rounds", train),
        ("tests", test),
        ("checkpoints and rows", loop - train - test),
        ("set-up and end", whole - loop),
    ):
        print(f"{name:>22} {seconds:6.2f} s  {seconds / whole:6.1%}")


if __name__ == "__main__":
    main()
