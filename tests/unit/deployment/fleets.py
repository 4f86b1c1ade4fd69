"""A small fleet on the embedded digits, and runs of it over the grid in memory."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
from PIL import Image

from leanfed.deployment.door.audit import Audit
from leanfed.deployment.learning import work
from leanfed.deployment.learning.config import run_config
from leanfed.deployment.learning.device import calibrate
from leanfed.deployment.learning.fleet_run import play_run
from leanfed.records import Ints
from leanfed.runs.settings import Settings
from leanfed.tasks.task import Task
from tests.unit.deployment.grids import MemoryClock, MemoryGrid

CLIENTS = 5
CALIBRATION_S = 0.001  # a node's own 20 ms with every answer would be half of a trial's time


def settings_of(**changes: Any) -> Settings:
    values: dict[str, Any] = {
        "name": "fleet",
        "seed": 3,
        "rounds": 3,
        "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": CLIENTS}},
        "training": {"batch_size": 8},
        "algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.8, "sparsify": {"error_feedback": True}},
        "evaluation": {"every": 2},
        "run": {"engine": "reference", "threads": 1},
    }
    return Settings.from_values({**values, **changes})


@dataclass
class Trial:
    """A run folder, its nodes, and the grid between them."""

    settings: Settings
    root: Path
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = MemoryClock()
        self.config: dict[str, Any] = {
            "settings": json.dumps(self.settings.resolved()),
            "run-folder": str(self.folder),
            "deadline-s": 30.0,
            "join-s": 30.0,
            "offences": 2,
            **self.changes,
        }
        self.grid = MemoryGrid.of(self.settings.task.partition.clients, self.root / "nodes", self.config, self.clock)

    @property
    def folder(self) -> Path:
        return self.root / "run"

    def play(self, *, resume: bool = False) -> None:
        with patch.object(work, "calibrate", lambda: calibrate(CALIBRATION_S)):
            play_run(self.grid, run_config({**self.config, "resume": resume}), self.clock.clock())

    def table(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.folder / f"{name}.parquet")

    def losses(self) -> list[float]:
        return self.table("rounds")["train_loss"].to_list()

    def took_part(self) -> list[list[int]]:
        """The clients whose updates were applied, by round."""
        rows = self.table("clients").group_by("round", maintain_order=True).agg("client")
        return rows["client"].to_list()

    def audit(self, event: str) -> list[dict[str, Any]]:
        return [row for row in Audit(self.folder / "audit.jsonl").read() if row["event"] == event]

    def store(self, client: int) -> Path:
        (folder,) = (self.root / "nodes" / f"node-{client}").iterdir()
        return folder


def die_when(trial: Trial, *, round_number: int) -> None:
    """The server dies when the last answer of a round has come, before it could be applied."""
    pull = trial.grid.pull_messages

    def dying(ids: Any) -> Any:
        answers = pull(ids)
        if any(answer.metadata.group_id == str(round_number) for answer in answers):
            trial.grid.pull_messages = pull  # type: ignore[method-assign]
            trial.grid.replies.clear()
            raise RuntimeError("power cut")
        return answers

    trial.grid.pull_messages = dying  # type: ignore[method-assign]


def write_digits(root: Path, task: Task, *chosen: Ints) -> None:
    """A data folder that holds the chosen training and test digits, as the hub's Parquet files would."""
    for split, images, rows in zip(("train", "test"), (task.train, task.test), chosen, strict=True):
        encoded = []
        for picture in images.pixels[rows, 0, 2:-2, 2:-2]:  # without the black frame
            buffer = io.BytesIO()
            Image.fromarray(picture).save(buffer, "png")
            encoded.append({"bytes": buffer.getvalue(), "path": ""})
        path = root / "ylecun/mnist/mnist" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({"image": encoded, "label": images.labels[rows]}).write_parquet(path)
