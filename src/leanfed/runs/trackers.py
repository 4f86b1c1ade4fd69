"""Mirrors of a run: CSV, TensorBoard, MLflow, Weights & Biases. The run folder stays the record."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from leanfed.errors import InputError, LeanfedError, MissingExtraError
from leanfed.files import explained, make_folder, write_text
from leanfed.records import Section
from leanfed.results import leaves

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from leanfed.rounds.loop import RoundRecord
    from leanfed.runs.settings import Settings

Values = dict[str, float]
Tell = Callable[[str], None]
LONGEST = 500  # characters of a value that MLflow takes in every version
UPLOAD_S = 120.0  # for what Weights & Biases has not sent when a run ends
PATIENCE: Final = {  # of MLflow with its server; its own is four minutes a round
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class TrackSettings(Section):
    """Where else the rounds of a run are written; each is off where it is left out."""

    csv: str | None = Field(default=None, min_length=1)
    """A file with a row for each round."""
    tensorboard: str | None = Field(default=None, min_length=1)
    """A log folder of TensorBoard."""
    mlflow: str | None = Field(default=None, min_length=1)
    """A tracking URI of MLflow, such as sqlite:///mlflow.db or the address of a server."""
    wandb: str | None = Field(default=None, min_length=1)
    """A project of Weights & Biases; with WANDB_MODE=offline nothing leaves the machine."""


def check_trackers(track: TrackSettings) -> None:
    """Refuse a tracker whose package is not installed."""
    for name in ("tensorboard", "mlflow", "wandb"):
        if getattr(track, name) is not None and find_spec(name) is None:
            raise MissingExtraError(
                f"run.track.{name} needs the package {name}, which is not installed. Run: pip install "
                "'leanfed[track]', or leave the setting out."
            )


@dataclass(frozen=True)
class Tracker:
    """What an open tracker can do."""

    log: Callable[[int, Values], None]
    """Write a round: its number and its numbers."""
    close: Callable[[bool], None] = lambda done: None
    """End; `done` says whether the run has."""
    drop: Callable[[], None] = lambda: None
    """Let go of a tracker that cannot be reached."""


@contextmanager
def tracking(
    settings: Settings, folder: Path | None, resumed: bool = False, tell: Tell = lambda text: None
) -> Iterator[Callable[[RoundRecord], None]]:
    """A listener that writes every round to the trackers of the settings; a run that goes on is found by its folder.

    A tracker that cannot be opened is refused. One that is lost later, or when a run goes on, is dropped, and `tell`
    hears of it once.
    """
    check_trackers(settings.run.track)
    mirrors, done = Mirrors(tell), False
    try:
        for name, target in settings.run.track:
            if target is not None:
                mirrors.open(name, target, settings, folder, resumed)
        yield mirrors.listen
        done = True
    finally:
        mirrors.close(done)


