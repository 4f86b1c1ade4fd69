"""What the operator asks of SuperLink on its own machine: nodes, runs, logs. Every call carries the owner's secret."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from leanfed.deployment.operations.folder import FleetFolder, check_private
from leanfed.deployment.operations.keys import fingerprint, pem_of
from leanfed.deployment.operations.roster import Roster
from leanfed.deployment.operations.superlink import HEADER
from leanfed.errors import LeanfedError
from leanfed.files import write_json

UNREGISTERED = "unregistered"


class ServerUnreachableError(LeanfedError):
    """SuperLink does not answer."""


@dataclass(frozen=True)
class NodeState:
    """A node as SuperLink sees it."""

    node_id: int
    fingerprint: str
    status: str  # registered, online, offline
    until: str = ""  # when its last sign of life stops to count, or when it left


@dataclass(frozen=True)
class RunState:
    """A run as SuperLink sees it."""

    run_id: int
    status: str  # pending, starting, running, finished
    outcome: str  # completed, failed, stopped; empty before the end
    details: str


@dataclass(frozen=True)
class OwnerSecret:
    """Puts the owner's secret on every request, as SuperLink's guard asks for it."""

    secret: str

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the header, then go on."""
        context.request.headers[HEADER] = self.secret
        return call_next(context)


class Control:
    """A client of the control API."""

    def __init__(self, address: str, authority: Path | None, secret: Path) -> None:
        """`authority` is the certificate to trust; None for plain HTTP on loopback. `secret` is a file."""
        trust = None if authority is None else authority.read_bytes()
        proof = [OwnerSecret(check_private(secret).read_text().strip())]
        self.client = ControlHttpClient.from_server_address(address, authority is None, trust, interceptors=proof)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def nodes(self) -> list[NodeState]:
        """The nodes that are registered."""
        with _explained():
            found = self.client.ListNodes(ListNodesRequest()).nodes_info
        return [
            NodeState(node.node_id, fingerprint(node.public_key), node.status, _last_sign(node))
            for node in found
            if node.status != UNREGISTERED
        ]

    def register(self, name: str, public_key: str) -> None:
        """Let a key join."""
        with _explained():
            self.client.RegisterNode(RegisterNodeRequest(public_key=pem_of(public_key), name=name))

    def unregister(self, node_id: int) -> None:
        """Shut a node out."""
        with _explained():
            self.client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))

    def start(self, fab: bytes, config: Mapping[str, bool | int | float | str]) -> int:
        """Submit an app; its run's number."""
        bundle = Fab(hashlib.sha256(fab).hexdigest(), fab, {})
        request = StartRunRequest(fab=fab_to_proto(bundle), override_config=user_config_to_proto(dict(config)))
        with _explained():
            answer = self.client.StartRun(request)
        if not answer.HasField("run_id"):
            raise LeanfedError(f"SuperLink did not start the run. {answer.note}")
        return answer.run_id

    def stop(self, run_id: int) -> None:
        """End a run; its checkpoint stays."""
        with _explained():
            self.client.StopRun(StopRunRequest(run_id=run_id))

    def runs(self, run_id: int | None = None) -> list[RunState]:
        """All runs, or one, newest last."""
        with _explained():
            found = self.client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict.values()
        ordered = sorted(found, key=lambda run: run.pending_at)
        return [RunState(r.run_id, r.status.status, r.status.sub_status, r.status.details) for r in ordered]

    def logs(self, run_id: int) -> Iterator[str]:
        """The ServerApp's log until the run ends."""
        with _explained():
            for piece in self.client.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0)):
                yield piece.log_output


def synchronise(control: Control, fleet: FleetFolder, roster: Roster) -> None:
    """Make SuperLink's list of nodes that of the roster, and note for runs which number of SuperLink's is whose key."""
    present = {node.fingerprint: node for node in control.nodes()}
    for node in roster.nodes:
        if node.revoked is None and node.fingerprint not in present:
            control.register(node.name, node.public_key)
    for key, state in present.items():
        known = roster.find(key)
        if known is None or known.revoked is not None:
            control.unregister(state.node_id)
    bound = {str(state.node_id): roster.find(state.fingerprint) for state in control.nodes()}
    write_json(fleet.bindings, {node: asdict(known) for node, known in bound.items() if known is not None})


def _last_sign(node: NodeInfo) -> str:
    """When an offline node was last counted as online."""
    if node.status == "online":
        return ""
    ended = [node.last_deactivated_at]
    if node.online_until:
        ended.append(datetime.fromtimestamp(node.online_until, UTC).isoformat(timespec="seconds"))
    return max(ended)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise LeanfedError(f"SuperLink refused: {error.response.status_code} {error.response.text[:300]}") from error
    except httpx.HTTPError as error:
        raise ServerUnreachableError(
            f"SuperLink does not answer ({error or type(error).__name__}). Is `leanfed deploy server` running?"
        ) from error
