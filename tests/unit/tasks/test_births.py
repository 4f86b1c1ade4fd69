"""Private parts from repeated draws are those of whole models, to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leanfed.tasks.births import PrivateParts, _Noting
from leanfed.tasks.models import MODELS, ModelSpec, build_model
from leanfed.tasks.split import Split, flatten, split_after


class Counted:
    """Makes models, and counts them."""

    def __init__(self, make) -> None:
        self.make, self.count = make, 0

    def __call__(self, seed: int) -> nn.Module:
        self.count += 1
        return self.make(seed)


def split_of(name: str) -> Split:
    spec = MODELS[name]
    assert isinstance(spec, ModelSpec)
    return split_after(build_model(name, 10, 0), spec.default_split)


@pytest.mark.parametrize("part", ["head", "base", "all"])
@pytest.mark.parametrize("name", ["lenet5", "resnet8", "resnet18"])
def test_the_third_and_later_parts_have_the_bits_of_a_model_that_nobody_made(name: str, part: str) -> None:
    split = split_of(name)
    private = {"head": split.private, "base": split.shared, "all": split.shapes}[part]
    make = Counted(lambda seed: build_model(name, 10, seed))
    parts, before = PrivateParts(make, private), torch.get_rng_state()
    for seed in (3, 2**64 + 5, 77, 0, 3):
        assert torch.equal(parts.of(seed), flatten(build_model(name, 10, seed), private))
    assert make.count == 2
    assert torch.equal(torch.get_rng_state(), before)


class Changed(nn.Sequential):
    """A model that does more than draw into its private part."""

    __module__ = "leanfed.tasks.example"

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 2), nn.Linear(2, 2))
        nn.init.orthogonal_(self[1].weight)


class Foreign(nn.Sequential):
    """A model of somebody else's, which might draw more numbers for one seed than for another."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 2), nn.Linear(2, 2))


@pytest.mark.parametrize("kind", [Changed, Foreign])
def test_what_cannot_be_repeated_is_taken_from_whole_models(kind: type[nn.Module]) -> None:
    def seeded(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return kind()

    private, make = split_after(kind(), "0").private, Counted(seeded)
    parts = PrivateParts(make, private)
    for seed in range(4):
        assert torch.equal(parts.of(seed), flatten(seeded(seed), private))
    assert make.count == 4


def test_draws_are_noted_without_torchs_compiler() -> None:
    """A mode that torch hides from it imports it with the first call, in every process that trains."""
    assert not hasattr(_Noting.__torch_dispatch__, "__wrapped__")
