"""The folder that `flwr run` ships: a pyproject with the apps' names and every run-config key; no code."""

from __future__ import annotations

import json
from pathlib import Path

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


def write_app(folder: Path) -> Path:
    """Write the app folder; `flwr run FOLDER --run-config FILE.toml` overrides the keys it lists."""
    make_folder(folder)
    # JSON's numbers, texts and booleans are TOML's too.
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in defaults().items())
    write_text(folder / "pyproject.toml", HEAD.format(version=__version__) + keys)
    return folder
