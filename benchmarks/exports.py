"""Size and latency of exported models with the share r of the head's units: LeNet-5 and ResNet-18, in every format.

    python -m benchmarks.exports [OUT]

One sample at a time on one thread; formats and rates in turns, the least median of three. Sizes and times do not depend
on what a model has learned. `accuracy` is of LeNet-5 trained that way: the embedded digits, Class-2, 20 clients, 60
rounds, seed 0, a single run, mean over the clients' own tests.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import leanfed
from leanfed.files import write_json
from leanfed.runs.export import Format, Predict, latency_ms, open_model, write_model
from leanfed.tasks.models import MODELS, build_model
from leanfed.tasks.split import split_after
from leanfed.tasks.units import find_units, narrowed

RATES = (1.0, 0.5, 0.25)
REPEATS = {"lenet5": 60, "resnet18": 12}


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
    assert isinstance(spec.default_split, str)
    model = build_model(name, 10, 0).eval()
    units = find_units(model, split_after(model, spec.default_split))
    sample = torch.zeros(1, *spec.input_shape)
    opened: dict[tuple[float, str], Predict] = {}
    rows: dict[float, dict[str, Any]] = {}
    for r in RATES:
        kept = {layer: torch.arange(count) for layer, count in units.counts(r).items()}
        small = narrowed(units, model, kept).eval()
        held = sum(value.numel() * value.element_size() for value in small.state_dict().values())
        rows[r] = {"model": name, "r": r, "pytorch_kb": round(held / 1e3, 1)}
        opened[r, "pytorch"] = torch.no_grad()(small)
        for form in formats:
            path = folder / f"{name}-{r}.{form}"
            write_model(path, small, sample, form)
            rows[r][f"{form}_kb"] = round(path.stat().st_size / 1e3, 1)
            opened[r, form] = open_model(path, form)
    best = dict.fromkeys(opened, float("inf"))
    for _ in range(3):
        for key, predict in opened.items():
            best[key] = min(best[key], latency_ms(predict, sample, REPEATS[name]))
    for (r, form), found in best.items():
        rows[r][f"{form}_ms"] = round(found, 3)
    return list(rows.values())


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
