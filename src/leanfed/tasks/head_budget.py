"""How many steps a head takes on a batch: as many as fit into a budget of work, whatever the model and its cut."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from leanfed.tasks.chain import Chain, tail_share
from leanfed.tasks.cut import own_cut
from leanfed.tasks.models import MODELS, ModelSpec, build_model
from leanfed.tasks.split import split_after
from leanfed.tasks.text import TextSettings
from leanfed.tasks.transformer_models import PREFIX

WORK: Final = 0.11
"""What the further steps of a head may take of a whole model's step, in multiply-adds. Five steps of LeNet-5's head,
the best of 5, 10 and 20 on held-back samples, take 0.105; no other packaged model's own head has a second step."""
MOST: Final = 20  # steps, however small the head
OUTPUTS: Final = 10  # with which a model is counted: what is learned must not change the number of steps


def steps_within(share: float) -> int:
    """1 + WORK / share, rounded down, at most MOST; `share` is a head's part of the multiply-adds of a whole step.

    >>> [steps_within(share) for share in (0.718, 0.141, 0.026, 0.002)]  # LeNet-5 behind conv1, conv2, conv3, fc1
    [1, 1, 5, 20]
    """
    return min(MOST, 1 + int(WORK / share)) if share > 0 else 1


def head_steps(model: str, cut: str | None) -> int:
    """Steps of a model's head on a batch; one where a further step would go through the whole model again."""
    if model not in MODELS or model.startswith(PREFIX):
        return 1
    spec = MODELS[model]
    return _steps(model, spec, cut) if isinstance(spec, ModelSpec) and spec.input_shape is not None else 1


@lru_cache(maxsize=64)
def _steps(name: str, spec: ModelSpec, cut: str | None) -> int:
    model = build_model(name, OUTPUTS, 0)
    if not isinstance(model, Chain) or spec.input_shape is None:
        return 1
    private = split_after(model, cut or own_cut(model, name, TextSettings())).private
    return steps_within(tail_share(model, private, spec.input_shape))
