"""What the documents say is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanfed.reproduction.paper  # noqa: F401  (fills the catalogue)
from leanfed.algorithms import ALGORITHMS
from leanfed.reproduction.catalogue import ENTRIES
from leanfed.reproduction.entry_page import entry_text
from leanfed.reproduction.evidence import claims_of, measured_of
from leanfed.reproduction.headline import energy_shares, headline_ratios, headline_table, tuned_shares
from leanfed.reproduction.judging import key_of
from leanfed.reproduction.paper import choices, figures, mrpc, parts
from leanfed.reproduction.paper.bound import DISTANCE
from leanfed.reproduction.paper.fair import ALL_FOUR, HALFWAY, OF_BEST
from leanfed.reproduction.paper.tuned import FASTEST_60, NARROW, PAPERS, PARTITIONS, SECONDS, TARGETS, TUNED
from leanfed.reproduction.paper.tuned import cell as cell_of
from leanfed.reproduction.results_page import page_text, read_results
from leanfed.tasks.models import build_model, default_split
from leanfed.tasks.split import split_after
from leanfed.tasks.text import TextSettings

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "leanfed"
README = (ROOT / "README.md").read_text()
MEASURED = (ROOT / "docs/measurements.md").read_text()
CONCEPTS = (ROOT / "docs/concepts.md").read_text()
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"


def seeds(results: dict[str, Any]) -> str:
    """How many seeds there are, in words."""
    words = ("no seeds", "one seed", "two seeds", "three seeds", "four seeds", "five seeds")
    return words[len(results["seeds"])]


def tells(text: str, place: str, *numbers: str) -> bool:
    """Whether the one row or paragraph that holds the words `place` has these numbers, in this order, among others."""
    blocks = re.split(r"\n\s*\n", text)
    rows = [row for block in blocks for row in (block.splitlines() if "\n|" in block else [" ".join(block.split())])]
    (found,) = [row for row in rows if place in row]
    shown = iter(re.findall(NUMBER, found))
    return all(number in shown for number in numbers)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130


def test_the_readme_counts_the_methods() -> None:
    assert tells(README, "| methods that come with it", str(len(list(ALGORITHMS))))


def test_the_tree_is_the_tree_on_disk() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.search(r"```\nsrc/leanfed/\n(.*?)```", guide, re.DOTALL)[1]
    named = {line.split()[0].rstrip("/") for line in shown.splitlines() if re.match(r"  \w", line)}
    on_disk = {p.name for p in PACKAGE.iterdir() if not p.name.startswith("__")}
    assert named == on_disk


def test_the_models_table_has_every_model_with_its_sizes() -> None:
    table = (ROOT / "docs/models.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([\d,]+ \\\| [\d,]+)", table, re.MULTILINE))
    for name in rows.keys() | {"lenet5", "resnet18", "resnet18-imagenet", "bert-lora"}:
        text = TextSettings()
        model = build_model(name, 2 if name == "bert-lora" else 10, 0, text)
        sizes = {parameter: values.numel() for parameter, values in model.named_parameters()}
        split = split_after(model, default_split(name, text))
        shared, private = (sum(sizes[one] for one in part) for part in (split.shared, split.private))
        assert rows[name] == f"{shared:,} \\| {private:,}"


def test_every_place_in_the_notation_table_exists() -> None:
    for line in (ROOT / "docs/notation.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 7 or "`" not in cells[5]:
            continue
        files = "\n".join((PACKAGE / name).read_text() for name in re.findall(r"`([\w/]+\.py)`", cells[5]))
        for name in re.findall(r"`([\w.]+)`", cells[2]):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", files), f"{name} is not in {cells[5]}"


def test_the_ten_lines_of_the_readme_run() -> None:
    code = re.search(r"## Ten lines of Python\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    scope: dict[str, object] = {}
    exec(code, scope)
    found = f"{scope['run'].accuracy:.2f}", f"{scope['run'].summary['majority_guess']:.2f}"
    assert "# {} and {}".format(*found) in code


def test_the_methods_are_told_as_in_the_committed_results() -> None:
    rows = json.loads((ROOT / "results/foundation/methods.json").read_text())
    table = re.search(r"<!-- methods -->\n(.*?)\n$", MEASURED, re.DOTALL)[1]
    shown = {}
    for line in table.splitlines()[2:]:
        cells = [cell.strip(" `*") for cell in line.strip("|").split("|")]
        shown[cells[0]] = cells[1:]
    assert len(shown) == 7
    for row in rows:
        column = {"alpha 0.1": 0, "Class-2": 1}[row["partition"]]
        assert float(shown[row["algorithm"]][column]) == pytest.approx(row["accuracy"], abs=5e-4)


def test_the_demo_table_of_the_readme_is_the_committed_run() -> None:
    runs = json.loads((ROOT / "results/demo/comparison.json").read_text())["runs"]
    for run in runs:
        line = next(line for line in README.splitlines() if line.startswith(f"| {run['name']} |"))
        assert float(line.split("|")[2]) == pytest.approx(run["accuracy"], abs=5e-4)
        assert float(line.split("|")[3]) == pytest.approx(run["worst_decile"], abs=5e-4)
        for cell, target in zip(line.split("|")[5:7], ("0.8", "0.9"), strict=True):
            both = [run[f"{kind}time_to_accuracy"][target] for kind in ("sustained_", "")]
            seconds = ["never" if reached is None else f"{reached['latency_s']:.1f}" for reached in both]
            assert cell.strip() == ("not reached" if both[1] is None else f"{seconds[0]} ({seconds[1]})")
    ours, fedper = (run["sustained_time_to_accuracy"]["0.8"]["latency_s"] for run in runs[:2])
    assert tells(MEASURED, "| FLPDSP-OPT is sooner than FedPer", f"{ours / fedper:.2f}")


@pytest.mark.parametrize(
    "file", sorted(p.relative_to(ROOT) for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))), ids=str
)
def test_links_inside_the_repository_lead_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / file).read_text()):
        assert (ROOT / file.parent / target).exists(), f"{file} links to {target}"


def test_the_headline_of_the_readme_is_the_committed_result() -> None:
    fair = read_results(ROOT / "results/fair")
    assert fair is not None
    assert re.search(r"<!-- headline -->\n(.*?)\n\n", README, re.DOTALL)[1] == headline_table(fair, short=True)
    assert f"{seeds(fair)} ({fair['seeds'][0]} to {fair['seeds'][-1]})" in " ".join(README.split())
    own, joules = tuned_shares(fair), energy_shares(fair)
    by = [share for partition, share in own.items() if partition != ALL_FOUR]
    shares = [min(by), max(by), own[ALL_FOUR], min(joules.values()), max(joules.values())]
    pairs = [
        share
        for number in fair["numbers"]
        if {"quantity": OF_BEST, "target": HALFWAY}.items() <= number["labels"].items()
        for share in number["ours"]
        if number["labels"]["partition"] != ALL_FOUR
    ]
    later = {
        (number["labels"]["partition"], number["labels"]["target"]): number["mean"]
        for number in fair["numbers"]
        if number["labels"]["quantity"] == OF_BEST and number["mean"] > 1 and number["labels"]["partition"] != ALL_FOUR
    }
    assert later.keys() == {(place, target) for place in ("Class-2", "alpha 0.1") for target in ("80 %", "90 %")}
    most, least = (100 * (share - 1) for share in (max(later.values()), min(later.values())))
    assert f"to 80 and 90 % it is on Class-2 and alpha 0.1, by {least:.0f} to {most:.0f} %" in " ".join(README.split())
    assert f"On {sum(share > 1 for share in pairs)} of {len(pairs)} pairs of partition and seed" in README
    ratios = headline_ratios(fair)
    assert len(ratios) == 2
    shares += [found for row in ratios.values() for found in (min(row.values()), max(row.values()))]
    assert tells(README, "Compared at equal aids", *(f"{share:.2f}" for share in shares))


def test_what_a_plan_can_still_gain_is_the_committed_result() -> None:
    bound = read_results(ROOT / "results/bound")
    assert bound is not None
    means = {key_of(number["labels"]): number["mean"] for number in bound["numbers"]}
    places = [(partition, f"{100 * target:g} %") for partition in PARTITIONS for target in TARGETS]
    rule = [1 / means[key_of(cell_of(FASTEST_60, PAPERS, p, DISTANCE, t))] for p, t in places]
    tuned = read_results(ROOT / "results/tuned")
    assert tuned is not None
    seconds = {key_of(number["labels"]): number["mean"] for number in tuned["numbers"]}
    narrow = [
        seconds[key_of(cell_of(TUNED, NARROW, p, SECONDS, t))]
        / seconds[key_of(cell_of(FASTEST_60, NARROW, p, SECONDS, t))]
        for p, t in places
    ]
    shares = [min(rule), max(rule), min(narrow), max(narrow)]
    assert tells(CONCEPTS, "A plan is not always worth having", *(f"{share:.2f}" for share in shares))
    assert f"{seeds(bound)} of `bound`, {seeds(tuned)} of `tuned`" in " ".join(CONCEPTS.split())


def test_what_the_parts_of_a_plan_bring_is_the_committed_result() -> None:
    results = read_results(ROOT / "results/parts")
    assert results is not None
    assert results["seeds"] == [45]  # "one seed"
    shares: dict[tuple[str, str], list[float]] = {}
    for number in results["numbers"]:
        labels = number["labels"]
        if labels["quantity"] == parts.SHARE and number["mean"] is not None:
            shares.setdefault((labels["method"], labels["fleet"]), []).append(number["mean"])
    means = {place: f"{np.exp(np.mean(np.log(found))):.2f}" for place, found in shares.items()}
    for part, row in zip(parts.PARTS, parts.WITHOUT, strict=True):
        assert f"| {part} | {means[row, PAPERS]} | {means[row, NARROW]} |" in CONCEPTS
    for row in parts.ASKED:
        if row != "no turns":  # which keeps too few targets
            assert f"| {row} | {means[row, parts.STAYING]} | {means[row, parts.SLOW]} |" in CONCEPTS
    worst = [
        number["mean"]
        for number in results["numbers"]
        if number["labels"]["method"] == "no turns" and number["labels"]["quantity"] == parts.WORST
    ]
    assert len(worst) == 4
    assert max(worst) < 0.05


def test_the_results_page_is_made_from_the_committed_results() -> None:
    assert (ROOT / "RESULTS.md").read_text() == page_text(ROOT / "results", ROOT)
    for name in ENTRIES:
        folder = ROOT / "results" / name
        if (results := read_results(folder)) is not None:
            assert (folder / "README.md").read_text() == entry_text(results, folder)


@pytest.mark.parametrize("name", [name for name in ENTRIES if (ROOT / "results" / name).is_dir()])
def test_committed_results_are_full_and_judged_by_todays_rules(name: str) -> None:
    results, entry = read_results(ROOT / "results" / name), ENTRIES[name]
    assert results is not None
    assert results["version"] == "full"
    # After a change of claims: leanfed reproduce --judge-only
    assert claims_of(entry, entry.book(measured_of(results))) == results["claims"]
    for number in results["numbers"]:
        assert number["published"] == entry.published.get(key_of(number["labels"]))


def test_the_engines_ratios_are_the_committed_measurement() -> None:
    row = json.loads((ROOT / "results/engine/bench.json").read_text())[0]
    assert tells(MEASURED, "`leanfed bench engine` |", f"{row['ratio_one_batch']:.2f}", f"{row['ratio_chunked']:.2f}")
    assert tells(README, "**Fast.**", f"{row['ratio_one_batch']:.2f}", f"{row['ratio_chunked']:.2f}")
    assert row["ratio_one_batch"] <= 0.30
    assert row["ratio_chunked"] <= 0.60


def test_the_streamed_engines_ratios_are_the_committed_measurement() -> None:
    row = json.loads((ROOT / "results/engine/resnet18.json").read_text())[0]
    ratios = f"{row['ratio_one_batch']:.2f}", f"{row['ratio_chunked']:.2f}"
    assert tells(MEASURED, "`leanfed bench engine --model resnet18` |", *ratios)
    assert max(row["ratio_one_batch"], row["ratio_chunked"]) <= 1.25


def test_the_ratios_of_own_models_are_the_committed_measurement() -> None:
    rows = json.loads((ROOT / "results/own_models/bench.json").read_text())
    for model, engine, most in (("mlp", "stacked", 0.5), ("mlp", "streamed", 1.15), ("conv-gru", "streamed", 1.15)):
        ratios = [row["ratio"] for row in rows if (row["model"], row["engine"]) == (model, engine)]
        assert tells(MEASURED, "`python benchmarks/own_models.py` |", f"{min(ratios):.2f}", f"{max(ratios):.2f}")
        assert len(ratios) == 4
        assert max(ratios) <= most


def test_the_pages_figures_in_the_documents_are_the_committed_measurements() -> None:
    scale = json.loads((ROOT / "results/report/scale.json").read_text())
    size = str(scale["runs"]), f"{scale['rounds']:,}", str(scale["clients"])
    cost = (scale["build_s"], scale["megabytes"], scale["open_s"][0], scale["open_s"][-1])
    assert tells(MEASURED, "`benchmarks/report_scale.py`", *size, *(f"{value:.1f}" for value in cost))
    assert (scale["runs"], scale["rounds"], scale["clients"]) == (20, 1_000, 100)
    assert scale["build_s"] < 20
    assert scale["megabytes"] < 15
    assert max(scale["open_s"]) < 3
    planner = json.loads((ROOT / "results/report/planner.json").read_text())
    redraw, answer = planner["redraw_ms"], planner["answer_ms"]
    shown = (redraw["least"], redraw["most"], redraw["median"], answer["least"], answer["most"])
    serve_page = (ROOT / "docs/serve.md").read_text()
    assert tells(serve_page, "the allocation is redrawn", str(planner["clients"]), *map(str, shown))
    assert planner["clients"] == 100
    assert redraw["most"] < 300


def test_the_differences_told_are_the_committed_results() -> None:
    rows = json.loads((ROOT / "results/foundation/methods.json").read_text())
    of = {(row["algorithm"], row["partition"]): row for row in rows}

    def behind(partition: str) -> float:
        return 100 * (of["fedper", partition]["accuracy"] - of["flpdsp", partition]["accuracy"])

    points = [f"{behind(partition):.1f}" for partition in ("alpha 0.1", "Class-2")]
    assert tells(MEASURED, "keeps up with FedPer per round |", *points)
    mask = of["fedmask", "Class-2"]
    assert tells(MEASURED, "| FedMask is fast", str(int(100 * (mask["accuracy"] - mask["majority_guess"]))))


def test_the_planners_figures_are_the_committed_check() -> None:
    check = json.loads((ROOT / "results/allocation/check.json").read_text())
    gap = f"{check['paper_like']['exact']['gap_max']:.1e}".replace("e-0", "e-")
    row = next(row for row in check["speed"] if (row["clients"], row["model"]) == (100, "lenet"))
    assert tells(MEASURED, "`leanfed bench plan` |", gap, "200", f"{1000 * row['seconds']:.0f}")
    assert tells(README, "**Planned with a certificate.**", gap, "200", f"{1000 * row['seconds']:.0f}")


def test_the_growth_of_algorithm_2_is_told_as_measured() -> None:
    growth = json.loads((ROOT / "results/allocation/growth.json").read_text())
    few, many = ([r["iterations"] for r in growth["rows"] if (r["clients"] > 50) is large] for large in (False, True))
    told = [f"{growth['exponents']['one iteration']:.2f}", str(min(few)), str(max(few)), "50", "100", "200", "40"]
    assert set(many) == {40}
    assert tells((ROOT / "docs/mathematics.md").read_text(), "How Algorithm 2 grows", *told)


def test_what_the_paper_leaves_to_choose_is_told_as_in_the_results() -> None:
    results, page = read_results(ROOT / "results/choices"), (ROOT / "docs/mathematics.md").read_text()
    assert results is not None
    assert results["seeds"] == [20]  # "one seed"
    means = {key_of(number["labels"]): number["mean"] for number in results["numbers"]}
    for row in choices.ROWS:
        seconds, ends = (
            [means[key_of(figures.cell(row, partition, quantity))] for partition in choices.PARTITIONS]
            for quantity in (choices.TO_90, choices.END)
        )
        named = row.removeprefix(f"{choices.PLANNED}, ").removeprefix(f"{choices.FIXED_RATES}, ")
        assert f"| {named} | {seconds[0]:.1f}, {seconds[1]:.1f} | {100 * ends[0]:.1f}, {100 * ends[1]:.1f} |" in page


def test_what_the_papers_head_brings_on_texts_is_told_as_in_the_results() -> None:
    results = read_results(ROOT / "results/mrpc-accuracy")
    assert results is not None
    assert results["seeds"] == [0]  # "one seed"
    means = {key_of(number["labels"]): number["mean"] for number in results["numbers"]}
    for partition in mrpc.STUDY.partitions:
        own, small = (
            means[key_of(figures.cell(row, partition, figures.FINAL))]
            for row in (f"{mrpc.FAST}, {mrpc.OWN_HEAD}", mrpc.FAST)
        )
        assert own < small  # docs/models.md: "ends lower"


def test_what_rules_take_is_told_as_measured() -> None:
    rows = json.loads((ROOT / "results/rules/bench.json").read_text())
    times: dict[str, list[str]] = {}
    for row in rows:
        times.setdefault(row["rule"], []).append(f"{row['milliseconds']:.0f}")
    page = (ROOT / "docs/trust.md").read_text()
    assert all(f"| `{rule}` | {few} | {many} |" in page for rule, (few, many) in times.items())


def test_the_engine_on_wider_registers_is_told_as_measured() -> None:
    row = json.loads((ROOT / "results/engine/avx512.json").read_text())[0]
    told = [f"{row['ratio_one_batch']:.2f}", f"{row['ratio_chunked']:.2f}", f"{row['growth']:.1f}"]
    assert tells(MEASURED, "the same on a processor with AVX-512", "100", "1,000", *told)


def test_what_widths_bring_is_told_as_in_the_results() -> None:
    results = read_results(ROOT / "results/widths")
    assert results is not None
    means = {(n["labels"]["method"], n["labels"]["quantity"]): n["mean"] for n in results["numbers"]}
    mixed, whole, narrow = "a quarter each at 0.25, 0.5, 0.75, 1", "all whole", "all at 0.25"
    end, seconds = "accuracy, mean of the last three", "seconds in all"
    share = [f"{means[row, seconds] / means[whole, seconds]:.2f}" for row in (mixed, narrow)]
    ends = [f"{100 * means[row, end]:.1f}" for row in (mixed, whole, narrow)]
    assert tells((ROOT / "docs/models.md").read_text(), "leanfed reproduce widths", share[0], *ends)
    assert share[1] == "0.14"  # a seventh


def test_what_privacy_costs_is_told_as_in_the_results() -> None:
    results = read_results(ROOT / "results/privacy")
    assert results is not None
    ends = {
        (n["labels"]["clients"], n["labels"]["epsilon"]): f"{n['mean']:.3f}"
        for n in results["numbers"]
        if n["labels"].items() >= {"method": "dense", "partition": "Class-2", "quantity": "accuracy"}.items()
    }
    page = (ROOT / "docs/trust.md").read_text()
    few = [ends["100, all", epsilon] for epsilon in ("1", "2", "4", "8", "none")]
    many = [ends["1000, a tenth a round", epsilon] for epsilon in ("8", "none")]
    assert tells(page, "**With 100 clients** noise is dear", *few[:4])
    assert all(value in page for value in (*few, *many))


def test_what_privacy_costs_in_the_long_run_is_told_as_in_the_results() -> None:
    results = read_results(ROOT / "results/privacy-long")
    assert results is not None
    ends = {
        (n["labels"]["method"], n["labels"]["partition"], n["labels"]["epsilon"]): n["mean"]
        for n in results["numbers"]
        if n["labels"]["clients"] == "1000, a tenth a round" and n["labels"]["quantity"] == "accuracy"
    }
    page = " ".join((ROOT / "docs/trust.md").read_text().split())
    told = [f"{ends['dense', 'Class-2', epsilon]:.3f}" for epsilon in ("1", "2", "4", "8", "none")]
    few = f"{', '.join(told[:4])} for epsilon 1, 2, 4, 8 and at {told[4]} without privacy"
    assert few in page
    costs = [
        ends[method, place, "none"] - ends[method, place, "8"] for method, place, epsilon in ends if epsilon == "8"
    ]
    few_clients = [
        n["mean"] for n in results["numbers"] if n["labels"].items() >= {"clients": "100, all", "epsilon": "8"}.items()
    ]
    assert max(few_clients) < 0.8  # "learn nothing": no better than heads alone
    assert f"epsilon 8 costs {100 * min(costs):.1f} to {100 * max(costs):.1f} points" in page


def test_what_rules_hold_against_attackers_is_told_as_in_the_results() -> None:
    results = read_results(ROOT / "results/robust")
    assert results is not None
    ends = {
        tuple(n["labels"][name] for name in ("method", "partition", "attack", "share")): n["mean"]
        for n in results["numbers"]
        if n["labels"]["quantity"] == "accuracy" and n["mean"] is not None
    }

    def least(rule: str, place: str, share: str) -> tuple[str, str]:
        found = {key[2]: value for key, value in ends.items() if (key[0], key[1], key[3]) == (rule, place, share)}
        worst = min(found, key=lambda attack: found[attack])
        return f"{found[worst]:.3f}", f"`{worst}`"

    page = " ".join((ROOT / "docs/trust.md").read_text().split())
    for rule in ("majority", "clip-dedupe"):
        for share in ("0.2", "0.3"):
            (first, by), (second, other) = (least(rule, place, share) for place in ("Class-2", "alpha 0.1"))
            assert f"| `{rule}` | {share} | {first} ({by}) | {second} ({other}) |" in page
    none = [f"{ends['mean', place, 'none', '0']:.3f}" for place in ("Class-2", "alpha 0.1")]
    floor = [f"{ends['frozen base', place, 'none', '0']:.3f}" for place in ("Class-2", "alpha 0.1")]
    assert f"the mean without attackers ends at {none[0]} and {none[1]}" in page
    assert f"a base that never moves at {floor[0]} and {floor[1]}" in page
