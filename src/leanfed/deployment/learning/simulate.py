r"""The same apps and the same settings file in Flower's simulation engine, one virtual node per client.

    python -m leanfed.deployment.learning.simulate SETTINGS.toml OUT

Ray, which that engine is made of, listens on all addresses: run it where no other machine can connect, for example in a
network of its own:

    unshare --map-root-user --net sh -c \
        'ip link set lo up && python -m leanfed.deployment.learning.simulate SETTINGS.toml OUT'

leanfed's own simulator (`leanfed run`) gives the same losses, much faster.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from leanfed.deployment.operations.commands import OFF
from leanfed.deployment.operations.extra import require_flower
from leanfed.errors import InputError
from leanfed.files import make_folder, owner_only
from leanfed.runs.cuts import settled
from leanfed.runs.settings import Settings

# As shipped, Ray's workers give way to everything else on the machine (nice 15).
ENVIRONMENT = OFF | {"RAY_worker_niceness": "0"}


def simulate(settings: Settings, out: Path, *, data_dir: Path | None = None, **changes: Any) -> None:
    """Run a fleet of virtual nodes into OUT/run; their stores are in OUT/nodes."""
    require_flower()
    os.environ.update(ENVIRONMENT)
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from leanfed.deployment.learning.client_app import app as client_app
    from leanfed.deployment.learning.config import run_config
    from leanfed.deployment.learning.fleet_run import play_run

    out = out.resolve()
    with owner_only():
        make_folder(out / "nodes")
    values: dict[str, Any] = {
        "settings": json.dumps(settled(settings, data_dir)[0].resolved()),
        "run-folder": str(out / "run"),
        "store": str(out / "nodes"),
        "data-dir": "" if data_dir is None else str(data_dir),
        **changes,
    }
    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        play_run(grid, run_config(values))

    def answer(message: Message, context: Context) -> Message:
        # This way of starting Flower has no run-config of its own, and a context's may not be changed.
        return client_app(
            message, Context(context.run_id, context.node_id, context.node_config, context.state, run_config=values)
        )

    for verb in (client.query(), client.train(), client.evaluate()):
        verb(answer)
    resources: dict[str, dict[str, Any]] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"include_dashboard": False},
    }
    clients = settings.task.partition.counted()
    run_simulation(server_app=server, client_app=client, num_supernodes=clients, backend_config=resources)


def main() -> None:
    """SETTINGS.toml OUT, then any run-config keys as key=value."""
    if len(sys.argv) < 3:
        raise InputError(
            "Give a settings file and a folder: python -m leanfed.deployment.learning.simulate SETTINGS.toml OUT"
        )
    changes = dict(text.split("=", 1) for text in sys.argv[3:])
    simulate(Settings.from_toml(sys.argv[1]), Path(sys.argv[2]), **{k: json.loads(v) for k, v in changes.items()})


if __name__ == "__main__":
    main()
