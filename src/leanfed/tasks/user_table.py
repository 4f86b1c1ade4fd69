"""A user's own Parquet file, from settings alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from leanfed.errors import SettingsError
from leanfed.records import Section
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.hub_files import data_root
from leanfed.tasks.user_data import add_parquet


class TableSettings(Section):
    """A Parquet file and what its columns are, as `leanfed.add_parquet` takes them."""

    file: str = Field(min_length=1)
    """The file, from the working folder or from the folder of data sets."""
    inputs: tuple[str, ...] = Field(min_length=1)
    """Numeric columns, columns of lists of one length, one column of encoded images, or one or two of texts."""
    label: str = "label"
    """The column to predict: words or whole numbers are classes, numbers with a fraction are predicted as such."""
    client: str | None = None
    """The column that says whose sample a row is, for task.partition.kind = "column"."""
    test: str | None = None
    """Another file for testing; left out: every fifth row of each client, else of each class."""
    normalise: Literal["none", "standard"] = "none"
    """Of numeric columns. standard: mean 0 and deviation 1 of each feature or channel over all training samples."""
    classes: int | None = Field(default=None, ge=2)
    """Classes from 0 to classes - 1; left out: those that occur."""
    size: int = Field(default=32, ge=1, le=4_096)
    """Of encoded images: they are brought to size x size pixels."""
    channels: Literal[1, 3] = 3
    """Of encoded images: grey or colour."""


_read: dict[str, TableSettings] = {}  # what settings have registered in this process


def add_table(name: str, table: TableSettings, root: Path | None = None) -> None:
    """Register the file under the name that settings give it, once."""
    if name in DATASETS:
        if _read.get(name) != table:
            raise SettingsError(
                f"task.dataset = {name!r} is another data set already, but task.table brings one of its own. Give it "
                "a name of its own."
            )
        return
    kept = table.model_dump(exclude={"file", "test"})
    test = None if table.test is None else _located(table.test, root)
    add_parquet(name, _located(table.file, root), test=test, **kept)
    _read[name] = table


def _located(file: str, root: Path | None) -> Path:
    """The file as named, or inside the folder of data sets."""
    inside = data_root(root) / file
    return inside if not Path(file).exists() and inside.exists() else Path(file)
