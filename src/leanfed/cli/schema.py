"""The verb `leanfed schema`."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON schema of a settings file, for editors and tools.

    Example: leanfed schema > leanfed.schema.json
    """
    from leanfed.runs.settings import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
