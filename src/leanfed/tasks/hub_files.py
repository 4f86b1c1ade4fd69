"""Parquet files of any data set of the hub: from the folder of data sets, the hub's own cache, or the network.

What the network gives is kept in the hub's cache (HF_HOME), where huggingface_hub looks after lengths and part files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leanfed.errors import DataError, LeanfedError, MissingExtraError, SettingsError, first_line, nearest
from leanfed.tasks.datasets import HubSource

PREFIX = "hub:"
ADDRESS = re.compile(r"hub:(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?")
CONVERTED = "refs/convert/parquet"  # where the hub keeps its own Parquet copy of sets in other formats
SHARD = re.compile(r"(?P<split>.*?)(-\d+(-of-\d+)?)?")  # train-00000-of-00002
PATIENCE_S = 20  # for the hub to say which files a set has
PLAIN = ("", "data", "default")  # folders that name no configuration
Splits = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Address:
    """`hub:owner/name`, with a configuration `hub:owner/name/config`, at a revision `hub:owner/name@revision`."""

    repository: str
    config: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, name: str) -> Address:
        """Read an address.

        >>> Address.parse("hub:nyu-mll/glue/mrpc@main")
        Address(repository='nyu-mll/glue', config='mrpc', revision='main')
        """
        found = ADDRESS.fullmatch(name)
        if found is None:
            raise SettingsError(
                f"{name!r} is not an address on the hub. Write hub:owner/name, hub:owner/name/configuration or "
                "hub:owner/name@revision."
            )
        return cls(found["repository"], found["config"], found["revision"])

    @property
    def folder(self) -> str:
        """Where its files are kept in the folder of data sets."""
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def data_root(given: Path | None = None) -> Path:
    """The folder of data sets: as given, else LEANFED_DATA, else the user's own data folder."""
    if given is not None:
        return given
    if named := os.environ.get("LEANFED_DATA"):
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "leanfed"


def located(name: str, source: HubSource, split: str, root: Path | None = None) -> tuple[Path, ...]:
    """The files of a split of a data set that is known by name; refused with where they were looked for."""
    path = data_root(root) / source.path(split)
    if path.is_file():
        return (path,)
    try:
        found = hub_files(source.address, root).get(split)
        why = f"{source.address} has no such split."
    except LeanfedError as error:
        found, why = None, str(error)
    if not found:
        raise DataError(
            f"The {split} split of {name!r} is missing: looked for {path}. Set LEANFED_DATA (or --data-dir) to a folder"
            f" that holds it, or run `leanfed data --fetch {name}` where there is a network. {why}"
        )
    return found


def split_here(source: HubSource, split: str, root: Path | None = None) -> Path | None:
    """The first file of a split that is on this machine already, without asking the hub."""
    path = data_root(root) / source.path(split)
    return path if path.is_file() else next(iter(files_here(source.address, root).get(split, ())), None)


def hub_files(name: str, root: Path | None = None) -> dict[str, tuple[Path, ...]]:
    """Split -> its files, in order: those in the folder of data sets if there are any, else the hub's."""
    address = Address.parse(name)
    folder = data_root(root) / address.folder
    return _inside(folder, address) or _from_hub(name, address, folder)


def files_here(name: str, root: Path | None = None) -> dict[str, tuple[Path, ...]]:
    """The files that are on this machine already, without asking the hub; empty where there are none."""
    address = Address.parse(name)
    folder = data_root(root) / address.folder
    found = _inside(folder, address)
    return found or (_cached(_library(), address) if find_spec("huggingface_hub") else {})


