"""The ServerApp: open the run folder, play the rounds."""

from __future__ import annotations

from leanfed.deployment.operations.extra import require_flower

require_flower()

from flwr.app import Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the experiment of the run-config."""
    from leanfed.deployment.learning.config import run_config
    from leanfed.deployment.learning.fleet_run import play_run

    play_run(grid, run_config(context.run_config))
