"""The deployment folder: where the keys, the registry of nodes, the logs and the runs of one fleet lie.

FLEET/
  fleet.json          name, hosts and ports of the server
  nodes.json          the registry: which keys may join, until when, and which were revoked
  audit.jsonl         the audit log
  ca/                 ca.crt, ca.key (needed only to issue: may be kept elsewhere)
  server/             server.crt, server.key, two secrets, the signed app (app.fab, app.json), running.json, run.json,
                      bindings.json, state.db, flwr/, logs/
  nodes/NAME/         one bundle per node, to be copied to its device: node.json, node.key, ca.crt, app.json,
                      superexec.secret; there also its store/, flwr/, logs/, state.json and audit.jsonl
  runs/               run folders
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from leanfed.deployment.door.audit import Audit
from leanfed.errors import InputError
from leanfed.files import explained, read_json, write_json

FLEET_PORT = 9092  # where nodes call
CONTROL_PORT = 9093  # SuperLink itself, on loopback only
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class FleetFolder:
    """A deployment folder on the server's machine."""

    path: Path
    name: str
    hosts: tuple[str, ...]
    port: int = FLEET_PORT
    control_port: int = CONTROL_PORT

    @classmethod
    def open(cls, path: Path) -> FleetFolder:
        """The fleet in a folder that `leanfed deploy keys` made."""
        file = path / "fleet.json"
        if not file.is_file():
            raise InputError(f"{path} holds no fleet (no fleet.json). Make one with: leanfed deploy keys {path}")
        values = read_json(file)
        try:
            known = {name: values[name] for name in ("name", "port", "control_port")}
            return cls(path.resolve(), hosts=tuple(values["hosts"]), **known)
        except KeyError as error:
            raise InputError(f"{file} lacks {error}. Restore it or make the fleet anew.") from error

    def save(self) -> None:
        """Write fleet.json."""
        values = asdict(self) | {"hosts": list(self.hosts)}
        del values["path"]
        write_json(self.path / "fleet.json", values)

    @property
    def ca(self) -> Path:
        """The folder of the certificate authority."""
        return self.path / "ca"

    @property
    def server(self) -> Path:
        """The folder of the server: certificate, key, secret, state, logs."""
        return self.path / "server"

    @property
    def registry(self) -> Path:
        """The file that says which keys may join."""
        return self.path / "nodes.json"

    @property
    def running(self) -> Path:
        """What the running server tells `deploy run` and `deploy status`."""
        return self.server / "running.json"

    @property
    def bindings(self) -> Path:
        """Which of SuperLink's node numbers is whose key: written by the server, read by runs."""
        return self.server / "bindings.json"

    @property
    def audit(self) -> Audit:
        """The fleet's audit log."""
        return Audit(self.path / "audit.jsonl")

    def bundle(self, name: str) -> Path:
        """The folder of one node, to be copied to its device."""
        return self.path / "nodes" / name


@dataclass(frozen=True)
class Bundle:
    """A node's folder on its own device."""

    path: Path
    name: str
    client_id: int
    server: str

    @classmethod
    def open(cls, path: Path) -> Bundle:
        """The bundle in a folder that `leanfed deploy keys` made."""
        file = path / "node.json"
        if not file.is_file():
            raise InputError(
                f"{path} is no node's folder (no node.json). "
                "`leanfed deploy keys FLEET --add NAME` makes FLEET/nodes/NAME."
            )
        values = read_json(file)
        try:
            return cls(path.resolve(), str(values["name"]), int(values["client_id"]), str(values["server"]))
        except KeyError as error:
            raise InputError(f"{file} lacks {error}. Copy the folder from the server again.") from error

    def save(self) -> None:
        """Write node.json."""
        values = asdict(self)
        del values["path"]
        write_json(self.path / "node.json", values)

    @property
    def audit(self) -> Audit:
        """The node's own audit log."""
        return Audit(self.path / "audit.jsonl")


def checked_name(name: str) -> str:
    """A node's name that is safe as a folder and in a log."""
    if not NAME.fullmatch(name) or name == "server":
        raise InputError(
            f"{name!r} cannot name a node. Use up to 63 letters, digits, dots, dashes or underscores, "
            "beginning with a letter or digit, and not 'server'."
        )
    return name


def private_folder(path: Path) -> Path:
    """A folder that only its owner can enter."""
    with explained(path, "create folder"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    return path


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file that never had wider permissions than `mode`; an existing one is replaced in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with explained(path):
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            os.fchmod(descriptor, mode)
            os.write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(path)


def check_private(path: Path) -> Path:
    """The path of a secret that exists and that no other user can read."""
    if not path.is_file():
        raise InputError(
            f"{path} is missing. `leanfed deploy keys` makes it; a node's folder is copied from the server."
        )
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise InputError(f"{path} is open to other users (mode {mode:04o}). Close it with: chmod 600 {path}")
    return path
