"""How it is learned: one file per method; importing this room registers them all."""

from leanfed.algorithms import fedavg, fedmask, fedper, flpdsp, lg_fedavg
from leanfed.algorithms.base import ALGORITHMS, Algorithm, ClientState, ClientUpdate, Job, ServerState, Training, Upload

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientState",
    "ClientUpdate",
    "Job",
    "ServerState",
    "Training",
    "Upload",
    "fedavg",
    "fedmask",
    "fedper",
    "flpdsp",
    "lg_fedavg",
]
