"""The paper's tables and figures, one file per subject; importing this package fills the catalogue."""

from leanfed.reproduction.paper import mnist as mnist  # isort: skip  (first in the list)
from leanfed.reproduction.paper import (
    ablation,
    bandwidth,
    cifar10,
    convergence,
    fair,
    felt,
    joint,
    literal,
    mrpc,
    parameters,
    partition,
    personal,
    svhn,
    theta,
    tuned,
    values,
)

__all__ = [
    "ablation",
    "bandwidth",
    "cifar10",
    "convergence",
    "fair",
    "felt",
    "joint",
    "literal",
    "mnist",
    "mrpc",
    "parameters",
    "partition",
    "personal",
    "svhn",
    "theta",
    "tuned",
    "values",
]
