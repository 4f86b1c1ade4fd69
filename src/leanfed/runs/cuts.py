"""The cut of a run that leaves it to the program: chosen before the first round, so that all see a plain name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leanfed.errors import InfeasibleError, SettingsError
from leanfed.files import read_json
from leanfed.results import RunFolder
from leanfed.rounds.costs import Accountant
from leanfed.rounds.cuts import Cut, CutChoice, choose, plain_cut, sample_operations, with_costs, with_gains
from leanfed.rounds.planning import Planner
from leanfed.rounds.world import World, check_fit
from leanfed.runs.settings import Settings
from leanfed.runs.widths import with_widths
from leanfed.tasks.cut import CRITERIA, cuts_of, own_cut
from leanfed.tasks.task import Task, build_task


def settled(settings: Settings, data_dir: str | Path | None = None) -> tuple[Settings, CutChoice | None]:
    """The settings with a layer as their cut, and how it was chosen; None where they name one themselves."""
    if not settings.task.chooses_cut:
        return settings, None
    choice = choose_cut(settings, data_dir, gains=CRITERIA[str(settings.task.split)] == "gain")
    return with_cut(settings, choice.chosen), choice


def with_cut(settings: Settings, layer: str) -> Settings:
    """The settings cut after a layer, with the head steps that belong to it unless they are stated."""
    task = settings.task.model_copy(update={"split": layer})
    algorithm = settings.allocation.fitted(settings.algorithm, task.model, layer)
    return settings.model_copy(update={"task": task, "algorithm": algorithm})


def as_kept(settings: Settings, folder: RunFolder) -> Settings:
    """The settings with the cut that a folder's run has taken, if these asked for it; a cut is chosen once."""
    if not settings.task.chooses_cut or not folder.cuts.is_file():
        return settings
    kept = read_json(folder.cuts)
    return with_cut(settings, kept["chosen"]) if kept.get("asked") == settings.task.split else settings


def choose_cut(settings: Settings, data_dir: str | Path | None = None, *, gains: bool = True) -> CutChoice:
    """Every cut of the model, and the one to take; the same for the same settings and seed on every machine.

    Nothing is trained: rounds are planned for every cut, and `gains` takes two gradients of some clients.
    """
    asked = str(settings.task.split) if settings.task.chooses_cut else "auto"
    worlds, own = _worlds(settings, asked, data_dir)
    task = worlds[own].task
    operations = sample_operations(task)
    cuts = [_row(settings, world, plain_cut(layer, world, operations)) for layer, world in worlds.items()]
    if all(cut.refused is not None for cut in cuts):
        with_costs(plain_cut(own, worlds[own], operations), _planner(settings, worlds[own]))  # raises as a run would
    if gains and task.clients > 1:
        cuts = with_gains(cuts, [world.split for world in worlds.values()], task, settings.training.batch_size)
    chosen, why = choose(cuts, own, CRITERIA[asked])
    return CutChoice(asked, chosen, own, why, tuple(cuts))


def _worlds(settings: Settings, asked: str, data_dir: str | Path | None) -> tuple[dict[str, World], str]:
    """The world of every cut, the smallest shared part first, and the model's own cut; all on the same data."""
    root, name = None if data_dir is None else Path(data_dir), settings.task.model
    task = build_task(settings.task.model_copy(update={"split": None}), settings.seed, root)
    model = task.new_model("base")
    own = own_cut(model, name, settings.task.text)
    layers = cuts_of(model, own)
    if len(layers) < 2:
        raise SettingsError(
            f"task.split = {asked!r} has nothing to choose: {name!r} has one cut only, after {own!r}. Leave it out."
        )
    worlds = {layer: _world(with_cut(settings, layer), task) for layer in layers}
    if len({frozenset(world.split.shared) for world in worlds.values()}) == 1:
        method = settings.algorithm.model_dump()["name"]
        raise SettingsError(
            f"task.split = {asked!r} has nothing to choose: algorithm.name = {method!r} shares the same part wherever "
            "the model is cut. Leave it out, or choose a method with a private part."
        )
    return dict(sorted(worlds.items(), key=lambda item: item[1].split.shared_size)), own


def _world(settings: Settings, task: Task) -> World:
    """What is planned for: the settings' world on the data of a task."""
    world = World(
        task=replace(task, settings=settings.task),
        algorithm=settings.algorithm,
        training=settings.training,
        participation=settings.participation,
        aggregation=settings.aggregation,
        values=settings.radio.values or "float32",
        differences=settings.radio.differences,
        reports=settings.allocation.measures,
    )
    return with_widths(world, settings)


def _planner(settings: Settings, world: World) -> Planner:
    """What plans the rounds of a world; one that the method cannot train is refused."""
    check_fit(world)
    return Planner(settings.allocation, Accountant(settings.radio, world), settings.rounds, settings.theory)


def _row(settings: Settings, world: World, cut: Cut) -> Cut:
    """A cut with what its rounds would cost, or why the run cannot take it."""
    try:
        return with_costs(cut, _planner(settings, world))
    except (SettingsError, InfeasibleError) as error:
        return replace(cut, refused=str(error))
