"""Size and latency of exported models by width and share r of the head's units: LeNet-5 and ResNet-18, in every format.

    python -m benchmarks.exports [OUT]

One sample at a time on one thread, CPU time of that thread; formats, widths and rates in turns, the least of the
repeats, for the machine is shared. LeNet-5 comes in one width. Sizes and times do not depend on what a model has
learned. `accuracy` is of LeNet-5 trained that way: the embedded digits, Class-2, 20 clients, 60
rounds, seed 0, a single run, mean over the clients' own tests.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from benchmarks.narrow_steps import least
from torch import nn

import leanfed
from leanfed.files import write_json
from leanfed.runs.export import Format, Predict, open_model, write_model
from leanfed.tasks.models import MODELS, build_model, narrow_model
from leanfed.tasks.split import split_after
from leanfed.tasks.units import find_units, narrowed

RATES = (1.0, 0.5, 0.25)
WIDTHS = {"lenet5": (1.0,), "resnet18": (1.0, 0.5)}
REPEATS = {"lenet5": 200, "resnet18": 25}


def accuracy(r: float) -> float:
    """After training with the share r of the units from the start."""
    settings = leanfed.Settings.from_values(
        {
            "rounds": 60,
            "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 20}},
            "algorithm": {"name": "flpdsp", "k": 0.1, "r": r, "prune": {"unit": "unit"}},
            "evaluation": {"every": 10},
            "run": {"threads": 1},
        }
    )
    found = leanfed.run(settings, progress=False).rounds["accuracy"].drop_nulls()[-1]
    return round(float(found), 4)


def measure(name: str, folder: Path, formats: list[Format]) -> list[dict[str, Any]]:
    """Rows of one model."""
    spec = MODELS[name]
    assert spec.input_shape is not None
    sample = torch.zeros(1, *spec.input_shape)
    opened: dict[tuple[float, float, str], Predict] = {}
    rows: dict[tuple[float, float], dict[str, Any]] = {}
    for width, r in itertools.product(WIDTHS[name], RATES):
        small = small_model(name, width, r)
        held = sum(value.numel() * value.element_size() for value in small.state_dict().values())
        rows[width, r] = {"model": name, "width": width, "r": r, "pytorch_kb": round(held / 1e3, 1)}
        opened[width, r, "pytorch"] = torch.no_grad()(small)
        for form in formats:
            path = folder / f"{name}-{width}-{r}.{form}"
            write_model(path, small, sample, form)
            rows[width, r][f"{form}_kb"] = round(path.stat().st_size / 1e3, 1)
            opened[width, r, form] = open_model(path, form)
    works = {key: partial(predict, sample) for key, predict in opened.items()}
    least(works, 3)  # do not count
    for (width, r, form), seconds in least(works, REPEATS[name]).items():
        rows[width, r][f"{form}_ms"] = round(1e3 * seconds, 3)
    return list(rows.values())


def small_model(name: str, width: float, r: float) -> nn.Module:
    """A model with this share of the channels, and of the units of its head."""
    cut, whole = MODELS[name].default_split, build_model(name, 10, 0)
    assert isinstance(cut, str)
    model = (whole if width == 1.0 else narrow_model(whole, name, 10, width)).eval()
    units = find_units(model, split_after(model, cut))
    kept = {layer: torch.arange(count) for layer, count in units.counts(r).items()}
    return narrowed(units, model, kept).eval()


def main() -> None:
    torch.set_num_threads(1)
    formats: list[Format] = ["onnx", *(("executorch",) if find_spec("executorch") else ())]  # type: ignore[list-item]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about their own future
        for name in REPEATS:
            found = measure(name, Path(folder), formats)
            rows += [{**row, "accuracy": accuracy(row["r"])} if name == "lenet5" else row for row in found]
            print("\n".join(map(json.dumps, found)), flush=True)
            if len(sys.argv) > 1:
                write_json(Path(sys.argv[1]), rows)


if __name__ == "__main__":
    main()
