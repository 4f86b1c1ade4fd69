"""Every cut of a model by brute force beside the one that the program chooses, on data that the rule was not made on.

    python -m benchmarks.cuts [OUT]

The rule and its thresholds were made on MNIST. Here: CIFAR-10 and SVHN (4,000 training and 1,000 test pictures, LeNet-5
with three input channels), MRPC (400 and 100 pairs, the packaged encoder with adapters), a made series of eight
channels and a made table of 24 columns; 8 clients on 0.8 MHz (MRPC: 4 on 0.4 MHz), FedPer on both partitions and the
fast form at alpha 0.1, means over seeds. Every cut trains until the seconds are spent that 18 rounds of the model's own
cut (MRPC: 6) are planned to take. Curves are laid over the same 24 instants and averaged over seeds; a cut's accuracy
is the mean of its last three. The best cut has the highest, and the target is one point below that. A choice holds if
it is within one point of the best cut and reaches the target in at most 1.15 times the simulated seconds of the best
cut.

Runs that OUT holds already are not repeated.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from torch import nn
from torch.nn import functional

import leanfed
from leanfed.files import read_json, write_json, write_text
from leanfed.runs.cuts import choose_cut, with_cut
from leanfed.runs.settings import Settings
from leanfed.tasks.cache import load_samples
from leanfed.tasks.chain import Chain, Stage
from leanfed.tasks.hub_files import data_root

ROUNDS, TEXT_ROUNDS, MOST_ROUNDS = 18, 6, 120
INSTANTS, SEEDS = 24, (0, 1)
POINT, SLOWER, BAR = 0.01, 1.15, 0.8
PARTITIONS = {"Class-2": {"kind": "class", "classes_per_client": 2}, "alpha 0.1": {"kind": "dirichlet", "alpha": 0.1}}
TEXT_PARTITIONS = {"alpha 1": {"kind": "dirichlet", "alpha": 1.0}, "IID": {"kind": "iid"}}
NETS = {"table": "table-net", "series": "series-net", "svhn-reduced": "colour-net", "cifar10-reduced": "colour-net"}
METHODS: dict[str, dict[str, Any]] = {
    "FedPer": {"algorithm": {"name": "fedper"}},
    "FLPDSP-OPT fast": {"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint"}},
}


class ColourNet(Chain):
    """LeNet-5 for pictures of three channels: (batch, 3, 32, 32) -> (batch, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.Conv2d(16, 120, 5)
        self.fc1, self.fc2 = nn.Linear(120, 84), nn.Linear(84, classes)

    def stages(self) -> dict[str, Stage]:
        return {
            "conv1": lambda x: functional.max_pool2d(functional.relu(self.conv1(x)), 2),
            "conv2": lambda x: functional.max_pool2d(functional.relu(self.conv2(x)), 2),
            "conv3": lambda x: functional.relu(self.conv3(x)).flatten(1),
            "fc1": lambda x: functional.relu(self.fc1(x)),
            "fc2": self.fc2,
        }


class SeriesNet(Chain):
    """Three convolutions over time, their mean, two linear layers: (batch, 8, 64) -> (batch, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(8, 16, 5, stride=2), nn.Conv1d(16, 32, 5, stride=2)
        self.conv3 = nn.Conv1d(32, 64, 3, stride=2)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, classes)

    def stages(self) -> dict[str, Stage]:
        return {
            "conv1": lambda x: functional.relu(self.conv1(x)),
            "conv2": lambda x: functional.relu(self.conv2(x)),
            "conv3": lambda x: functional.relu(self.conv3(x)).mean(2),
            "fc1": lambda x: functional.relu(self.fc1(x)),
            "fc2": self.fc2,
        }


def made_series(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Eight channels, of which a class chooses two that swing together at its own frequency, in noise."""
    labels = rng.integers(0, 10, count)
    time, phase = np.arange(64), rng.uniform(0, 2 * np.pi, (count, 1))
    wave = np.sin(2 * np.pi * time * (2 + labels % 5)[:, None] / 64 + phase)
    series = rng.normal(scale=1.0, size=(count, 8, 64))
    for shift in (0, 1):
        series[np.arange(count), (labels // 2 + shift) % 8] += wave
    return series.astype(np.float32), labels


class TableNet(Chain):
    """Four linear layers: (batch, 24) -> (batch, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(24, 64), nn.Linear(64, 64)
        self.fc3, self.fc4 = nn.Linear(64, 32), nn.Linear(32, classes)

    def stages(self) -> dict[str, Stage]:
        return {
            "fc1": lambda x: functional.relu(self.fc1(x)),
            "fc2": lambda x: functional.relu(self.fc2(x)),
            "fc3": lambda x: functional.relu(self.fc3(x)),
            "fc4": self.fc4,
        }


def made_table(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes of four clusters each around places that are the same for all draws, in noise."""
    places = np.random.default_rng(7).normal(size=(10, 4, 24))
    labels = rng.integers(0, 10, count)
    rows = places[labels, rng.integers(0, 4, count)] + rng.normal(scale=0.9, size=(count, 24))
    return rows.astype(np.float32), labels


def some(name: str, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """So many pictures of a data set, drawn at random."""
    samples = load_samples(name, split)
    rows = np.sort(np.random.default_rng(0).permutation(len(samples.labels))[:count])
    return np.asarray(samples.inputs[rows], dtype=np.float32), np.asarray(samples.labels[rows])


def register(folder: Path) -> None:
    for name in ("cifar10", "svhn"):
        train, test = some(name, "train", 4000), some(name, "test", 1000)
        leanfed.add_arrays(f"{name}-reduced", *train, test=test, normalise="standard")
    rng = np.random.default_rng(0)
    series = made_series(4000, rng)
    leanfed.add_arrays("series", *series, test=made_series(1000, rng))
    table = made_table(4000, rng)
    leanfed.add_arrays("table", *table, test=made_table(1000, rng))
    for split, count in (("train", 400), ("test", 100)):
        pairs = pl.read_parquet(data_root() / f"nyu-mll/glue/mrpc/{split}-00000-of-00001.parquet")
        pairs.select("sentence1", "sentence2", "label").head(count).write_parquet(folder / f"{split}.parquet")
    texts = ["sentence1", "sentence2"]
    leanfed.add_parquet("mrpc-reduced", folder / "train.parquet", inputs=texts, test=folder / "test.parquet")
    leanfed.add_model("colour-net", ColourNet, split="conv3", input_shape=(3, 32, 32))
    leanfed.add_model("table-net", TableNet, split="fc3", input_shape=(24,))
    leanfed.add_model("series-net", SeriesNet, split="conv3", input_shape=(8, 64))


def cases() -> Iterator[tuple[str, str, str, Settings]]:
    """(data, partition, method, settings) of every case; the dearest come last."""
    for method, label in (("FedPer", "Class-2"), ("FedPer", "alpha 0.1"), ("FLPDSP-OPT fast", "alpha 0.1")):
        for data, model in NETS.items():
            task = {"dataset": data, "model": model, "partition": {**PARTITIONS[label], "clients": 8}}
            changes = {**METHODS[method], "training": {"batch_size": 16}}
            yield data, label, method, settings_of(task, changes, 8e5)
    for label, partition in TEXT_PARTITIONS.items():
        text = {"pooling": "distance", "length": 48, "scale": 8.0}
        dealt = {**partition, "clients": 4}
        task = {"dataset": "mrpc-reduced", "model": "bert-lora", "text": text, "partition": dealt}
        slow = {"training": {"learning_rate": 0.2, "batch_size": 4}}
        yield "mrpc-reduced", label, "FedPer", settings_of(task, {**METHODS["FedPer"], **slow}, 4e5)


def settings_of(task: dict[str, Any], changes: dict[str, Any], bandwidth_hz: float) -> Settings:
    values = {"task": {**task, "split": "auto"}, "radio": {"fleet": {"bandwidth_hz": bandwidth_hz}}}
    return Settings.from_values({**values, "rounds": MOST_ROUNDS, "run": {"threads": 1}, **changes})


Curve = list[tuple[float, float]]  # (simulated seconds, accuracy) of the evaluations


def curve(settings: Settings, layer: str, seconds: float, planned: float) -> Curve:
    """One cut until the seconds are spent."""
    rounds = min(MOST_ROUNDS, math.ceil(1.1 * seconds / planned))  # planned by the first rounds: a few more may fit
    tests = 3 if settings.task.model == "bert-lora" else 8
    changes = {
        "rounds": rounds,
        "evaluation": settings.evaluation.model_copy(update={"every": max(1, rounds // tests)}),
        "run": settings.run.model_copy(update={"stop_at_seconds": seconds}),
    }
    run = leanfed.run(with_cut(settings, layer).model_copy(update=changes), progress=False)
    tested = run.rounds.with_columns(pl.col("latency_s").cum_sum().alias("spent")).drop_nulls("accuracy")
    return list(zip(tested["spent"].to_list(), tested["accuracy"].to_list(), strict=True))


def one_seed(settings: Settings, kept: dict[str, Any]) -> None:
    """All cuts of one case and seed, and what is chosen."""
    table = choose_cut(settings)
    by_gain = settings.model_copy(update={"task": settings.task.model_copy(update={"split": "auto:gain"})})
    gain, planned = choose_cut(by_gain), {cut.layer: cut.seconds or 0.0 for cut in table.cuts}
    rounds = TEXT_ROUNDS if settings.task.model == "bert-lora" else ROUNDS
    kept |= {"own": table.own, "cost": table.chosen, "gain": gain.chosen, "seconds": rounds * planned[table.own]}
    kept |= {"why": {"cost": table.why, "gain": gain.why}, "table": table.to_json()["cuts"]}
    kept.setdefault("curves", {})
    for layer, each in planned.items():
        if layer not in kept["curves"]:
            kept["curves"][layer] = curve(settings, layer, kept["seconds"], each)


def mean_curve(seeds: list[dict[str, Any]], layers: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, accuracy) at the common instants, the mean over seeds of one layer each."""
    shares, found = np.arange(1, INSTANTS + 1) / INSTANTS, []
    for seed, layer in zip(seeds, layers, strict=True):
        spent, accuracy = np.array([(0.0, 0.0), *seed["curves"][layer]]).T
        found.append(np.interp(shares * seed["seconds"], spent, accuracy))
    return shares * np.mean([seed["seconds"] for seed in seeds]), np.mean(found, axis=0)


def final(curve: tuple[np.ndarray, np.ndarray]) -> float:
    return float(curve[1][-3:].mean())


def reached(curve: tuple[np.ndarray, np.ndarray], target: float) -> float | None:
    """Simulated seconds at which a curve first reaches the target, by linear interpolation."""
    seconds, accuracy = (np.concatenate([[0.0], values]) for values in curve)
    above = np.flatnonzero(accuracy >= target)
    if not len(above):
        return None
    place = int(above[0])
    share = (target - accuracy[place - 1]) / (accuracy[place] - accuracy[place - 1])
    return float(seconds[place - 1] + share * (seconds[place] - seconds[place - 1]))


def judged(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """What every cut reaches, and whether each way of choosing is as good as the best cut."""
    curves = {layer: mean_curve(seeds, [layer] * len(seeds)) for layer in seeds[0]["curves"]}
    ends = {layer: round(final(each), 4) for layer, each in curves.items()}
    best = max(ends, key=lambda layer: ends[layer])
    target = final(curves[best]) - POINT
    found: dict[str, Any] = {"accuracy": ends, "best": best}
    for by in ("cost", "gain", "own"):
        chosen = mean_curve(seeds, [seed[by] for seed in seeds])
        ours, theirs = reached(chosen, target), reached(curves[best], target)
        near, behind = final(chosen) >= target, final(curves[best]) - final(chosen)
        soon = ours is not None and theirs is not None and ours <= SLOWER * theirs
        ratio = None if ours is None or theirs is None else round(ours / theirs, 3)
        found[by] = {
            "chosen": sorted({seed[by] for seed in seeds}),
            "points_behind": round(100 * behind, 2),
            "seconds_over_best": ratio,
            "within_a_point": near,
            "as_soon": soon,
            "holds": near and soon,
        }
    return found


def repeated(cases: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
    """On single seeds: in how many cases `auto` holds, and in how many whatever was the best cut on another seed.

    The second knows more than any rule could before a run, so it says how far the best cut is a matter of luck.
    """
    counts = {"cases": 0, "cost": 0, "best_of_another_seed": 0}
    for seeds in cases.values():
        for mine, other in permutations(seeds, 2):
            ends = {layer: final(mean_curve([other], [layer])) for layer in other["curves"]}
            repeat = {**mine, "cost": max(ends, key=lambda layer, ends=ends: ends[layer])}
            counts["cases"] += 1
            counts["cost"] += judged([mine])["cost"]["holds"]
            counts["best_of_another_seed"] += judged([repeat])["cost"]["holds"]
    return counts


def carry_out(out: Path) -> None:
    """All cases, seed by seed; every run is written as soon as it is there."""
    file = out / "cuts.json"
    kept: dict[str, Any] = read_json(file)["runs"] if file.is_file() else {}

    def save() -> None:
        done = {name: [seed for seed in seeds.values() if seed.get("done")] for name, seeds in kept.items()}
        found = {name: judged(seeds) for name, seeds in done.items() if seeds}
        single = repeated(done)
        write_json(file, {"seeds": len(SEEDS), "cases": found, "single_seeds": single, "runs": kept})
        write_text(out / "README.md", page(found, single, min(map(len, done.values()))))

    for seed in SEEDS:
        for data, partition, method, settings in cases():
            case = kept.setdefault(f"{data}, {partition}, {method}", {}).setdefault(str(seed), {})
            if not case.get("done"):
                one_seed(settings.model_copy(update={"seed": seed}), case)
                case["done"] = True
                save()
                print(seed, data, partition, method, case["cost"], case["gain"], flush=True)
    save()


def page(found: dict[str, Any], single: dict[str, int], seeds: int) -> str:
    """The table in Markdown."""
    about = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    lines = ["# Every cut beside the chosen one", "", f"{about} Seeds here: {seeds}.", ""]
    ways = {"cost": '`"auto"` (by cost)', "gain": '`"auto:gain"`', "own": "the model's own cut"}
    for by, words in ways.items():
        counted = ("within_a_point", "as_soon", "holds")
        near, soon, both = (sum(case[by][key] for case in found.values()) for key in counted)
        lines.append(
            f"- {words}: holds in {both} of {len(found)} cases ({both / len(found):.0%}; {near} within one point, "
            f"{soon} as soon); the bar is {BAR:.0%}."
        )
    if single["cases"]:
        luck, of = single["best_of_another_seed"], f"of {single['cases']}"
        lines.append(
            f"- seed by seed: `auto` holds in {single['cost']} {of}, whatever was the best cut on another seed of the "
            f"same case in {luck} {of} ({luck / single['cases']:.0%}), which is what could be known of it before a run."
        )
    lines += ["", "| case | accuracy of every cut | by cost | behind | seconds | by gain | behind | own: behind |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, case in found.items():
        marks = {layer: "**" if layer == case["best"] else "" for layer in case["accuracy"]}
        cuts = ", ".join(
            f"{marks[layer]}{layer.removeprefix('encoder.encoder.')} {end:.3f}{marks[layer]}"
            for layer, end in case["accuracy"].items()
        )
        cost, gain, own = (case[by] for by in ways)
        ratio = "never" if cost["seconds_over_best"] is None else f"{cost['seconds_over_best']:.2f}"
        chosen = (" or ".join(way["chosen"]).replace("encoder.encoder.", "") for way in (cost, gain))
        cells = (name, cuts, next(chosen), f"{cost['points_behind']:.1f}", ratio, next(chosen))
        lines.append(f"| {' | '.join(cells)} | {gain['points_behind']:.1f} | {own['points_behind']:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("results/cuts")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        register(Path(folder))
        carry_out(out)


if __name__ == "__main__":
    main()
