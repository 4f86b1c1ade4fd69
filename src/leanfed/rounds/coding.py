"""Values as clients send them: rounded on the client, so that error feedback remembers what rounding took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from leanfed.algorithms.contract import Cohort, Updates
from leanfed.algorithms.uploads import Listed, Upload
from leanfed.compression.sparsify import RESIDUAL
from leanfed.compression.values import rounded
from leanfed.streams import stream
from leanfed.tasks.transfer import sent


def with_coded_values(updates: Updates, cohort: Cohort) -> Updates:
    """The updates with their values in the cohort's value type, `Cohort.values`; masks have no values.

    What rounding changes is added to the memory of error feedback: sent + remembered = gradient + memory before.
    """
    if cohort.values == "float32":
        return updates
    memory = dict(updates.memory)
    if RESIDUAL in memory:
        memory[RESIDUAL] = memory[RESIDUAL].clone()
    return replace(updates, uploads=Listed(list(_coded(updates, cohort, memory.get(RESIDUAL)))), memory=memory)


def _coded(updates: Updates, cohort: Cohort, unsent: torch.Tensor | None) -> Iterator[Upload]:
    for row, (client, upload) in enumerate(zip(cohort.clients, updates.uploads, strict=True)):
        if upload.values.dtype == torch.bool:
            yield upload
            continue
        rng = stream(cohort.seed, "values", cohort.round, client)
        meant = upload.cpu()
        coded, scale = rounded(meant.values.numpy(), cohort.values, rng)
        values = torch.from_numpy(coded)
        if unsent is not None:
            unsent[row, slice(None) if meant.positions is None else meant.positions] += meant.values - values
        yield replace(upload, values=sent(values, upload.values.device), scale=scale)
