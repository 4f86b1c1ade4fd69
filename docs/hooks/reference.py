"""What the reference pages show is read off the code when the site is built; none of it is committed.

A page says where: `<!-- made: settings -->` stands for every key of a settings file (from the JSON schema), `commands`
for every verb (from the command line itself), `columns` for the tables of a run (from `leanfed/quantities.py`), `api`
for the public names of `import leanfed` (mkdocstrings reads their docstrings).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints

import typer.main

import leanfed
from leanfed import quantities
from leanfed.cli import app
from leanfed.results import TABLES
from leanfed.runs.settings import json_schema

MARK = re.compile(r"<!-- made: (\w+) -->")
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "minLength": "length ≥"}
TABLE_WORDS = {
    "rounds": "One row for each round.",
    "clients": "One row for each client that took part in a round.",
    "evaluations": "One row for each client and evaluation.",
}
RULES = {"sum": "sum", "max": "largest", "mean": "mean", "last": "last value", "count": "count", "none": ""}


def cell(text: object) -> str:
    """Text that cannot break a table: one line, pipes and angle brackets escaped outside code."""
    line = " ".join(str(text).split()).replace("|", "\\|")
    return re.sub(r"<(?=\w)", "&lt;", line)


def table(head: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines)


def type_of(key: dict[str, Any]) -> str:
    """What may stand for a key: choices where they are counted, else the type."""
    if "const" in key:
        return f"`{json.dumps(key['const'])}`"
    if "enum" in key:
        return ", ".join("none" if choice is None else f"`{json.dumps(choice)}`" for choice in key["enum"])
    if "anyOf" in key:
        return " or ".join(dict.fromkeys(type_of(choice) for choice in key["anyOf"]))
    if key.get("type") == "array":
        if "prefixItems" in key:
            return f"[{', '.join(type_of(item) for item in key['prefixItems'])}]"
        return f"list of {type_of(key.get('items', {}))}"
    return {"null": "none", "object": "table"}.get(key.get("type", ""), key.get("type", "any"))


def limits_of(key: dict[str, Any]) -> str:
    """The bounds of a key."""
    found = [
        f"{sign} {key[name]:,}" if abs(key[name]) < 1e9 else f"{sign} {key[name]:.3g}"
        for name, sign in LIMITS.items()
        if name in key
    ]
    return ", ".join(dict.fromkeys(found + [limits_of(choice) for choice in key.get("anyOf", []) if limits_of(choice)]))


def default_of(key: dict[str, Any]) -> str:
    """The value of a key that is left out, as TOML has it."""
    if "default" not in key:
        return ""
    return "none" if key["default"] is None else f"`{json.dumps(key['default'])}`"


def words_of(definition: dict[str, Any]) -> str:
    """A section's description without its doctests."""
    return "\n".join(definition.get("description", "").partition(">>>")[0].splitlines()).strip()


def keys(definition: dict[str, Any]) -> str:
    """The keys of a section, without the sections inside it and without the name that chose it."""
    head = ("key", "type", "default", "limits", "meaning")
    plain = {name: key for name, key in definition["properties"].items() if not references(key) and "const" not in key}
    rows = ((f"`{n}`", type_of(k), default_of(k), limits_of(k), k.get("description", "")) for n, k in plain.items())
    return table(head, rows) if plain else ""


def references(key: dict[str, Any]) -> list[str]:
    """The section that a key stands for, or those among which its `name` chooses; none for a plain value."""
    found = [key.get("$ref", ""), *(choice.get("$ref", "") for choice in key.get("anyOf", []))]
    return [reference.rpartition("/")[2] for reference in found if reference]


def sections(known: dict[str, Any], path: str, name: str, seen: set[str]) -> Iterator[str]:
    """A section and, after it, every section inside it; one that several methods share is shown once."""
    chosen = name.partition("-")[2]
    title = f'{path}.name = "{chosen}"' if chosen else f"[{path}]"
    if title in seen:
        return
    seen.add(title)
    level = "###" if chosen or "." in path else "##"
    yield from (f"{level} `{title}`", words_of(known[name]), keys(known[name]))
    for key, value in known[name]["properties"].items():
        for inner in references(value):
            yield from sections(known, f"{path}.{key}", inner, seen)


