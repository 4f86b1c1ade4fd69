"""Two rounds of the full-size settings files of ResNet-18: that they run, how long a round takes, how much memory.

python benchmarks/two_rounds.py [FILE...] --out results/resnet/two_rounds.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import leanfed
from leanfed.files import read_json, write_json
from leanfed.rounds.loop import RoundRecord
from leanfed.simulation.bench import peak_bytes, reset_peak_bytes

CONFIGS = Path(leanfed.__file__).parent / "reproduction" / "configs"
FILES = ("joint_cifar10", "joint_svhn", "cifar10_class2", "cifar10_alpha01")
ROUNDS = 2


class Enough(Exception):
    """Two rounds are done."""


def two_rounds(file: str) -> dict[str, Any]:
    """What the first rounds of a settings file did and took."""
    settings = leanfed.Settings.from_toml(CONFIGS / f"{file}.toml", ["run.threads=1", "run.checkpoint_every=1"])
    rows: list[dict[str, Any]] = []
    busy = time.process_time()

    def listen(record: RoundRecord) -> None:
        nonlocal busy
        names = ("round", "participants", "train_loss", "k_mean", "r_mean", "upload_bits", "latency_s", "energy_j")
        now = time.process_time()
        rows.append({name: record.row[name] for name in names} | {"cpu_s": round(now - busy, 2)})
        busy = now
        if record.progress.round == ROUNDS:
            raise Enough

    reset_peak_bytes()
    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        leanfed.run(settings, Path(folder) / "run", listen=listen)
    return {
        "file": f"{file}.toml",
        "model": settings.task.model,
        "peak_mib": round(peak_bytes() / 2**20),
        "rounds": rows,
    }


def main() -> None:
    """Run the files and keep the rows of those that were run before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--out", type=Path, default=Path("results/resnet/two_rounds.json"))
    given = parser.parse_args()
    for file in given.files:
        row = two_rounds(file)
        known = read_json(given.out)["files"] if given.out.is_file() else []
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(given.out, {"files": [*(old for old in known if old["file"] != row["file"]), row]})
        print(json.dumps(row))


if __name__ == "__main__":
    main()
