"""FedBN (Li et al., ICLR 2021): normalisation layers stay with the client, everything else is averaged."""

from __future__ import annotations

from typing import Literal, final

from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.decoupled import Decoupled
from leanfed.tasks.split import Split


@final
@ALGORITHMS.register("fedbn")
class FedBn(Decoupled):
    """FedAvg on all parameters but those of normalisation layers, which each client trains by itself.

    A normalisation layer is known by its parameters: a weight and a bias that are vectors of one length. So group and
    layer normalisation, which the paper does not treat, stay private too. Running statistics of private layers never
    travel, whatever `task.statistics` says. A model without such layers leaves nothing private and would make this
    FedAvg: runs refuse it.
    """

    name: Literal["fedbn"] = "fedbn"

    @override
    def divide(self, split: Split) -> Split:
        shapes = split.shapes
        own = set()
        for name, shape in shapes.items():
            bias = f"{name.removesuffix('weight')}bias"
            if name.endswith(".weight") and len(shape) == 1 and shapes.get(bias) == shape:
                own |= {name, bias}
        return Split({n: s for n, s in shapes.items() if n not in own}, {n: s for n, s in shapes.items() if n in own})

    @override
    def misfit(self, split: Split) -> str | None:
        if split.private_size:
            return None
        return "it keeps normalisation layers private and the model has none, so it would be 'fedavg'"
