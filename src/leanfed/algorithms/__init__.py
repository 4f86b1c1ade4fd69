"""Federated methods, one file each; importing this package registers them all."""

from leanfed.algorithms import alone, fedavg, fedmask, fedper, fedrep, flpdsp, lg_fedavg
from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Training, Updates, Weights, Work
from leanfed.algorithms.uploads import Upload, Uploads

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientState",
    "Cohort",
    "Learner",
    "ServerState",
    "Training",
    "Updates",
    "Upload",
    "Uploads",
    "Weights",
    "Work",
    "alone",
    "fedavg",
    "fedmask",
    "fedper",
    "fedrep",
    "flpdsp",
    "lg_fedavg",
]
