"""Loaded once by the process that ranks are forked from: all that a rank needs, but no thread of its own."""

from __future__ import annotations

import torch

from leanfed.allocation.warm import load
from leanfed.simulation.choose import warm
from tests import rank_jobs  # noqa: F401

torch.set_num_threads(1)
warm()
load()
