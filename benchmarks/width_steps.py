"""CPU time of a client's step against the width of its model, on modules that are really narrower.

    python -m benchmarks.width_steps [OUT]

Steps at every width are taken in turns on one thread; the least of the repeats counts, for the machine is shared.
Beside it stand what `radio.computation` = "operations" and "weights" charge. `step` is one gradient of the model,
`client` a client's round of one step of FedPer: its part of base and head taken out, trained, and put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.narrow_steps import least, report

from leanfed.algorithms.contract import Cohort, ServerState, Training
from leanfed.algorithms.fedper import FedPer
from leanfed.algorithms.learner import FlatLearner
from leanfed.rounds.exchange import train
from leanfed.tasks.batch import Batch
from leanfed.tasks.chain import layer_work
from leanfed.tasks.models import MODELS, build_model, narrow_model
from leanfed.tasks.nest import Nest, places_of
from leanfed.tasks.split import FlatModel, split_after

WIDTHS = (1.0, 0.75, 0.5, 0.25)
CASES = (  # model, samples in a step, repeats
    ("resnet18", 4, 12),
    ("resnet18-imagenet", 16, 20),
    ("resnet20", 16, 40),
    ("resnet8", 16, 60),
)


def measure(name: str, batch_size: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of one model."""
    spec = MODELS[name]
    shape, cut = spec.input_shape, spec.default_split
    assert shape is not None
    assert isinstance(cut, str)
    models = {
        w: build_model(name, 10, 0) if w == 1.0 else narrow_model(build_model(name, 10, 0), name, 10, w) for w in WIDTHS
    }
    operations = {w: sum(work.time for work in layer_work(model, shape).values()) for w, model in models.items()}
    flat = {w: FlatModel(model, split_after(model, cut)) for w, model in models.items()}
    whole, one = flat[1.0].split, np.ones(1)
    batch = Batch(torch.randn(1, batch_size, *shape), torch.randint(0, 10, (1, batch_size)))
    steps: dict[Any, Callable[[], object]] = {}
    rounds: dict[Any, Callable[[], object]] = {}
    learner = FlatLearner(flat[1.0], {w: FlatLearner(flat[w]) for w in WIDTHS[1:]})
    base, head = flat[1.0].initial[: whole.shared_size].clone(), flat[1.0].initial[whole.shared_size :].unsqueeze(0)
    for w, model in flat.items():
        steps[w] = lambda model=model: model.step(model.initial, batch.inputs[0], batch.labels[0])
        parts = (places_of(model.split.shared, whole.shared), places_of(model.split.private, whole.private))
        nest = Nest(w, *parts, places_of(model.statistics.shapes, flat[1.0].statistics.shapes), whole)
        own = None if w == 1.0 else nest
        cohort = Cohort((0,), 0, 1, Training(), one, one, head, {}, [batch], 1, nest=own)
        rounds[w] = lambda cohort=cohort: train(FedPer(), ServerState(base), cohort, learner)
    taken, clients = least(steps, repeats), least(rounds, repeats)
    return [
        {
            "model": name,
            "batch_size": batch_size,
            "width": w,
            "step_ms": round(1e3 * taken[w], 3),
            "step": round(taken[w] / taken[1.0], 3),
            "client": round(clients[w] / clients[1.0], 3),
            "operations": round(operations[w] / operations[1.0], 3),
            "weights": round(flat[w].split.size / whole.size, 3),
        }
        for w in WIDTHS
    ]


if __name__ == "__main__":
    report(measure, CASES)
