"""The lock file is whole and exact; the bill of materials follows from it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "release"))

import audit  # noqa: E402
import lock  # noqa: E402
import sbom  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
DIGEST = "0" * 64
pytestmark = pytest.mark.skipif(not LOCK.startswith(lock.PLATFORM), reason="the lock is for another Python or system")


def test_the_lock_is_whole_exact_and_hashed() -> None:
    assert list(audit.troubles(LOCK, PROJECT, CONSTRAINTS)) == []


def test_the_lock_names_no_place_to_fetch_from() -> None:
    assert not re.search(r"://|--index|--find-links|@ ", LOCK)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"numpy>=2 \\\n    --hash=sha256:{DIGEST}\n", "not an exact pin"),
        ("numpy==2.0\n", "not an exact pin"),
        ("numpy==2.0 \\\n    --hash=md5:12\n", "not an exact pin"),
        (
            f"numpy==2.0 \\\n    --hash=sha256:{DIGEST}\nNumPy==2.0 \\\n    --hash=sha256:{DIGEST}\n",
            "pinned twice: numpy",
        ),
    ],
)
def test_a_line_without_version_or_hash_is_found(line: str, words: str) -> None:
    assert words in next(audit.troubles(line, PROJECT, CONSTRAINTS))


def test_a_package_that_is_missing_or_of_another_version_is_found() -> None:
    without = re.sub(r"^numpy==.*\n.*\n", "", LOCK, flags=re.MULTILINE)
    assert "numpy is needed, but not locked" in list(audit.troubles(without, PROJECT, CONSTRAINTS))
    old = re.sub(r"^numpy==[\d.]+", "numpy==1.0", LOCK, flags=re.MULTILINE)
    found = "\n".join(audit.troubles(old, PROJECT, CONSTRAINTS))
    assert "numpy is locked at 1.0, but pyproject.toml asks for >=2.0" in found
    assert "but constraints.txt has" in found
    assert "is installed" in found


def test_a_lock_is_read_back_and_holds_public_versions() -> None:
    def said(name: str, version: str) -> dict[str, object]:
        info = {"archive_info": {"hashes": {"sha256": DIGEST}}}
        return {"metadata": {"name": name, "version": version}, "download_info": info}

    pins = lock.pins_of([said("Torch", "2.13.0+cpu"), said("ab_c", "1.0")])
    assert audit.entries(lock.lock_text(pins)) == {"torch": ("2.13.0", (DIGEST,)), "ab-c": ("1.0", (DIGEST,))}
    with pytest.raises(SystemExit, match="withdrawn"):
        lock.pins_of([{**said("ab", "1"), "is_yanked": True}])


def test_the_bill_lists_every_locked_package_with_its_hash_and_what_it_needs() -> None:
    bill = sbom.bill(PROJECT, LOCK, 0)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    pins = audit.entries(LOCK)
    assert {part["name"]: part["version"] for part in bill["components"]} == {
        name: pin[0] for name, pin in pins.items()
    }
    assert all(len(part["hashes"][0]["content"]) == 64 for part in bill["components"])
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    known = {part["bom-ref"] for part in bill["components"]} | {"leanfed"}
    assert set(needs) == known
    assert all(set(inner) <= known for inner in needs.values())
    assert any(ref.startswith("pkg:pypi/torch@") for ref in needs["leanfed"])
    assert any(ref.startswith("pkg:pypi/llvmlite@") for ref in needs[f"pkg:pypi/numba@{pins['numba'][0]}"])
    assert bill == sbom.bill(PROJECT, LOCK, 0)