def settings() -> str:
    """Every section and key of a settings file."""
    schema = json_schema()
    parts = ["## Top level", keys(schema)]
    for key, value in schema["properties"].items():
        found = references(value)
        if len(found) > 1:
            parts += [f"## `[{key}]`", value.get("description", "")]
        seen = set[str]()
        for name in found:
            parts += sections(schema["$defs"], key, name, seen)
    return "\n\n".join(part for part in parts if part)


def verbs(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Full name and command of everything below a group, in the order of --help."""
    for short, inner in getattr(command, "commands", {}).items():
        yield f"{name} {short}", inner
        yield from verbs(inner, f"{name} {short}")


def help_of(command: Any, parameter: Any) -> str:
    """What a parameter means; that of an argument is read off its annotation, since the newest click drops it."""
    if parameter.help:
        return str(parameter.help)
    hint = get_type_hints(command.callback, include_extras=True).get(parameter.name)
    said = [getattr(extra, "help", None) for extra in getattr(hint, "__metadata__", ())]
    return next((text for text in said if text), "")


def options_of(command: Any) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of every argument and option."""
    context = typer.Context(command)
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        argument = one.param_type_name == "argument"
        names = one.make_metavar(context) if argument else ", ".join(f"`{n}`" for n in (*one.opts, *one.secondary_opts))
        kind = "switch" if getattr(one, "is_flag", False) else one.type.name.replace(" range", "")
        bounds = {"≥": getattr(one.type, "min", None), "≤": getattr(one.type, "max", None)}
        kind += "".join(f" {sign} {bound}" for sign, bound in bounds.items() if bound is not None)
        kind += ", repeated" if getattr(one, "multiple", False) or one.nargs == -1 else ""
        silent = one.default is None or callable(one.default) or one.default is False or one.default in ([], ())
        said = one.show_default if isinstance(getattr(one, "show_default", None), str) else ""
        default = "required" if one.required else said if silent else f"`{one.default}`"
        yield f"`{names}`" if argument else names, kind, default, help_of(command, one)


def commands() -> str:
    """Every verb with its help, arguments and options."""
    parts = []
    for name, command in verbs(typer.main.get_command(app), "leanfed"):
        if command.hidden:
            continue
        text = "\n\n".join(re.split(r"\n\s*\n", command.help or ""))
        text = re.sub(r"^Example: (.*)$", r"Example: `\1`", text, flags=re.MULTILINE)
        parts.append(f"## `{name}`\n\n{text}")
        rows = list(options_of(command))
        if rows and not getattr(command, "commands", None):
            parts.append(table(("argument or option", "type", "default", "meaning"), iter(rows)))
    return "\n\n".join(parts)


def columns() -> str:
    """Every column of every table of a run."""
    parts = []
    for name in TABLES:
        found = [one for one in quantities.SCHEMA.values() if name in one.tables]
        rows = (
            (
                f"`{one.name}`",
                {int: "whole number", float: "number"}[one.type],
                one.unit,
                one.label,
                RULES[one.over_clients] if name == "rounds" else "",
                RULES[one.over_rounds] if name != "evaluations" else "",
                "yes" if one.in_summary and name == "rounds" else "",
                one.since,
            )
            for one in found
        )
        head = ("column", "type", "unit", "meaning", "over clients", "over rounds", "in summary", "since")
        parts.append(f"### `{name}.parquet`\n\n{TABLE_WORDS[name]}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def api() -> str:
    """A block of mkdocstrings for each public name of the package."""
    return "\n\n".join(
        f"::: {module}.{name}\n    options:\n      heading: leanfed.{name}"
        for name, module in sorted(leanfed._PUBLIC.items(), key=lambda item: (item[0].lower(), item[0]))
    )


MADE: dict[str, Callable[[], str]] = {one.__name__: one for one in (settings, commands, columns, api)}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what is read off the code in the place of its mark."""
    return MARK.sub(lambda match: MADE[match[1]](), markdown)
