"""The form that tunes itself on data, models and fleets that it was not made on, beside others with the same aids.

    python -m benchmarks.anywhere [OUT] [--seeds 70 71] [--processes 2]

Five cases: CIFAR-10 (all of it, LeNet-5 with three input channels, two classes a client, 1 MHz), SVHN (all that is
there, the same model, alpha 0.1, 10 MHz), MRPC (the packaged encoder with adapters, 10 clients, alpha 1, 1 MHz), a made
series (eight channels of an accelerometer that each of 100 users wears in a way of their own, six activities, two
convolutions over time, 1 MHz), and MNIST on devices that stay what they are and a band between 1 and 5 MHz (LeNet-5,
two classes a client); 100 clients but for MRPC, deadline and joules as on MNIST. Every row has the same learning rate
and the same step of the server in a case; the rate was chosen for the plain rule. PROTOCOL.md says what was fixed
before the runs.

Runs that OUT holds already are not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from benchmarks.cuts import ColourNet
from torch import nn

import leanfed
from leanfed.charts.costs import reached
from leanfed.charts.tables import Block, markdown
from leanfed.files import read_json, write_json, write_text
from leanfed.reproduction.paper.fair import AIDED, DAMPED, FAST, LAST, ROWS
from leanfed.reproduction.paper.protocol import CONFIGS, HELD, Changes
from leanfed.reproduction.paper.tuned import EVERYONE, FASTEST_60, FEDPER, TUNED, TURNS
from leanfed.runs.compare import compared
from leanfed.runs.settings import Settings

# What the tuned form has to be sooner than; fast is a form of ours.
BASELINES: Final = (FASTEST_60, EVERYONE, FEDPER, "LG-FedAvg + pace", "LG-FedAvg, k = 0.05 + feedback + pace")
OPPONENTS: Final = (*BASELINES, TURNS)
METHODS: Final[Mapping[str, Changes]] = {
    TUNED: ("allocation.form=tuned", "algorithm.name=flpdsp"),
    FAST: ROWS[FAST],
    **{name: AIDED[name] for name in BASELINES},
    TURNS: (*AIDED[FASTEST_60], "allocation.wait=turns"),
}
NARROW: Final[Changes] = ("radio.fleet.bandwidth_hz=1e6",)
DIRICHLET: Final[Changes] = ('task.partition={kind = "dirichlet", alpha = 0.1, clients = 100}',)
BY_USER: Final[Changes] = ('task.partition={kind = "column"}',)
USERS: Final = 100
MIDDLE, NEARLY, NEAR = "halfway", "nearly the best", 0.02  # targets; how far the second is below the best end
DEVELOPED: Final = 10  # the seed on which learning rates were chosen
TRIED: Final = (0.1, 0.3, 1.0)
Run = Mapping[str, Any]  # what `played` gives


@dataclass(frozen=True)
class Case:
    """A task, its fleet, and the simulated seconds that every row has."""

    changes: Changes
    seconds: float
    rate: float  # of learning, for all rows
    file: str = "joint_class2"
    server: Changes = DAMPED
    every: int = 4  # rounds between tests

    def settings(self, method: str, seed: int, rate: float | None = None) -> Settings:
        """The settings of a row."""
        last = (f"run.stop_at_seconds={self.seconds}", f"evaluation.every={self.every}", "rounds=400", "run.threads=1")
        learning = f"training.learning_rate={self.rate if rate is None else rate}"
        own = (*METHODS[method], *self.server, learning, f"seed={seed}", f"name={method}")
        return Settings.from_toml(CONFIGS / f"{self.file}.toml", [*self.changes, *own, *last])


CASES: Final[Mapping[str, Case]] = {
    "CIFAR-10": Case(("task.dataset=cifar10", "task.model=colour-net", *NARROW), 40.0, 0.3),
    "SVHN": Case(("task.dataset=svhn", "task.model=colour-net", *DIRICHLET), 30.0, 0.3),
    "MRPC": Case((), 30.0, 0.2, file="joint_mrpc", server=(), every=2),
    "series": Case(("task.dataset=series", "task.model=step-net", *BY_USER, *NARROW), 40.0, 1.0),
    "MNIST, held": Case((*HELD, "radio.fleet.bandwidth_hz=[1e6, 5e6]"), 30.0, 0.3),
}


def made_steps(each: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two seconds of eight channels at 32 Hz: an activity is a frequency, felt by each user in a way of their own."""
    worn = np.random.default_rng(7).normal(size=(USERS, 8, 1))  # the same for training and test
    users, labels = np.repeat(np.arange(USERS), each), rng.integers(0, 6, USERS * each)
    phase = rng.uniform(0, 2 * np.pi, len(users))
    wave = np.sin(2 * np.pi * (1 + labels)[:, None] * np.arange(64) / 32 + phase[:, None])
    series = worn[users] * wave[:, None] + rng.normal(size=(len(users), 8, 64))
    return series.astype(np.float32), labels, users


