"""Who a node is by its key: SuperLink's number -> the client, its name and what was agreed with its owner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leanfed.deployment.learning.messages import Hello, MessageError
from leanfed.deployment.masking.identity import Card
from leanfed.files import read_json


@dataclass(frozen=True)
class Bindings:
    """The file that the server writes; read anew when it changes. Without a file nobody is bound."""

    path: Path | None
    max_samples: int  # where nothing else was agreed

    def check(self, hello: Hello, node: int) -> None:
        """Refuse a node that says to be another client than its key's, or to have more samples than were agreed."""
        most = self.max_samples
        if self.path is not None:
            known = read_json(self.path).get(str(node))
            if known is None:
                raise MessageError("unknown-node", "its key is not in the roster")
            if known["client_id"] != hello.client:
                whose = f"{known['name']}, client {known['client_id']}"
                raise MessageError("wrong-client", f"it says client {hello.client}, but its key is that of {whose}")
            most = known.get("samples") or most
        if hello.samples > most:
            raise MessageError("too-many-samples", f"it says {hello.samples} samples, and {most} are the most agreed")

    def card(self, node: int) -> Card:
        """What the authority has signed of a node; empty where nobody is bound, or its line was never signed."""
        known = read_json(self.path).get(str(node)) if self.path is not None else None
        if known is None:
            return Card()
        return Card(known["name"], known["public_key"], known.get("card") or "")