def _inside(folder: Path, address: Address) -> dict[str, tuple[Path, ...]]:
    """The files of a folder by split."""
    listed = [file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet")]
    found = splits_of(listed, address) if listed else {}
    return {split: tuple(folder / file for file in files) for split, files in found.items()}


def splits_of(files: Iterable[str], address: Address) -> Splits:
    """Split -> files of the asked configuration; of the only one, or `default`, if none is asked for.

    >>> splits_of(["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"], Address("a/b"))
    {'test': ('data/test-00000-of-00001.parquet',), 'train': ('data/train-00000-of-00001.parquet',)}
    >>> list(splits_of(["mrpc/train/0000.parquet", "cola/train/0000.parquet"], Address("a/b", "cola")).values())
    [('cola/train/0000.parquet',)]
    """
    known: dict[str, dict[str, tuple[str, ...]]] = {}
    for file in sorted(files):
        *folders, last = file.removesuffix(".parquet").split("/")
        shard = SHARD.fullmatch(last)
        split = folders.pop() if last.isdecimal() and folders else shard["split"] if shard else last
        config = next((part for part in reversed(folders) if part not in PLAIN), "default")
        splits = known.setdefault(config, {})
        splits[split] = (*splits.get(split, ()), file)
    chosen = address.config or (next(iter(known)) if len(known) == 1 else "default")
    if chosen not in known:
        why = f"{PREFIX}{address.repository} has {len(known)} configurations"
        if address.config:
            why = f"{PREFIX}{address.repository} has no configuration {address.config!r}"
        raise DataError(f"{why}: {nearest(chosen, list(known))} Name one: {PREFIX}{address.repository}/CONFIGURATION.")
    return known[chosen]


def _from_hub(name: str, address: Address, folder: Path) -> dict[str, tuple[Path, ...]]:
    """Files from the hub, kept in its own cache (HF_HOME); HF_ENDPOINT names a mirror, HF_TOKEN who asks."""
    hub = _library()
    try:
        api = hub_api()
        files, revision = _listed(api, address)
        found = splits_of(files, address)
        asked = {"repo_type": "dataset", "revision": revision, "endpoint": api.endpoint}
        return {
            split: tuple(Path(hub.hf_hub_download(address.repository, file, **asked)) for file in parts)
            for split, parts in found.items()
        }
    except LeanfedError:
        raise
    except Exception as error:  # of httpx, of the operating system, of the hub: they have no common parent
        if cached := _cached(hub, address):
            return cached
        reason = first_line(error)
        raise DataError(
            f"{name!r} is neither in {folder} nor in the hub's cache, and the hub does not give it ({reason}). Check "
            "the name and the network (HF_TOKEN for closed sets, HF_ENDPOINT for a mirror), or copy its files there."
        ) from error


def hub_api() -> Any:
    """What asks the hub; an error where the user has said that there is no network."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        raise OSError("HF_HUB_OFFLINE is set")
    return _library().HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


def _listed(api: Any, address: Address) -> tuple[list[str], str | None]:
    """The Parquet files of a set and the revision that has them: as asked, or the hub's own converted copy."""
    for revision in (address.revision, CONVERTED):
        # One question with a time limit: the hub's own listing of a tree tries five times for half a minute.
        told = api.dataset_info(address.repository, revision=revision, timeout=PATIENCE_S)
        files = [sibling.rfilename for sibling in told.siblings or ()]
        if parquet := [file for file in files if file.endswith(".parquet")]:
            return parquet, revision
        if address.revision is not None:
            break
    raise DataError(
        f"{PREFIX}{address.repository} has no Parquet files at {address.revision or 'its newest revision'}. Convert "
        "it, or bring it by leanfed.add_arrays in a file of your own (--import)."
    )


def _cached(hub: Any, address: Address) -> dict[str, tuple[Path, ...]]:
    """What an earlier run has left in the hub's cache."""
    for revision in (address.revision, CONVERTED):
        try:
            folder = Path(
                hub.snapshot_download(address.repository, repo_type="dataset", revision=revision, local_files_only=True)
            )
        except Exception:  # nothing is cached; the caller says why the hub could not be asked
            continue
        if found := _inside(folder, address):
            return found
    return {}


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(
            "Data sets of the hub need huggingface_hub, which is not installed. Run: pip install 'leanfed[hub]'"
        ) from error
    return huggingface_hub
