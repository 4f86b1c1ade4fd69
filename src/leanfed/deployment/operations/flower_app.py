"""The folder that `flwr run` ships: a pyproject with the apps' names and every run-config key; no code."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from leanfed import __version__
from leanfed.deployment.learning.config import defaults
from leanfed.files import make_folder, write_text

HEAD = """[project]
name = "leanfed-app"
version = "{version}"
description = "leanfed on Flower: both apps are in the installed package"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "leanfed"

[tool.flwr.app.components]
serverapp = "leanfed.deployment.learning.server_app:app"
clientapp = "leanfed.deployment.learning.client_app:app"

[tool.flwr.app.config]
"""


def archive() -> bytes:
    """The app as Flower ships it; the same bytes on every machine with this version."""
    from flwr.cli.build import build_fab_from_disk

    with TemporaryDirectory(prefix="leanfed-app-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # flwr 1.41.0 calls pathspec by an old name
        found: bytes = build_fab_from_disk(write_app(Path(folder)))
    return found


def write_app(folder: Path) -> Path:
    """Write the app folder; `flwr run FOLDER --run-config FILE.toml` overrides the keys it lists."""
    make_folder(folder)
    # JSON's numbers, texts and booleans are TOML's too.
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in defaults().items())
    write_text(folder / "pyproject.toml", HEAD.format(version=__version__) + keys)
    return folder