def step_net(classes: int) -> nn.Module:
    """Two convolutions over time, shared, and a linear layer on their means: (batch, 8, 64) -> (batch, classes)."""
    base = nn.Sequential(nn.Conv1d(8, 32, 7, 2), nn.ReLU(), nn.Conv1d(32, 64, 7, 2), nn.ReLU())
    return nn.Sequential(base, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, classes))


def register() -> None:
    """What is not part of the package: the made series and two models."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    series, labels, users = made_steps(96, rng)
    leanfed.add_arrays("series", series, labels, client=users, test=made_steps(32, rng))
    leanfed.add_model("colour-net", ColourNet, split="conv3", input_shape=(3, 32, 32))
    leanfed.add_model("step-net", step_net, split="0", input_shape=(8, 64))


def played(case: str, method: str, seed: int, rate: float | None = None) -> dict[str, Any]:
    """One run: its tests over simulated seconds and joules, and what was chosen on average."""
    settings = CASES[case].settings(method, seed, rate)
    run = leanfed.run(settings, progress=False)
    curve = compared(method, settings.algorithm.model_dump()["name"], run.rounds)
    rounds = run.rounds
    return {
        "seconds": [round(value, 4) for value in curve.spent["latency_s"]],
        "joules": [round(value, 3) for value in curve.spent["energy_j"]],
        "accuracy": [round(value, 5) for value in curve.accuracy],
        "worst_decile": round(float(np.mean(curve.worst_decile[-LAST:])), 4),
        "guess": round(curve.majority_guess, 4),
        "rounds": rounds.height,
        "participants": round(float(np.mean(rounds["participants"].to_numpy())), 1),
        "k": round(float(np.mean(rounds["k_mean"].drop_nulls().to_numpy())), 4),
    }


def end(run: Run) -> float:
    """The mean of the last tests."""
    return float(np.mean(run["accuracy"][-LAST:]))


def targets(runs: Mapping[str, Run]) -> dict[str, float]:
    """Of the rows of a case and seed: halfway from the guess to the best end of any, and nearly that end."""
    best, guess = max(map(end, runs.values())), next(iter(runs.values()))["guess"]
    return {MIDDLE: (guess + best) / 2, NEARLY: best - NEAR}


def judged(seeds: Sequence[Mapping[str, Run]]) -> dict[str, Any]:
    """A case: seconds after which each row keeps the targets, by seed, and whether the tuned form is the soonest."""
    found: dict[str, Any] = {
        "accuracy": {row: round(float(np.mean([end(runs[row]) for runs in seeds])), 4) for row in METHODS},
        "worst_decile": {row: round(float(np.mean([r[row]["worst_decile"] for r in seeds])), 4) for row in METHODS},
        "guess": round(float(np.mean([runs[TUNED]["guess"] for runs in seeds])), 4),
    }
    for name in (MIDDLE, NEARLY):
        times = {row: [_seconds(runs, row, name) for runs in seeds] for row in METHODS}
        first = min(OPPONENTS, key=lambda row: mean(times[row]))
        found[name] = {"seconds": times, "opponent": first, "sooner": mean(times[TUNED]) < mean(times[first])}
    return found


def _seconds(runs: Mapping[str, Run], row: str, target: str) -> float | None:
    return reached(runs[row]["seconds"], runs[row]["accuracy"], targets(runs)[target])


def mean(times: Sequence[float | None]) -> float:
    """Over seeds; infinite if one does not keep the target.

    >>> mean([1.0, 2.0]), mean([1.0, None])
    (1.5, inf)
    """
    return float(np.mean([np.inf if value is None else value for value in times]))


def wanted(seeds: Sequence[int], names: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Case, row and seed of every run, seed by seed."""
    for seed in seeds:
        for case in names:
            yield from ((case, row, seed) for row in METHODS)


