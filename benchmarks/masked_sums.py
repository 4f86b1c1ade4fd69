"""What a masked sum takes a client and the server: bytes beside the formula that simulations charge, CPU-seconds.

    python -m benchmarks.masked_sums [OUT]

The code of both sides of a fleet, in one process, with records as they travel; signatures and Flower's own envelopes
of messages are not in it. LeNet-5's base has 50,692 values, 5 % of them are 2,534.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict

from leanfed.compression.ring import Grid, unpacked
from leanfed.deployment.learning.messages import Order, pack_one, wire_bytes
from leanfed.deployment.learning.store import NodeStore
from leanfed.deployment.masking.answers import QUESTIONS
from leanfed.deployment.masking.identity import Card, Identity
from leanfed.deployment.masking.node import NodeMasks
from leanfed.deployment.masking.records import MASKS
from leanfed.deployment.masking.rules import Rules
from leanfed.deployment.masking.sums import MaskedRound
from leanfed.files import write_json
from leanfed.wireless.masking import MaskedSum

RUN, BASE = "a" * 32, "b" * 32
# clients, neighbours, values
CASES = [(5, None, 2534), (5, None, 50_692), (20, None, 2534), (20, 8, 2534), (100, 20, 2534)]
DROPPED = 0.1  # of the clients do not upload


class Measured:
    """Clients with stores of their own; what they send, receive and compute is added up."""

    def __init__(self, root: Path, clients: int, rules: Rules) -> None:
        stores = [NodeStore(root / str(client), RUN, client, rules.seed) for client in range(clients)]
        self.nodes = [NodeMasks(store, client, rules, Identity()) for client, store in enumerate(stores)]
        self.up = self.down = self.frame = 0
        self.client_s = 0.0

    @contextmanager
    def at(self, client: int) -> Iterator[NodeMasks]:
        """A client at work."""
        began = time.process_time()
        with self.nodes[client].store.open():
            yield self.nodes[client]
        self.client_s += time.process_time() - began

    def ask(
        self, name: str, requests: Mapping[int, Any], read: Callable[[int, RecordDict], Any], *, token: str
    ) -> dict[int, Any]:
        _, replies, step = QUESTIONS[name]
        found = {}
        for client, request in requests.items():
            self.down += wire_bytes(pack_one(name, request))
            with self.at(client) as node:
                told = step(node, request)
            content = pack_one(replies, told)
            self.up += wire_bytes(content)
            found[client] = read(client, content)
        return found

    def upload(self, masked: MaskedRound, client: int, values: np.ndarray[Any, Any]) -> Any:
        heading = {"run": RUN, "token": "c" * 32, "round": 0, "client": client, "applied": -1, "applied_token": ""}
        order = Order.model_validate(
            {**heading, "train": True, "evaluate": False, "k": 1.0, "r": 1.0, "share": 1.0},
        )
        masks = masked.order_for(client)
        self.down += wire_bytes(pack_one(MASKS, masks))
        with self.at(client) as node:
            frame, _, _ = node.prepare(order, masks, BASE).frame(values)
        self.frame = len(frame)
        return unpacked(frame, len(values), masked.bits)


def measure(root: Path, clients: int, neighbours: int | None, entries: int) -> dict[str, Any]:
    """One sum in which some clients drop out after they have shared."""
    rules = Rules(3, neighbours, Grid.of(32, 16.0), "")
    party, began = Measured(root, clients, rules), time.process_time()
    masked = MaskedRound(RUN, 0, rules, party.ask, lambda client: Card())
    masked.agree(dict.fromkeys(range(clients), 1.0))
    masked.bind(BASE, entries)
    left = clients - int(DROPPED * clients)
    values = np.random.default_rng(0).normal(size=(left, entries))
    uploads = {client: party.upload(masked, client, values[client]) for client in range(left)}
    total = masked.total(uploads)
    whole = time.process_time() - began
    assert np.array_equal(total, sum(rules.grid.rounded(row)[0] for row in values))
    formula = MaskedSum.of(clients, neighbours, 32)
    sent, up = float(formula.sent_bits(entries)) / 8, party.up / clients + party.frame
    return {
        "clients": clients,
        "neighbours": formula.neighbours,
        "values": entries,
        "dropped": clients - left,
        "up_bytes": round(up),
        "formula_up_bytes": round(sent),
        "up_over_formula": round(up / sent, 3),
        "down_bytes": round(party.down / clients),
        "formula_down_bytes": round(formula.received_bits / 8),
        "client_cpu_s": round(party.client_s / clients, 3),
        "server_cpu_s": round(whole - party.client_s, 3),
    }


def main() -> None:
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="leanfed-masked-") as folder:
            rows.append(measure(Path(folder), *case))
        print(json.dumps(rows[-1]), flush=True)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("results/fleet/masked.json")
    write_json(out, {"rows": rows})


if __name__ == "__main__":
    main()
