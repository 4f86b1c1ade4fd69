"""Settings: what is understood, what is refused, and how it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leanfed.algorithms import ALGORITHMS
from leanfed.allocation import ALLOCATORS
from leanfed.errors import SettingsError, StorageError
from leanfed.runs.settings import Settings, json_schema, set_value

CONFIGS = Path(__file__).resolve().parents[3] / "src" / "leanfed" / "reproduction" / "configs"


def read(tmp_path: Path, text: str, *changes: str) -> Settings:
    file = tmp_path / "s.toml"
    file.write_text(text)
    return Settings.from_toml(file, changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[task]\ndatset = 'mnist'", r"s\.toml:2: unknown setting 'task.datset': did you mean 'dataset'\?"),
        ("rounds = 3\n[taks]\nx = 1", r"s\.toml:2: unknown setting 'taks': did you mean 'task'\?"),
        ("[algorithm]\nname = 'fedperr'", r"s\.toml: Unknown algorithm 'fedperr': did you mean 'fedper'\?"),
        ("[algorithm]\nname = 'local'\nk = 0.5", r"s\.toml:3: unknown setting 'algorithm.k': known: name\."),
        ("[algorithm]\nk = 0.5", r"algorithm needs a name, one of: apfl, "),
        (
            "[algorithm]\nname = 'flpdsp'\nk = 0",
            r"s\.toml:3: algorithm.k is 0, but a keep rate must be above 0 and at most 1",
        ),
        ("[algorithm]\nname = 'flpdsp'\nr = 1.5", r"s\.toml:3: algorithm.r is 1.5, but a keep rate must be above 0"),
        ("[algorithm]\nname = 'flpdsp'\nk = [0.1, 2]", r"a keep rate must be above 0 and at most 1"),
        (
            "[algorithm]\nname = 'flpdsp'\n[algorithm.prune]\nscor = 1",
            r"s\.toml:4: .*'algorithm.prune.scor': did you mean 'score'",
        ),
        ("[training]\nlearning_rate = -1", r"s\.toml:2: training.learning_rate is -1, but .* greater than 0"),
        ("[training]\nlearning_rate = nan", r"s\.toml:2: training.learning_rate is nan, but .* finite number"),
        (
            "[task.partition]\nkind = 'class'",
            r"s\.toml:1: task.partition a 'class' partition needs 'classes_per_client'",
        ),
        (
            "[radio.fleet]\nbandwidth_hz = [1e6, 2e6, 3e6]",
            r"bandwidth_hz is \[.*\], but must have at most 2 values, not 3",
        ),
        ("rounds = 0", r"s\.toml:1: rounds is 0, but input should be greater than or equal to 1"),
        ("rounds = ", r"s\.toml is not valid TOML: Invalid value"),
        ("rounds = true", r"s\.toml:1: rounds is True, but must be a number; true is none\."),
        ("rounds = '5'", r"s\.toml:1: rounds is '5', but must be a number; write it without quotes\."),
        ("[radio.fleet]\ncpu_hz = [1e9, '2e9']", r"s\.toml:2: radio.fleet.cpu_hz is .* must be a number; write it"),
        ("[radio]\nvalue_bits = '32'", r"radio.value_bits is '32', but must be a number"),
        (
            "radio.fleet.power_dbm = 20",
            r"s\.toml:1: radio\.fleet\.power_dbm is 20, but must be a list: .* such as \[1, 2\]\.$",
        ),
        (
            "radio.fleet.bandwidth_hz = 1e300",
            r"^[^\n]*s\.toml:1: radio\.fleet\.bandwidth_hz is 1e\+300, but [^\n]*10{30}\.$",
        ),
        ("task = 3", r"s\.toml:1: task is 3, but must be a table of settings: write \[task\] above its keys\."),
        ("[training]\nlearning_rate = 1e300", r"learning_rate is 1e\+300, but .* less than or equal to 1000"),
        ("[training]\nbatch_size = 1000000000000", r"batch_size is .* less than or equal to 100000\."),
        ("[training]\nlocal_epochs = 1000000000000", r"local_epochs is .* less than or equal to 10000"),
        ("[run]\nthreads = 1000000", r"threads is .* less than or equal to 1024"),
        ("[algorithm]\nname = 'flpdsp'\nhead_steps = 1000000000000", r"head_steps is .* less than or equal to 10000"),
        ("# nothing\n", r"s\.toml is empty\. Write what differs"),
    ],
)
def test_a_refusal_names_file_line_value_and_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(tmp_path, text)


def test_a_byte_order_mark_is_no_trouble_and_a_list_is_no_settings(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufeffrounds = 7").rounds == 7
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(SettingsError, match=r"s\.json holds a JSON list, but settings are an object"):
        Settings.from_toml(tmp_path / "s.json")


def test_whole_numbers_stand_for_floats_and_a_limit_without_effect_is_noted(tmp_path: Path) -> None:
    settings = read(tmp_path, "[training]\nlearning_rate = 1\n[allocation]\ndeadline_s = 2")
    assert settings.training.learning_rate == 1.0
    assert settings.notes() == ("allocation.deadline_s has no effect with allocation.rule = 'own'.",)
    assert Settings.from_values(settings.resolved()).training == settings.training


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"Cannot read .*none\.toml: No such file"):
        Settings.from_toml(tmp_path / "none.toml")


def test_resolved_settings_read_back_to_the_same() -> None:
    for name in ALGORITHMS:
        settings = Settings.from_values({"algorithm": {"name": name}})
        assert Settings.from_values(json.loads(json.dumps(settings.resolved()))) == settings


def test_the_command_line_changes_single_settings(tmp_path: Path) -> None:
    settings = read(tmp_path, "rounds = 3", "rounds=7", "algorithm.name=fedavg-s", "algorithm.k=0.2", "name=my run")
    assert (settings.rounds, settings.name) == (7, "my run")
    assert settings.algorithm == ALGORITHMS["fedavg-s"](k=0.2)


@pytest.mark.parametrize(("change", "message"), [("rounds", "section.key=value"), ("rounds.x=1", "not a table")])
def test_a_malformed_change_is_refused(change: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        set_value({"rounds": 3}, change)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().rounds = 5


def test_the_schema_knows_every_method_and_allocator_and_explains_every_key() -> None:
    schema = json_schema()
    named = {member["$ref"].rpartition("/")[2] for member in schema["properties"]["algorithm"]["anyOf"]}
    assert named == {f"algorithm-{name}" for name in ALGORITHMS}
    assert schema["$defs"]["AllocationSettings"]["properties"]["solver"]["enum"] == list(ALLOCATORS)
    tables = [schema, *(d for d in schema["$defs"].values() if d.get("type") == "object")]
    for table in tables:
        for key, value in table["properties"].items():
            assert key == "name" or {"description", "$ref"} & value.keys(), f"{table['title']}.{key} has no description"


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.toml")), ids=lambda file: file.stem)
def test_every_shipped_settings_file_is_valid(file: Path) -> None:
    Settings.from_toml(file)
