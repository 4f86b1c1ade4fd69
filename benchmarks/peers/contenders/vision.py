"""Import torchvision also where its operators do not load, as with a build of PyTorch without CUDA.

FedLab imports it for data sets that are not used here; all that is missing then are declarations of two operators.
"""

from __future__ import annotations

import sys

import torch

try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    declared = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
