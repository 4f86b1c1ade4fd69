"""The last states of a run, kept beside its checkpoint, and the way back to one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from leanfed.errors import InputError
from leanfed.files import explained, make_folder
from leanfed.manifest import BEFORE, MANIFEST, read_manifest

KEPT = 5


class GoodStates:
    """Copies of the checkpoint after each of the last rounds, in a folder per round."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.folder = checkpoint.parent / "good"

    def rounds(self) -> list[int]:
        """The rounds that can be gone back to, oldest first."""
        found = [path for path in self.folder.glob("round-*") if (path / MANIFEST).is_file()]
        return sorted(int(path.name.removeprefix("round-")) for path in found)

    def keep(self) -> None:
        """Copy the checkpoint that was just saved; the oldest copies go."""
        manifest = read_manifest(self.checkpoint / MANIFEST)
        target, partial = self._at(manifest["round"]), self.folder / "partial"
        with explained(target):
            shutil.rmtree(partial, ignore_errors=True)
            make_folder(partial)
            for name in (*manifest["sha256"], MANIFEST):
                shutil.copy2(self.checkpoint / name, partial / name)
            shutil.rmtree(target, ignore_errors=True)
            partial.replace(target)
            for number in self.rounds()[:-KEPT]:
                shutil.rmtree(self._at(number), ignore_errors=True)

    def go_back(self, steps: int) -> int:
        """Put the state of `steps` rounds ago in the place of the checkpoint; returns its round."""
        rounds = self.rounds()
        if not 0 < steps < len(rounds):
            raise InputError(
                f"Cannot go back {steps} rounds: the states kept are those after rounds "
                f"{', '.join(str(number) for number in rounds) or 'none'}. Allowed: 1 to {max(len(rounds) - 1, 0)}."
            )
        number = rounds[-1 - steps]
        source = self._at(number)
        with explained(self.checkpoint):
            for name in read_manifest(source / MANIFEST)["sha256"]:
                (self.checkpoint / name).unlink(missing_ok=True)  # a copy may share its name with a later file
                shutil.copy2(source / name, self.checkpoint / name)
            (self.checkpoint / BEFORE).unlink(missing_ok=True)
            partial = self.checkpoint / f".{MANIFEST}.back"
            shutil.copy2(source / MANIFEST, partial)
            partial.replace(self.checkpoint / MANIFEST)
            for later in rounds[-steps:]:
                shutil.rmtree(self._at(later), ignore_errors=True)
        return number

    def _at(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}"
