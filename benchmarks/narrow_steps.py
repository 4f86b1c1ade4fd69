"""CPU time of a client's step against the share r of the head's units, on modules that are really narrower.

    python -m benchmarks.narrow_steps [OUT]

Steps at every r are taken in turns on one thread; the least of the repeats counts, for the machine is shared. Beside it
stand what `radio.computation` = "operations" and "weights" charge. `step` is one gradient of the whole model, `head`
one more step of the head on stored features, `client` a client's round of one step: units chosen, weights taken out and
put back. `masked_step` has zeros in the place of units, as pruning by single weights has.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leanfed.algorithms.contract import Cohort, Training
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.algorithms.learner import FlatLearner
from leanfed.files import write_json
from leanfed.tasks.batch import Batch
from leanfed.tasks.chain import layer_operations
from leanfed.tasks.models import MODELS, build_model
from leanfed.tasks.split import FlatModel, flatten, split_after
from leanfed.tasks.units import Units, find_units, narrowed

RATES = (1.0, 0.75, 0.5, 0.25)
CASES = (("lenet5", 32, 150), ("resnet18", 4, 12))  # model, samples in a step, repeats


def timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def least(works: dict[Any, Callable[[], object]], repeats: int) -> dict[Any, float]:
    """Seconds of each, taken in turns."""
    found = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, work in works.items():
            found[name] = min(found[name], timed(work))
    return found


def charged(units: Units, shape: tuple[int, ...], r: float) -> dict[str, float]:
    """What a step and a step of the head are charged at r, over what they are at r = 1."""
    count, split = layer_operations(units.model, shape), units.split
    head = {name: value for name, value in count.items() if f"{name}.weight" in split.private}
    return {
        "operations": units.operations(count, r) / sum(count.values()),
        "head_operations": units.operations(head, r) / sum(head.values()),
        "weights": (split.shared_size + r * split.private_size) / split.size,
    }


def measure(name: str, batch_size: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of one model."""
    model, spec = build_model(name, 10, 0), MODELS[name]
    shape = spec.input_shape
    assert shape is not None
    assert isinstance(spec.default_split, str)
    split = split_after(model, spec.default_split)
    units, weights, base = find_units(model, split), flatten(model, split.shapes), split.shared_size
    batch = Batch(torch.randn(1, batch_size, *shape), torch.randint(0, 10, (1, batch_size)))
    works: dict[Any, Callable[[], object]] = {}
    heads: dict[Any, Callable[[], object]] = {}
    clients: dict[Any, Callable[[], object]] = {}
    method = Flpdsp.model_validate({"k": 0.05, "prune": {"unit": "unit"}})
    for r in RATES:
        kept = {layer: torch.arange(count) for layer, count in units.counts(r).items()}
        module = narrowed(units, model, kept)
        small = FlatModel(module, split_after(module, spec.default_split))
        works[r] = lambda model=small: model.step(model.initial, batch.inputs[0], batch.labels[0])
        heads[r] = lambda model=small: model.head_gradient(model.initial[base:], batch.labels[0])
        whole, one = FlatLearner(FlatModel(build_model(name, 10, 0), split)), np.ones(1)
        private = weights[base:].unsqueeze(0)
        cohort = Cohort((0,), 0, 1, Training(), one, r * one, private, {}, [batch], 1, units=units)
        clients[r] = lambda learner=whole, cohort=cohort: method.client_update(weights[:base], cohort, learner)
    gone = torch.cat([weights[:base], weights[base:] * units.mask(kept)])
    works["masked"] = lambda model=whole.model: model.step(gone, batch.inputs[0], batch.labels[0])
    steps, slopes, rounds = least(works, repeats), least(heads, 3 * repeats), least(clients, repeats)
    return [
        {
            "model": name,
            "batch_size": batch_size,
            "r": r,
            "step_ms": round(1e3 * steps[r], 3),
            "step": round(steps[r] / steps[1.0], 3),
            "client": round(rounds[r] / rounds[1.0], 3),
            "head": round(slopes[r] / slopes[1.0], 3),
            **{key: round(value, 3) for key, value in charged(units, shape, r).items()},
            **({"masked_step": round(steps["masked"] / steps[1.0], 3)} if r == 0.25 else {}),
        }
        for r in RATES
    ]


def report(measure: Callable[..., list[dict[str, Any]]], cases: Iterable[tuple[Any, ...]]) -> None:
    """Print the rows of all cases, measured on one thread, and write them to the file that is named, if any."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [row for case in cases for row in measure(*case)]
    for row in rows:
        print(json.dumps(row))
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), rows)


if __name__ == "__main__":
    report(measure, CASES)
