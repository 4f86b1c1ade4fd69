"""Your own model on your own pictures: split, run, report.  python own_model.py PICTURES OUT"""

import sys
from pathlib import Path

from torch import nn

import leanfed


class Net(nn.Module):
    """Any nn.Module: its parameters up to the split are the shared base, the rest is each client's own head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 4 * 4, classes))

    def forward(self, pictures):
        return self.head(self.features(pictures))


def main(pictures: Path, out: Path, rounds: int = 20) -> None:
    leanfed.add_images("mine", pictures, size=16)  # PICTURES/CLASS/*.png; a Parquet file: leanfed.add_parquet
    leanfed.add_model("net", Net, input_shape=(3, 16, 16), split="features")
    for method in ("flpdsp", "fedavg"):
        values = {
            "name": method,
            "rounds": rounds,
            "task": {"dataset": "mine", "model": "net", "partition": {"kind": "dirichlet", "alpha": 0.3, "clients": 4}},
            "algorithm": {"name": method},
        }
        run = leanfed.run(leanfed.Settings.from_values(values), out / method)
        print(f"{method}: {run.accuracy:.2f}, where a majority guess has {run.summary['majority_guess']:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))  # then: leanfed report OUT
