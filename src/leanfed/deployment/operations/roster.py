"""The roster: which keys may join the fleet, under which name, until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from leanfed.deployment.operations.folder import checked_name
from leanfed.errors import InputError, nearest
from leanfed.files import read_json, write_json


@dataclass(frozen=True)
class RegisteredNode:
    """One node: its name, its number in the data's partition and its public key."""

    name: str
    client_id: int
    fingerprint: str  # as `ssh-keygen -l` prints it
    public_key: str  # one line in OpenSSH's form
    added: str
    expires: str
    revoked: str | None = None
    samples: int | None = None  # the most training samples that it may say to have
    card: str | None = None  # the authority's signature of name, number and key, by which other nodes know it

    def refusal(self, now: datetime | None = None) -> str | None:
        """Why this key may not join, or None."""
        now = now or datetime.now(UTC)
        if self.revoked is not None:
            return "revoked key"
        return "expired key" if now >= datetime.fromisoformat(self.expires) else None


@dataclass(frozen=True)
class Roster:
    """All nodes, revoked ones too: a name or a number is never given twice."""

    nodes: tuple[RegisteredNode, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Roster:
        """The roster in nodes.json; empty where there is none yet."""
        if not path.exists():
            return cls()
        return cls(tuple(RegisteredNode(**values) for values in read_json(path)["nodes"]))

    def save(self, path: Path) -> None:
        """Write nodes.json."""
        write_json(path, {"nodes": [asdict(node) for node in self.nodes]})

    def add(self, name: str, public_key: str, fingerprint: str, days: int, samples: int | None = None) -> Roster:
        """A roster with one more node, numbered after the highest number so far."""
        checked_name(name)
        for node in self.nodes:
            if node.name == name:
                raise InputError(f"There is a node {name!r} already. Choose another name, also if it was revoked.")
            if node.fingerprint == fingerprint:
                raise InputError(f"This key is already that of {node.name!r}. Make a new key for {name!r}.")
        number = 1 + max((node.client_id for node in self.nodes), default=-1)
        now = datetime.now(UTC)
        until = stamp(now + timedelta(days=days))
        node = RegisteredNode(name, number, fingerprint, public_key, stamp(now), until, samples=samples)
        return Roster((*self.nodes, node))

    def sign(self, name: str, card: str) -> Roster:
        """A roster in which `name` has this card."""
        return self._with(replace(self[name], card=card))

    def revoke(self, name: str) -> Roster:
        """A roster in which `name` may not join any more."""
        if self[name].revoked is not None:
            raise InputError(f"{name!r} was revoked already, on {self[name].revoked}.")
        return self._with(replace(self[name], revoked=stamp(datetime.now(UTC))))

    def renew(self, name: str, days: int) -> Roster:
        """A roster in which `name` may join for `days` from now."""
        if self[name].revoked is not None:
            raise InputError(f"{name!r} was revoked on {self[name].revoked}. Add a node with a new key instead.")
        return self._with(replace(self[name], expires=stamp(datetime.now(UTC) + timedelta(days=days))))

    def find(self, fingerprint: str) -> RegisteredNode | None:
        """The node with this key."""
        return next((node for node in self.nodes if node.fingerprint == fingerprint), None)

    def rows(self, online: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """One row per node for people and machines; `online` maps a key to what SuperLink says of it."""
        rows = []
        for node in self.nodes:
            seen = "unknown" if online is None else online.get(node.fingerprint, "offline")
            row = {"node": node.name, "client_id": node.client_id, "state": node.refusal() or seen}
            rows.append(row | {"key": node.fingerprint, "expires": node.expires, "revoked": node.revoked})
        return rows

    def __getitem__(self, name: str) -> RegisteredNode:
        for node in self.nodes:
            if node.name == name:
                return node
        raise InputError(f"There is no node {name!r}; {nearest(name, (m.name for m in self.nodes))}")

    def _with(self, changed: RegisteredNode) -> Roster:
        return Roster(tuple(changed if node.name == changed.name else node for node in self.nodes))


def stamp(moment: datetime) -> str:
    """A moment to the second, with its zone."""
    return moment.isoformat(timespec="seconds")
