"""Any data set of the hub by its address, with columns that are found or named; and some that are known by name."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pydantic import Field

from leanfed.errors import DataError, SettingsError
from leanfed.files import explained
from leanfed.records import Section
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.hub_files import PREFIX, hub_files
from leanfed.tasks.user_data import add_parquet, read_parquet

if TYPE_CHECKING:
    import polars

LABELS = ("label", "labels", "fine_label", "target", "class", "y")  # usual names, the first that is there
CLIENTS = ("client", "client_id", "user", "user_id", "writer_id", "subject", "subject_id", "subject id", "speaker_id")
TESTS = ("test", "validation", "valid")
LARGEST = 224  # pixels of a side of pictures whose size nobody says


class HubSettings(Section):
    """Which columns of a data set of the hub are what; what is left out is found by type and usual names."""

    inputs: tuple[str, ...] = ()
    """One column of pictures, one or two of texts, or columns of numbers or lists of one length; left out: the
    pictures, else the texts, else all numbers."""
    label: str | None = None
    """The column to predict."""
    client: str | None = None
    """The column that says whose sample a row is, for task.partition.kind = "column"."""
    train: str = "train"
    """The split to train on."""
    test: str | None = None
    """The split to test on; left out: test, else validation, else every fifth row of each client or class."""
    texts: Literal["tokens", "characters"] = "tokens"
    """tokens: texts for an encoder. characters: texts of one length as the numbers of their characters."""
    normalise: Literal["none", "standard"] = "none"
    """Of numbers, as in task.table."""
    classes: int | None = Field(default=None, ge=2)
    """Classes from 0 to classes - 1; left out: those that occur."""
    size: int | None = Field(default=None, ge=1, le=4_096)
    """Pictures are brought to size x size pixels; left out: the longer side of the first one, at most 224."""
    channels: Literal[1, 3] | None = None
    """Grey or colour; left out: as the first picture."""


class HubSet(NamedTuple):
    """A set of the hub that is known by name; its checksum is left open: it could not be had where this was written."""

    address: str
    settings: HubSettings
    rows: Mapping[str, int]  # split -> samples
    licence: str


HUB_SETS: Final[Mapping[str, HubSet]] = {
    "femnist": HubSet(
        "hub:flwrlabs/femnist",
        HubSettings(inputs=("image",), label="character", client="writer_id", size=28, channels=1),
        {"train": 814_277},
        "BSD 2-Clause",
    ),
    "shakespeare": HubSet(
        "hub:flwrlabs/shakespeare",
        HubSettings(inputs=("x",), label="y", client="character_id", texts="characters"),
        {"train": 4_226_158},
        "BSD 2-Clause",
    ),
    "uci-har": HubSet(
        "hub:codymlewis/HAR",
        HubSettings(inputs=("features",), label="labels", client="subject id"),
        {"train": 7_352, "test": 2_947},
        "see the data set's page",
    ),
}
_read: dict[str, HubSettings] = {}  # what settings have registered in this process


def is_hub_set(name: str) -> bool:
    """Whether a data set is an address on the hub, or known by name there."""
    return name.startswith(PREFIX) or name in HUB_SETS


def address_of(name: str) -> str:
    """The address on the hub of a data set."""
    return HUB_SETS[name].address if name in HUB_SETS else name


def add_hub_set(name: str, given: HubSettings | None = None, root: Path | None = None) -> None:
    """Register a data set of the hub under its address or name, once."""
    wanted = given or (HUB_SETS[name].settings if name in HUB_SETS else HubSettings())
    if name in DATASETS:
        if _read.get(name) != wanted:
            raise SettingsError(f"{name!r} was read with another task.hub in this process. Start a new one.")
        return
    files = hub_files(address_of(name), root)
    if wanted.train not in files:
        raise DataError(f"{name!r} has no split {wanted.train!r}; it has {', '.join(files)}. Set task.hub.train.")
    test = wanted.test or next((split for split in TESTS if split in files), None)
    if test is not None and test not in files:
        raise DataError(f"{name!r} has no split {test!r}; it has {', '.join(files)}. Set task.hub.test.")
    with explained(files[wanted.train][0], "read"):
        table = read_parquet(files[wanted.train][:1], None).head(1)
    columns, label, client = _columns(name, table, wanted)
    size, channels = _picture_form(table[columns[0]], wanted)
    add_parquet(
        name,
        files[wanted.train],
        inputs=columns,
        label=label,
        client=client,
        test=None if test in (None, wanted.train) else files[test],
        size=size,
        channels=channels,
        normalise=wanted.normalise,
        classes=wanted.classes,
        characters=wanted.texts == "characters",
    )
    _read[name] = wanted


def _columns(name: str, table: polars.DataFrame, wanted: HubSettings) -> tuple[tuple[str, ...], str, str | None]:
    """The columns of inputs, of labels and of users: as named, else by type and usual names."""
    import polars as pl

    label = wanted.label or next((usual for usual in LABELS if usual in table.columns), None)
    if label is None:
        raise DataError(
            f"{name!r} does not say which column to predict; it has {', '.join(table.columns)}. Set task.hub.label."
        )
    client = wanted.client or next((usual for usual in CLIENTS if usual in table.columns), None)
    left = {column: kind for column, kind in table.schema.items() if column not in (label, client)}
    pictures = [c for c, kind in left.items() if isinstance(kind, pl.Struct) and "bytes" in kind.to_schema()]
    texts = [column for column, kind in left.items() if kind == pl.String]
    numbers = [column for column, kind in left.items() if kind.is_numeric() or isinstance(kind, pl.List | pl.Array)]
    found = tuple(wanted.inputs or pictures[:1] or texts or numbers)
    if not found:
        raise DataError(
            f"{name!r} has no column of pictures, texts or numbers beside {label!r}; it has "
            f"{', '.join(table.columns)}. Set task.hub.inputs."
        )
    return found, label, client


def _picture_form(column: polars.Series, wanted: HubSettings) -> tuple[int, int]:
    """(side, channels) of pictures, from the first one where settings do not say; of other columns nobody asks."""
    import polars as pl

    if not isinstance(column.dtype, pl.Struct) or (wanted.size and wanted.channels):
        return wanted.size or 32, wanted.channels or 3
    from PIL import Image, UnidentifiedImageError

    try:
        first = Image.open(io.BytesIO(column.struct.field("bytes")[0]))
    except (UnidentifiedImageError, OSError, TypeError):  # said when it is decoded, with its row
        return wanted.size or 32, wanted.channels or 3
    grey = first.mode in ("1", "L", "I;16")
    return wanted.size or min(LARGEST, max(first.size)), wanted.channels or (1 if grey else 3)
