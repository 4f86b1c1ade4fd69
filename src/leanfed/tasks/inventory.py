"""Which data sets are on this machine: one row per split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from leanfed.errors import DataError, first_line
from leanfed.files import parquet_rows
from leanfed.tasks.cache import load_samples
from leanfed.tasks.datasets import DATASETS, DatasetSpec, HubSource, LocalSource, MemorySource
from leanfed.tasks.hub_files import files_here, hub_files, located, split_here
from leanfed.tasks.hub_sets import HUB_SETS, add_hub_set, address_of, is_hub_set


def inventory(root: Path | None = None, names: Iterable[str] = (), *, verify: bool = False) -> list[dict[str, Any]]:
    """One row per split of the named data sets, or of all: number of samples, whether it is present, its source."""
    rows = []
    for name in list(names) or list(dict.fromkeys((*DATASETS, *HUB_SETS))):
        if is_hub_set(name):
            rows += _hub_rows(name, root, verify)
        else:
            rows += [_row(name, split, DATASETS[name], root, verify) for split in DATASETS[name].rows]
    return rows


def _hub_rows(name: str, root: Path | None, verify: bool) -> list[dict[str, Any]]:
    """The splits of a data set of the hub as its files have them, or as it is known to have."""
    known, here = HUB_SETS.get(name), files_here(address_of(name), root)
    if here and verify:
        add_hub_set(name, root=root)
        return [_row(name, split, DATASETS[name], root, verify) for split in DATASETS[name].rows]
    licence = "see the data set's page" if known is None else known.licence
    return [
        {
            "dataset": name,
            "split": split,
            **_state(here.get(split, ()), known.rows.get(split, 0) if known else None),
            "where": str(here[split][0].parent) if split in here else address_of(name),
            "licence": licence,
        }
        for split in here or (known.rows if known else ("train",))
    ]


def _state(files: Sequence[Path], known: int | None) -> dict[str, Any]:
    """How many samples a split has, as known or else by its files, and whether it is here."""
    import polars as pl

    try:
        counted = sum(parquet_rows(file) for file in files) if known is None else known
    except (pl.exceptions.PolarsError, OSError) as error:
        return {"samples": 0, "here": f"damaged: {first_line(error)}"}
    return {"samples": counted, "here": "yes" if files else "no"}


def fetch_dataset(name: str, root: Path | None = None) -> None:
    """Bring the missing splits of a data set into the hub's own cache, with its bars."""
    if is_hub_set(name):
        hub_files(address_of(name), root)
        return
    source = DATASETS[name].source
    if isinstance(source, MemorySource):
        raise DataError(f"{name!r} is your own data in memory; there is nothing to fetch.")
    if isinstance(source, LocalSource):
        raise DataError(f"{name!r} is your own data in {source.where}; there is nothing to fetch.")
    if not isinstance(source, HubSource):
        raise DataError(f"{name!r} comes with the package {source.package!r}; there is nothing to fetch.")
    for split in DATASETS[name].rows:
        located(name, source, split, root)


def _row(name: str, split: str, spec: DatasetSpec, root: Path | None, verify: bool) -> dict[str, Any]:
    here, where = True, ""
    if isinstance(spec.source, HubSource):
        path = split_here(spec.source, split, root)
        here, where = path is not None, str(path or spec.source.address)
    elif isinstance(spec.source, LocalSource):
        where = spec.source.where
    elif isinstance(spec.source, MemorySource):
        where = "in memory"
    else:
        where = f"inside the package {spec.source.package}"
    state = "no" if not here else _verified(name, split, spec, root) if verify else "yes"
    return {
        "dataset": name,
        "split": split,
        "samples": spec.rows[split],
        "here": state,
        "where": where,
        "licence": spec.licence,
    }


def _verified(name: str, split: str, spec: DatasetSpec, root: Path | None) -> str:
    """Decode a split and compare it with its known size and digest."""
    try:
        samples = load_samples(name, split, root)
    except DataError as error:
        return f"damaged: {error}"
    if len(samples) != spec.rows[split]:
        return f"a subset: {len(samples):,} samples, all readable"
    if split not in spec.digests:
        return "all readable"
    return "verified" if samples.digest() == spec.digests[split] else "damaged: the content is not the published one"
