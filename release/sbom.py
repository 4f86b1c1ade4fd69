"""Write the bill of materials of a release: CycloneDX 1.6 in JSON, from requirements.lock and the installed metadata.

The same lock and version give the same bytes; SOURCE_DATE_EPOCH (seconds) dates it.

    make sbom
"""

from __future__ import annotations

import json
import os
import sys
import time
import tomllib
import uuid
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from audit import ROOT, Pin, closure, declared, entries, needed
from packaging.utils import canonicalize_name

EPOCH = 1_580_601_600  # 2020-02-02: the date that hatchling gives to files, too


def bill(project: dict[str, Any], lock: str, date_s: int) -> dict[str, Any]:
    """The bill of materials as JSON values."""
    pins = entries(lock)
    root = {"type": "library", "bom-ref": "leanfed", "name": "leanfed", "version": project["version"]}
    licence = [{"license": {"id": project["license"]}}]
    reached = closure(declared(project))
    depends = {"leanfed": sorted({canonicalize_name(one.name) for one in declared(project)} & pins.keys())}
    for name in sorted(pins):
        depends[reference(name, pins)] = edges(name, reached.get(name, set()), pins)
    depends["leanfed"] = [reference(name, pins) for name in depends["leanfed"]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, project['version'] + lock)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date_s)),
            "component": {**root, "licenses": licence},
        },
        "components": [component(name, pins) for name in sorted(pins)],
        "dependencies": [{"ref": ref, "dependsOn": inner} for ref, inner in depends.items()],
    }


def reference(name: str, pins: dict[str, Pin]) -> str:
    """The package URL of a locked package."""
    return f"pkg:pypi/{name}@{pins[name][0]}"


def component(name: str, pins: dict[str, Pin]) -> dict[str, Any]:
    """One locked package."""
    version, digests = pins[name]
    found = {"type": "library", "bom-ref": reference(name, pins), "name": name, "version": version}
    hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
    whole = {**found, "purl": reference(name, pins), "hashes": hashes}
    words = licence_of(name)
    return {**whole, "licenses": [{"license": {"name": words}}]} if words else whole


def licence_of(name: str) -> str | None:
    """What an installed package says of its licence, in one line."""
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return None
    words = told.get("License-Expression") or told.get("License") or ""
    return words.strip().splitlines()[0][:100] if words.strip() else None


def edges(name: str, extras: set[str], pins: dict[str, Pin]) -> list[str]:
    """The locked packages that one needs."""
    try:
        inner = {canonicalize_name(one.name) for one in needed(name, extras)}
    except PackageNotFoundError:
        return []
    return [reference(each, pins) for each in sorted(inner & pins.keys())]


def main() -> None:
    """Write the bill beside the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    date_s = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    found = bill(project, (ROOT / "requirements.lock").read_text(encoding="utf-8"), date_s)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / f"leanfed-{project['version']}.cdx.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{out}: {len(found['components'])} components")


if __name__ == "__main__":
    main()