class Mirrors:
    """The trackers that can still be written, by their name and target."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._open: dict[tuple[str, str], Tracker] = {}

    def open(self, name: str, target: str, settings: Settings, folder: Path | None, resumed: bool) -> None:
        """Open one more; what its package cannot do is explained."""
        try:
            self._open[name, target] = TRACKERS[name](target, settings, folder, resumed)
        except Exception as error:
            if resumed:
                self._lost(name, target, error)
            elif isinstance(error, LeanfedError):
                raise
            else:
                raise InputError(
                    f"run.track.{name} = {target!r} cannot be written: {_reason(error)} Correct the setting, or leave "
                    "it out."
                ) from error

    def listen(self, record: RoundRecord) -> None:
        """Write a round to all of them."""
        values = {name: float(value) for name, value in record.row.items() if value is not None and name != "round"}
        self._each(lambda tracker: tracker.log(record.row["round"], values))

    def close(self, done: bool) -> None:
        """End all of them."""
        self._each(lambda tracker: tracker.close(done))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """Do it with every tracker; packages fail in ways of their own, and none of them may end a run."""
        for (name, target), tracker in list(self._open.items()):
            try:
                act(tracker)
            except Exception as error:
                del self._open[name, target]
                with suppress(Exception):
                    tracker.drop()
                self._lost(name, target, error)

    def _lost(self, name: str, target: str, error: Exception) -> None:
        self._tell(
            f"run.track.{name} = {target!r} cannot be written any more: {_reason(error)} The run goes on without it."
        )


def _reason(error: Exception) -> str:
    """The first line of an error, as a sentence."""
    cause = error.__cause__ if isinstance(error, LeanfedError) else None  # our own advice is for files that matter
    lines = str(cause or error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(" .:") + "."


def run_key(settings: Settings, folder: Path | None) -> str | None:
    """By what a tracker finds a run again after a stop; None: it has no folder and cannot go on."""
    if folder is None:
        return None
    return hashlib.sha256(f"{folder.resolve()} {settings.seed}".encode()).hexdigest()[:16]


def _to_csv(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Tracker:
    """A table; its columns are those of all rounds so far, and the file is whole after every round."""
    path, rows = Path(target), list[dict[str, Any]]()
    with explained(path):
        make_folder(path.parent)
        if resumed and path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))

    def write() -> None:
        columns = dict.fromkeys(["round", *(column for row in rows for column in row)])
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(columns))
        writer.writeheader()
        writer.writerows(rows)
        write_text(path, text.getvalue())

    def log(number: int, values: Values) -> None:
        rows[:] = [row for row in rows if int(row["round"]) < number]  # a resumed run may repeat rounds
        rows.append({"round": number, **values})
        write()

    write()  # now rather than after a round, if it cannot be
    return Tracker(log)


def _to_tensorboard(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Tracker:
    """A scalar for each column.

    The package's own writer has a thread, which ends with a traceback where the file cannot be written.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    logs = make_folder(Path(target) / f"{settings.name}-{settings.seed}".replace("/", "-"))
    path = logs / f"events.out.tfevents.{time.time_ns():019d}.{os.getpid()}"

    def write(event: Any) -> None:
        with explained(path), path.open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())

    def log(number: int, values: Values) -> None:
        event = Event(wall_time=time.time(), step=number)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        write(event)

    write(Event(wall_time=time.time(), file_version="brain.Event:2"))
    return Tracker(log)


def _to_mlflow(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Tracker:
    """A run of the experiment `leanfed`, with every setting as a parameter; found again by its folder."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    with _impatient():
        client = MlflowClient(tracking_uri=target)
        run_id = _mlflow_run(client, settings, folder, resumed)

    def log(number: int, values: Values) -> None:
        with _impatient():
            client.log_batch(run_id, [Metric(name, value, 0, number) for name, value in values.items()])

    def close(done: bool) -> None:
        with _impatient():
            client.set_terminated(run_id, "FINISHED" if done else "FAILED")

    return Tracker(log, close)


def _mlflow_run(client: MlflowClient, settings: Settings, folder: Path | None, resumed: bool) -> str:
    """The id of a run: the folder's, where it goes on, or a new one."""
    from mlflow.entities import Param

    key = run_key(settings, folder)
    found = client.get_experiment_by_name("leanfed")
    experiment = client.create_experiment("leanfed") if found is None else found.experiment_id
    same = client.search_runs([experiment], f"tags.`leanfed.key` = '{key}'") if key and resumed else []
    if same:
        return str(same[0].info.run_id)
    tags = {} if key is None else {"leanfed.key": key}
    run_id = str(client.create_run(experiment, run_name=settings.name, tags=tags).info.run_id)
    given = [Param(name, str(value)[:LONGEST]) for name, value in leaves(settings.resolved())]
    for start in range(0, len(given), 100):  # what one call takes
        client.log_batch(run_id, params=given[start : start + 100])
    return run_id


@contextmanager
def _impatient() -> Iterator[None]:
    """Let MLflow give its server up after seconds, where the user has not said otherwise."""
    ours = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _to_wandb(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Tracker:
    """A run of a project, with the settings as its config; its local files go where WANDB_DIR says."""
    import wandb

    key = run_key(settings, folder)
    resume: Literal["allow"] | None = None if key is None else "allow"
    run = wandb.init(
        project=target,
        name=settings.name,
        config=settings.resolved(),
        id=key,
        resume=resume,
        settings=wandb.Settings(finish_timeout=UPLOAD_S, finish_timeout_raises=True),
    )

    def log(number: int, values: Values) -> None:
        run.log(values, step=number)

    def close(done: bool) -> None:
        run.finish(exit_code=0 if done else 1)

    return Tracker(log, close, drop=wandb.teardown)  # else its hook says how it failed when Python ends


TRACKERS: Final = {"csv": _to_csv, "tensorboard": _to_tensorboard, "mlflow": _to_mlflow, "wandb": _to_wandb}
