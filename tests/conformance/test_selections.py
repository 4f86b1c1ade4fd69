"""One battery for every selection: whoever registers one gains these tests."""

from __future__ import annotations

import pytest

from leanfed.rounds.selection import SELECTIONS, Moment, Participation, select

SETTINGS = {
    "fraction": Participation(fraction=0.3),
    "cohorts": Participation(cohorts=((4, 0), (2,))),
    "due": Participation(fraction=0.2, within_rounds=4),
}
EVERY = pytest.mark.parametrize("rule", sorted(SELECTIONS))
SIZES = (5, 7, 40)


def settings_of(rule: str) -> Participation:
    return SETTINGS.get(rule) or Participation(rule=rule)


@EVERY
def test_the_rule_is_the_one_that_is_named(rule: str) -> None:
    assert settings_of(rule).selection == rule


@EVERY
@pytest.mark.parametrize("clients", SIZES)
def test_an_answer_is_sorted_unique_in_range_and_never_empty(rule: str, clients: int) -> None:
    for number in range(20):
        asked = select(settings_of(rule), Moment(number, seed=3, clients=clients))
        assert asked == tuple(sorted(set(asked)))
        assert asked
        assert set(asked) <= set(range(clients))
        assert all(type(client) is int for client in asked)


@EVERY
def test_the_same_seed_and_round_give_the_same_answer_in_any_order(rule: str) -> None:
    moments = [Moment(number, seed=3, clients=40) for number in range(12)]
    forwards = [select(settings_of(rule), moment) for moment in moments]
    backwards = [select(settings_of(rule), moment) for moment in reversed(moments)]
    assert forwards == backwards[::-1]


@EVERY
def test_the_settings_can_be_written_down_and_read_back(rule: str) -> None:
    settings = settings_of(rule)
    assert Participation.model_validate_json(settings.model_dump_json()) == settings
