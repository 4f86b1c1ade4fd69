"""Mirrors of a run: CSV, TensorBoard, MLflow, Weights & Biases. The run folder stays the record."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from leanfed.errors import InputError, MissingExtraError
from leanfed.files import explained, make_folder, write_text
from leanfed.records import Section
from leanfed.results import leaves

if TYPE_CHECKING:
    from leanfed.rounds.loop import RoundRecord
    from leanfed.runs.settings import Settings

Values = dict[str, float]
Log = Callable[[int, Values], None]  # a round's number and its numbers
LONGEST = 500  # characters of a value that MLflow takes in every version


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


@contextmanager
def tracking(settings: Settings, folder: Path | None, resumed: bool = False) -> Iterator[Callable[[RoundRecord], None]]:
    """A listener that writes every round to the trackers of the settings; a run that
    goes on is found again by its folder."""
    check_trackers(settings.run.track)
    with ExitStack() as stack:
        logs = [
            stack.enter_context(_opened(name, target, settings, folder, resumed))
            for name, target in settings.run.track
            if target is not None
        ]

        def listen(record: RoundRecord) -> None:
            values = {name: float(value) for name, value in record.row.items() if value is not None and name != "round"}
            for log in logs:
                log(record.row["round"], values)

        yield listen


@contextmanager
def _opened(name: str, target: str, settings: Settings, folder: Path | None, resumed: bool) -> Iterator[Log]:
    """One tracker; what its package cannot do is explained."""
    try:
        with TRACKERS[name](target, settings, folder, resumed) as log:
            yield log
    except Exception as error:
        if type(error).__module__.partition(".")[0] in (name, "sqlalchemy"):
            raise InputError(
                f"run.track.{name} = {target!r} cannot be written: {str(error).splitlines()[0]} Correct the setting, "
                "or leave it out; the run goes on with `leanfed resume`."
            ) from error
        raise


def run_key(settings: Settings, folder: Path | None) -> str | None:
    """By what a tracker finds a run again after a stop; None: it has no folder and cannot go on."""
    if folder is None:
        return None
    return hashlib.sha256(f"{folder.resolve()} {settings.seed}".encode()).hexdigest()[:16]


@contextmanager
def _to_csv(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Iterator[Log]:
    """A table; its columns are those of all rounds so far, and the file is whole after every round."""
    path, rows = Path(target), list[dict[str, Any]]()
    with explained(path):
        make_folder(path.parent)
        if resumed and path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))

    def log(number: int, values: Values) -> None:
        rows[:] = [row for row in rows if int(row["round"]) < number]  # a resumed run may repeat rounds
        rows.append({"round": number, **values})
        columns = list(dict.fromkeys(column for row in rows for column in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        write_text(path, text.getvalue())

    yield log


@contextmanager
def _to_tensorboard(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Iterator[Log]:
    """A scalar for each column."""
    from tensorboard.summary import Writer

    with explained(Path(target)):
        make_folder(Path(target))
        writer = Writer(str(Path(target) / f"{settings.name}-{settings.seed}".replace("/", "-")))

    def log(number: int, values: Values) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, number)
        writer.flush()

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _to_mlflow(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Iterator[Log]:
    """A run of the experiment `leanfed`, with every setting as a parameter; found again by its folder."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client, key = MlflowClient(tracking_uri=target), run_key(settings, folder)
    found = client.get_experiment_by_name("leanfed")
    experiment = client.create_experiment("leanfed") if found is None else found.experiment_id
    same = client.search_runs([experiment], f"tags.`leanfed.key` = '{key}'") if key and resumed else []
    if same:
        run_id = same[0].info.run_id
    else:
        tags = {} if key is None else {"leanfed.key": key}
        run_id = client.create_run(experiment, run_name=settings.name, tags=tags).info.run_id
        given = [Param(name, str(value)[:LONGEST]) for name, value in leaves(settings.resolved())]
        for start in range(0, len(given), 100):  # what one call takes
            client.log_batch(run_id, params=given[start : start + 100])

    def log(number: int, values: Values) -> None:
        client.log_batch(run_id, [Metric(name, value, 0, number) for name, value in values.items()])

    try:
        yield log
    except BaseException:
        client.set_terminated(run_id, "FAILED")
        raise
    client.set_terminated(run_id)


@contextmanager
def _to_wandb(target: str, settings: Settings, folder: Path | None, resumed: bool) -> Iterator[Log]:
    """A run of a project, with the settings as its config; its local files go where WANDB_DIR says."""
    import wandb

    key = run_key(settings, folder)
    resume: Literal["allow"] | None = None if key is None else "allow"
    run = wandb.init(project=target, name=settings.name, config=settings.resolved(), id=key, resume=resume)

    def log(number: int, values: Values) -> None:
        run.log(values, step=number)

    try:
        yield log
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


TRACKERS: Final = {"csv": _to_csv, "tensorboard": _to_tensorboard, "mlflow": _to_mlflow, "wandb": _to_wandb}
