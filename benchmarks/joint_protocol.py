"""The comparison of FLPDSP-OPT with the baselines on the simulated radio; writes results/joint/summary.json.

    python benchmarks/joint_protocol.py                    # both partitions, three seeds: an hour on two cores
    python benchmarks/joint_protocol.py --partitions class2 --seeds 0 --groups main
    python benchmarks/joint_protocol.py --groups held sensitivity ablation

The settings files are experiments/configs/joint_*.toml; a method changes what METHODS says and nothing else, so all of
them share partition, initial weights and fleet draws of a seed. Finished runs are not run again. A target's time is the
first crossing between evaluations; ratios are taken seed by seed to FedPer on equal shares of the same group's fleet;
a target that is not reached stays empty.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from leanfed.experiments.build import resume, run
from leanfed.experiments.compare import read_run
from leanfed.experiments.settings import Settings
from leanfed.files import make_folder, write_json
from leanfed.results import RunFolder

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "src" / "leanfed" / "experiments" / "configs"
OUTPUT = ROOT / "results" / "joint" / "summary.json"
TARGETS = (0.8, 0.9)
YARDSTICK = "fedper, equal"

OWN = ["allocation.rule=own"]
MIN_MAX = [*OWN, "allocation.bandwidth=min-max"]
SAFE, FAST = ["allocation.form=safe"], ["allocation.form=fast"]
HELD = ['radio.fleet.hold=["place", "cpu", "power"]']
BASELINES = ("fedper", "lg-fedavg", "fedavg-s", "fedavg", "fedavg-p", "fedmask")

MAIN: dict[str, list[str]] = {
    YARDSTICK: [*OWN, "algorithm.name=fedper"],
    "flpdsp-opt fast": FAST,
    "flpdsp-opt safe": SAFE,
    "flpdsp-opt plain": ["allocation.form=plain"],
    **{f"{name}, min-max": [*MIN_MAX, f"algorithm.name={name}"] for name in BASELINES},
    **{f"{name}, equal": [*OWN, f"algorithm.name={name}"] for name in BASELINES[1:]},
}
GROUPS: dict[str, dict[str, list[str]]] = {
    "main": MAIN,
    # Devices whose place, clock and power never change.
    "held": {f"{name}, held": [*MAIN[name], *HELD] for name in (YARDSTICK, "fedper, min-max", "flpdsp-opt fast")}
    | {"flpdsp-opt fast without floor, held": [*FAST, *HELD, "allocation.within_rounds=0"]},
    "sensitivity": {
        f"flpdsp-opt {form}, deadline x {factor:g}": [
            f"allocation.form={form}",
            f"allocation.deadline_s={0.8 * factor:g}",
        ]
        for form in ("safe", "fast")
        for factor in (0.6, 0.8, 1.5)
    },
    # The fast form with one of its parts taken away.
    "ablation": {
        "fast without error feedback": [*FAST, "algorithm.name=flpdsp", "algorithm.sparsify.error_feedback=false"],
        "fast with heads discarded": [*FAST, "algorithm.name=flpdsp", "algorithm.prune.head_memory=discard"],
        "fast without floor": [*FAST, "allocation.within_rounds=0"],
        "fast with any k": [*FAST, "allocation.k_max=1.0"],
        "safe with r_min 0.5": [*SAFE, "allocation.r_min=0.5"],
    },
}


def main() -> None:
    """Run what is missing, then write the summary of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", nargs="+", default=["alpha01", "class2"], choices=["alpha01", "class2"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--groups", nargs="+", default=["main"], choices=list(GROUPS))
    parser.add_argument("--only", nargs="+", help="names of methods; the others are left as they are")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "joint")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUTPUT)
    given = parser.parse_args()
    for seed in given.seeds:
        for group in given.groups:
            for name in given.only or GROUPS[group]:
                for partition in given.partitions:
                    if name in GROUPS[group]:
                        carry_out(given.runs, partition, name, GROUPS[group][name], seed, given.threads)
                        make_folder(given.out.parent)
                        write_json(given.out, {"targets": TARGETS, "rows": summarise(given.runs)})