def carry_out(out: Path, seeds: Sequence[int], names: Sequence[str], processes: int) -> None:
    """Runs that are not there yet; each is written as soon as it has ended."""
    file = out / "anywhere.json"
    runs: dict[str, Any] = read_json(file)["runs"] if file.is_file() else {}
    missing = [one for one in wanted(seeds, names) if one[1] not in runs.get(one[0], {}).get(str(one[2]), {})]
    with ProcessPoolExecutor(processes, get_context("spawn"), register) as pool:
        begun = {pool.submit(played, *one): one for one in missing}
        for done in as_completed(begun):
            case, row, seed = begun[done]
            runs.setdefault(case, {}).setdefault(str(seed), {})[row] = done.result()
            save(out, runs)
            print(seed, case, row, round(end(done.result()), 4), flush=True)
    save(out, runs)


def save(out: Path, runs: Mapping[str, Any]) -> None:
    """Runs, what they show, and the page; cases and seeds that are not whole are kept and not judged."""
    whole = {case: [by for _, by in sorted(seeds.items()) if len(by) == len(METHODS)] for case, seeds in runs.items()}
    found = {case: judged(whole[case]) for case in CASES if whole.get(case)}
    counts = {case: len(whole[case]) for case in found}
    write_json(out / "anywhere.json", {"cases": found, "seeds": counts, "runs": runs})
    write_text(out / "README.md", page(found, counts))


def page(found: Mapping[str, Any], seeds: Mapping[str, int]) -> str:
    """The tables in Markdown."""
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    lines = ["# The form that tunes itself, anywhere", "", about, ""]
    told = ", ".join(f"{case} {count}" for case, count in seeds.items())
    lines += [f"Seeds: {told or 'none yet'}. Of {len(CASES)} cases {len(found)} are there.", ""]
    for name in (MIDDLE, NEARLY):
        ahead = sum(case[name]["sooner"] for case in found.values())
        lines += [f"- {name}: the tuned form is sooner than every opponent in {ahead} of {len(found)} cases."]
    head = ["row", *found]
    for name, words in (
        (MIDDLE, "Simulated seconds until the accuracy halfway from the majority guess to the best end is kept"),
        (NEARLY, f"Until an accuracy {100 * NEAR:g} points below the best end is kept"),
    ):
        times = [[row, *(_shown(mean(case[name]["seconds"][row])) for case in found.values())] for row in METHODS]
        lines += ["", f"{words}:", "", markdown(Block("", head, times))]
    ends = [
        [row, *(f"{case['accuracy'][row]:.3f} ({case['worst_decile'][row]:.3f})" for case in found.values())]
        for row in METHODS
    ]
    guesses = ["majority guess", *(f"{case['guess']:.3f}" for case in found.values())]
    lines += ["", "Accuracy at the end (worst decile):", "", markdown(Block("", head, [*ends, guesses]))]
    return "\n".join(lines) + "\n"


def _shown(seconds: float) -> str:
    return f"{seconds:.1f}" if np.isfinite(seconds) else "never"


def develop(names: Sequence[str], processes: int) -> None:
    """The learning rates that were tried for the plain rule: the mean of all tests of a run."""
    with ProcessPoolExecutor(processes, get_context("spawn"), register) as pool:
        tried = {(c, r): pool.submit(played, c, FASTEST_60, DEVELOPED, r) for c in names for r in TRIED}
        for (case, rate), done in tried.items():
            run = done.result()
            print(case, rate, f"mean {np.mean(run['accuracy']):.4f}, end {end(run):.4f}", run["rounds"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("results/anywhere"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[70])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--develop", action="store_true", help="try learning rates for the plain rule on another seed")
    asked = parser.parse_args()
    if asked.develop:
        return develop(asked.cases, asked.processes)
    asked.out.mkdir(parents=True, exist_ok=True)
    return carry_out(asked.out, asked.seeds, asked.cases, asked.processes)


if __name__ == "__main__":
    main()
