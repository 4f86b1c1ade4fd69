"""FedPer (Arivazhagan et al. 2019): a shared base, a private head, nothing compressed unless asked for."""

from __future__ import annotations

from typing import Literal, final

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.decoupled import WithHead


@final
@ALGORITHMS.register("fedper")
class FedPer(WithHead):
    """The shallow layers are shared, the deep layers stay with the client."""

    name: Literal["fedper"] = "fedper"