def carry_out(runs: Path, partition: str, name: str, changes: list[str], seed: int, threads: int) -> None:
    """One run, unless its folder has it already; a run that was stopped goes on."""
    folder = folder_of(runs, partition, name, seed)
    if RunFolder(folder).settings.is_file():
        resume(folder)
        return
    overrides = [*changes, f"seed={seed}", f"name={name}", f"run.threads={threads}"]
    done = run(Settings.from_toml(CONFIGS / f"joint_{partition}.toml", overrides), folder)
    print(f"{partition:8} {name:38} seed {seed}: {done.accuracy:.4f} in {done.summary['latency_s']:.1f} s", flush=True)


def folder_of(runs: Path, partition: str, name: str, seed: int) -> Path:
    """Where a run is kept."""
    return runs / partition / name.replace(", ", "-").replace(" ", "-") / f"seed-{seed}"


def summarise(runs: Path) -> list[dict[str, Any]]:
    """One row per partition and method, over the seeds that are finished."""
    names = {name: group for group, methods in GROUPS.items() for name in methods}
    rows = []
    for partition in ("alpha01", "class2"):
        for name, group in names.items():
            seeds = [seed for seed in range(100) if RunFolder(folder_of(runs, partition, name, seed)).finished]
            if seeds:
                rows.append(_row(runs, partition, name, group, seeds))
    return rows


def _row(runs: Path, partition: str, name: str, group: str, seeds: list[int]) -> dict[str, Any]:
    """A method's seeds side by side, with their mean and range."""
    yardstick = f"{YARDSTICK}, held" if group == "held" else YARDSTICK
    ours = [_measure(folder_of(runs, partition, name, seed)) for seed in seeds]
    theirs = [_measure(folder_of(runs, partition, yardstick, seed)) for seed in seeds]
    row: dict[str, Any] = {"partition": partition, "method": name, "group": group, "seeds": seeds}
    for target in TARGETS:
        key = f"seconds_to_{target:g}"
        row[key] = [mine and mine[key] for mine in ours]
        ratios = [_ratio(mine, base, key) for mine, base in zip(ours, theirs, strict=True)]
        row[f"ratio_to_{target:g}"] = ratios
        reached = [ratio for ratio in ratios if ratio is not None]
        complete = len(reached) == len(seeds)
        row[f"mean_ratio_to_{target:g}"] = sum(reached) / len(reached) if complete else None
        row[f"range_to_{target:g}"] = [min(reached), max(reached)] if complete else None
    for key in ("accuracy", "worst_decile", "seconds_a_round", "participants", "joules_a_round"):
        row[key] = [mine[key] for mine in ours if mine]
    return row


def _measure(folder: Path) -> dict[str, Any] | None:
    """What one finished run took and reached."""
    kept = RunFolder(folder)
    if not kept.finished:
        return None
    compared, rounds = read_run(kept), kept.read_table("rounds")
    times = {target: compared.cost_of(target) for target in TARGETS}
    return {
        **{f"seconds_to_{target:g}": cost and cost.get("latency_s") for target, cost in times.items()},
        "accuracy": compared.accuracy[-1],
        "worst_decile": compared.worst_decile[-1],
        "seconds_a_round": float(rounds["latency_s"].sum()) / rounds.height,
        "participants": float(rounds["participants"].sum()) / rounds.height,
        "joules_a_round": float(rounds["energy_j"].sum()) / rounds.height,
    }


def _ratio(ours: dict[str, Any] | None, theirs: dict[str, Any] | None, key: str) -> float | None:
    """Seconds to a target over FedPer's, where both reached it."""
    if ours is None or theirs is None or ours[key] is None or theirs[key] is None:
        return None
    return float(ours[key] / theirs[key])


if __name__ == "__main__":
    main()
