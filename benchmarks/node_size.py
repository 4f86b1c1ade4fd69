"""What a node's installation weighs, package by package, read off the packages that are installed here.

python -m benchmarks.node_size [OUT]
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from leanfed.files import write_json

NODE = Path(__file__).resolve().parents[1] / "release" / "node.txt"
ALONE = {"flwr"}  # installed on a node without what it asks for; what it needs is in NODE
NAME = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?")


def wanted(requirement: str, extras: set[str]) -> tuple[str, set[str]] | None:
    """(name, its extras) of a requirement that holds on this machine; None where it does not."""
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    if parsed.marker is not None and not any(parsed.marker.evaluate({"extra": one}) for one in extras | {""}):
        return None
    return parsed.name.lower().replace("_", "-"), set(parsed.extras)


def closure(requirements: list[str]) -> set[str]:
    """All packages that these need."""
    found: set[str] = set()
    left = [wanted(one, set()) for one in requirements]
    while left:
        one = left.pop()
        if one is None or one[0] in found:
            continue
        try:
            needs = distribution(one[0]).requires or []
        except PackageNotFoundError:
            continue
        found.add(one[0])
        left += [wanted(need, one[1]) for need in needs]
    return found


def megabytes(name: str) -> float:
    """Bytes of a package's files, compiled ones included where they are there."""
    package = distribution(name)
    paths = [Path(str(package.locate_file(file))) for file in package.files or []]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def measure() -> dict[str, Any]:
    node = [line for line in NODE.read_text().splitlines() if line and not line.startswith("#")]
    found = {"torch": closure(["torch"]), "node": closure(node) | ALONE, "whole": closure(["leanfed[flower]"])}
    rows = {name: {package: megabytes(package) for package in packages} for name, packages in found.items()}
    beyond = {package: size for package, size in rows["node"].items() if package not in rows["torch"]}
    largest = sorted(beyond.items(), key=lambda item: -item[1])[:8]
    return {
        **{f"{name}_mb": round(sum(sizes.values())) for name, sizes in rows.items()},
        "node_beyond_torch_mb": round(sum(beyond.values())),
        "largest_beyond_torch_mb": {package: round(size) for package, size in largest},
    }


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=1))
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), measured)
