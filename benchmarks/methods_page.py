"""Take the results of the study over all methods into results/methods: python benchmarks/methods_page.py runs/methods.

First `leanfed study examples/methods.toml`: MNIST, LeNet-5, 100 clients, 60 rounds of 20 clients with five steps of 32
samples, tested on every client's own test set after the last round. The file says each method's learning rate and how
it was chosen; seconds, joules and bits are simulated (10 MHz, equal shares). {there} of {all} runs are there{missing}.

"""


def page(results: dict[str, Any]) -> str:
    """The page from study.json: what is there, what is missing, the table."""
    _, jobs = read_study(STUDY)
    found = {(row["method"], *row["point"].values()): row[results["score"]]["seeds"] for row in results["rows"]}
    left = [f"{m}, {p}: {3 - found.get((m, p), 0)}" for m, p in _cells(jobs) if found.get((m, p), 0) < 3]
    there = sum(found.values())
    missing = "" if not left else "; missing are, by method, partition and number of seeds: " + "; ".join(left)
    return HEAD.format(there=there, all=len(jobs), missing=missing) + markdown(block_of(results)) + "\n"


def _cells(jobs: list[Any]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((job.method, job.point[0][1]) for job in jobs))


if __name__ == "__main__":
    found = read_json(Path(sys.argv[1]) / "study.json")
    write_json(HOME / "study.json", found)
    write_text(HOME / "README.md", page(found))
