"""The command lines of Flower's programs, version 1.41.0: TLS, node keys, process isolation and secrets by default."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from leanfed import interpreter
from leanfed.deployment.operations.folder import Bundle, FleetFolder, check_private
from leanfed.deployment.operations.keys import address
from leanfed.deployment.operations.release import RELEASE
from leanfed.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
Value = bool | int | float | str
OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # seconds between a node's looks for messages; 1 as shipped


def environment(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of Flower's programs: its files in `home`, no telemetry, this installation's programs first."""
    base = os.environ if base is None else base
    here = str(Path(sys.executable).parent)
    direct = ",".join(filter(None, [base.get("NO_PROXY") or base.get("no_proxy"), *LOOPBACK]))
    return {
        **interpreter.environment(base),
        **OFF,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join([here, base.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def program(name: str) -> str:
    """The path of one of Flower's programs, beside the Python that runs us."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise InputError(f"{name} is not beside {sys.executable}. Install it with: pip install 'leanfed[flower]'")
    return str(path)


def superlink(fleet: FleetFolder, *, insecure: bool = False) -> list[str]:
    """SuperLink on loopback: fleet, control and runtime APIs on one port that no other machine reaches."""
    folder = fleet.server
    secure = [
        *("--ssl-ca-certfile", str(fleet.ca / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")),
        *("--ssl-keyfile", str(check_private(folder / "server.key")), "--enable-supernode-auth"),
    ]
    guard = interpreter.command("leanfed.deployment.operations.superlink")
    return [
        *(*guard, str(check_private(folder / "control.secret")), str(fleet.audit.path)),
        *("--host", "127.0.0.1", "--port", str(fleet.control_port)),
        *(["--insecure"] if insecure else secure),
        *("--isolation", "process", "--superexec-auth-secret-file", str(check_private(folder / "superexec.secret"))),
        *("--database", str(folder / "state.db"), "--disable-runtime-dependency-installation"),
    ]


def server_superexec(fleet: FleetFolder, *, insecure: bool = False) -> list[str]:
    """The SuperExec that starts ServerApps."""
    trust = ["--insecure"] if insecure else ["--root-certificates", str(fleet.ca / "ca.crt")]
    return _superexec(address("127.0.0.1", fleet.control_port), trust, fleet.server / "superexec.secret")


def door(fleet: FleetFolder, *, host: str, port: int, max_upload_mb: int) -> list[str]:
    """The fleet's door before SuperLink."""
    return [
        *interpreter.command("leanfed.deployment.door.proxy", "--host", host, "--port", str(port)),
        *("--superlink", f"https://127.0.0.1:{fleet.control_port}", "--max-body-bytes", str(max_upload_mb * 2**20)),
        *("--certificate", str(fleet.server / "server.crt"), "--key", str(check_private(fleet.server / "server.key"))),
        *("--authority", str(fleet.ca / "ca.crt"), "--registry", str(fleet.registry), "--audit", str(fleet.audit.path)),
        *("--release", str(fleet.server / RELEASE)),
    ]


def supernode(
    bundle: Bundle,
    *,
    server: str,
    port: int,
    config: Mapping[str, Value],
    insecure: bool = False,
) -> list[str]:
    """A node: it checks the server's certificate and proves itself by its key; its own API is on loopback.

    It tries to reach the server without end: whether it makes sense to try is found out before.
    """
    secure = [
        *("--root-certificates", str(bundle.path / "ca.crt")),
        *("--auth-supernode-private-key", str(check_private(bundle.path / "node.key"))),
    ]
    return [
        *interpreter.command("leanfed.deployment.operations.supernode", str(bundle.path)),
        *("--superlink", server, *(["--insecure"] if insecure else secure)),
        *("--host", "127.0.0.1", "--port", str(port), "--isolation", "process"),
        *("--superexec-auth-secret-file", str(check_private(bundle.path / "superexec.secret"))),
        *("--node-config", node_config(config)),
    ]


def node_superexec(bundle: Bundle, *, port: int) -> list[str]:
    """The SuperExec that starts ClientApps; loopback and a secret, so no certificate."""
    return _superexec(address("127.0.0.1", port), ["--insecure"], bundle.path / "superexec.secret")


def node_config(values: Mapping[str, Value]) -> str:
    """Flower's `key=value key='text'` line."""
    parts = []
    for key, value in values.items():
        if isinstance(value, str):
            if "'" in value or "\n" in value:
                raise InputError(
                    f"{key} is {value!r}, but Flower cannot take a quote or a line break there. Rename it."
                )
            parts.append(f"{key}='{value}'")
        else:
            parts.append(f"{key}={str(value).lower()}")
    return " ".join(parts)


def check_loopback(host: str, what: str) -> None:
    """Refuse to leave loopback without TLS."""
    if host not in LOOPBACK:
        raise InputError(f"--insecure is for trying things out on loopback, but {what} is {host!r}. Leave it out.")


def split_address(text: str) -> tuple[str, int]:
    """Host and port of host:port or [v6]:port."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"{text!r} is no address. Write it as host:port, for example 10.0.0.5:9092.")
    return host.strip("[]"), int(port)


def _superexec(runtime: str, trust: list[str], secret: Path) -> list[str]:
    return [
        *(program("flower-superexec"), "--runtime-api-address", runtime, *trust),
        *("--superexec-auth-secret-file", str(check_private(secret)), "--parent-pid", str(os.getpid())),
    ]
