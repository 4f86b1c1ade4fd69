"""Write requirements.lock: every package that the extras need, with its version and the SHA-256 of its file.

The packages are those that the installed ones ask for on this Python and platform, the versions those of
constraints.txt; pip looks their files up in whatever index it is configured for, and installs nothing. A version that
its authors have withdrawn is refused. Pins that a lock of the same Python and platform has already are kept: remove the
file to look all of them up again.

    make lock
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from audit import ROOT, Pin, closure, declared, entries, pinned
from packaging.utils import canonicalize_name

LOCK = ROOT / "requirements.lock"
PLATFORM = f"# Python {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
HEADER = f"""{PLATFORM}; made by `make lock` from constraints.txt.
# Install: pip install --require-hashes --requirement requirements.lock, then pip install --no-deps .
# The file of torch is its CPU build, which pip must be told where to find.
"""


def wanted() -> dict[str, str]:
    """Every package that is needed -> its version in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    names = sorted(closure(declared(project)))
    if free := [name for name in names if name not in versions]:
        sys.exit(f"constraints.txt has no version of {', '.join(free)}. Add the installed ones (pip freeze).")
    return {name: versions[name] for name in names}


def kept() -> dict[str, Pin]:
    """The pins that need not be looked up again."""
    text = LOCK.read_text(encoding="utf-8") if LOCK.is_file() else ""
    return entries(text) if text.startswith(PLATFORM) else {}


def looked_up(requirements: list[str]) -> list[dict[str, Any]]:
    """What pip would install for exact requirements, with the digest of each file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        options = ["--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *requirements], check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


def pins_of(packages: list[dict[str, Any]]) -> dict[str, Pin]:
    """Pins from pip's report; a local version such as 2.13.0+cpu is pinned by its public part, and by its hash."""
    found: dict[str, Pin] = {}
    for each in packages:
        name, version = canonicalize_name(each["metadata"]["name"]), each["metadata"]["version"].partition("+")[0]
        if each.get("is_yanked"):
            sys.exit(f"{name} {version} was withdrawn by its authors. Choose another version in constraints.txt.")
        found[name] = (version, (each["download_info"]["archive_info"]["hashes"]["sha256"],))
    return found


def lock_text(pins: dict[str, Pin]) -> str:
    """The lock file."""
    lines = []
    for name, (version, hashes) in sorted(pins.items()):
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in hashes)]) + "\n")
    return HEADER + "".join(lines)


def main() -> None:
    """Look up what is not locked yet and write all of it."""
    versions = wanted()
    known = {name: pin for name, pin in kept().items() if versions.get(name) == pin[0]}
    missing = [f"{name}=={version}" for name, version in versions.items() if name not in known]
    found = pins_of(looked_up(missing)) if missing else {}
    LOCK.write_text(lock_text({**known, **found}), encoding="utf-8")
    print(f"{LOCK.name}: {len(known)} packages kept, {len(found)} looked up")


if __name__ == "__main__":
    main()
