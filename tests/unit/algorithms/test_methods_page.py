"""The table of docs/methods.md says what the code says, for every method."""

from __future__ import annotations

from pathlib import Path

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.contract import Training
from leanfed.rounds.world import World
from leanfed.tasks.task import Task

PAGE = Path(__file__).resolve().parents[3] / "docs" / "methods.md"


def rows() -> dict[str, list[str]]:
    """method -> the numbers of its row."""
    lines = (line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    return {cells[0].strip("`"): cells[4:] for cells in lines}


def numbers(name: str, task: Task) -> list[str]:
    """The server's values, what a client keeps and sends, and its passes, as the page writes them."""
    method = ALGORITHMS[name]()
    split = method.divide(task.split)
    kept = method.private_size(split) + sum(method.holds(split, Training()).values())
    sent = f"{method.entries(split, *method.rates(1))[0]:,}" + (" bits" if method.upload_form == "mask" else "")
    work = method.work(5.0)
    passes = f"{float(work.passes):g}" + (f" + {work.head_passes} of the head" if work.head_passes else "")
    return [f"{method.vector_size(split):,}", f"{kept:,}", sent, passes]


def test_the_page_has_every_method_with_its_numbers(digits: Task) -> None:
    assert rows() == {name: numbers(name, digits) for name in ALGORITHMS}


def test_ditto_costs_twice_the_computation_of_fedprox(world_of) -> None:  # type: ignore[no-untyped-def]
    from tests.unit.rounds.test_costs import bill

    once, twice = (bill(world_of(ALGORITHMS[name]()))[0].cost for name in ("fedprox", "ditto"))
    assert (twice.flops == 2 * once.flops).all()
    assert (twice.upload_bits == once.upload_bits).all()
    both: World = world_of(ALGORITHMS["scaffold"]())
    sent = bill(both)[0].cost
    assert (sent.upload_bits == 2 * once.upload_bits).all()
    assert float(sent.download_bits) == 2 * float(once.download_bits)
