"""A program of Flower's that is kept in memory, as one of a supervisor's children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leanfed.deployment.operations import warm_programs as warm
from leanfed.deployment.operations.supervise import Supervisor


@dataclass(frozen=True)
class WarmChild:
    """The process that holds a program, and the environment of the SuperExec that is to start it."""

    name: str
    folder: Path
    program: str
    wave: int = 0
    group: str = ""

    def start(self, supervisor: Supervisor, env: Mapping[str, str]) -> None:
        """Begin to load it."""
        (self.folder / warm.SOCKET).unlink(missing_ok=True)  # of a process that was killed
        command = warm.command(self.folder, self.program)
        supervisor.start(self.name, command, env, wave=self.wave, group=self.group)

    def wait(self, supervisor: Supervisor, env: Mapping[str, str], seconds: float) -> dict[str, str]:
        """Wait until it is loaded; the environment of the SuperExec that is to start it."""
        ready = (self.folder / warm.SOCKET).exists
        supervisor.wait_for(ready, what=self.name, seconds=seconds, group=self.group)
        return warm.first_in_path(self.folder, self.program, env)

    def forked(self, command: Sequence[str]) -> list[str]:
        """The command that has a program forked from this process, or, where it is gone, becomes the program."""
        name = Path(command[0]).name
        return [str(warm.prepare(self.folder, name) / name), *command[1:]]

    def without(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment of a SuperExec that starts the program itself, bound to the SuperExec's life."""
        (self.folder / warm.SOCKET).unlink(missing_ok=True)
        return warm.first_in_path(self.folder, self.program, env)
