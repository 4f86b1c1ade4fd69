"""Who is asked in a round, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from leanfed.errors import LeanfedError, SettingsError
from leanfed.rounds.selection import SELECTIONS, Moment, Participation, overdue, select
from leanfed.runs.settings import Settings
from leanfed.streams import stream


def asked(number: int = 0, clients: int = 10, **settings: object) -> tuple[int, ...]:
    return select(Participation.model_validate(settings), Moment(number, seed=1, clients=clients))


def test_a_fraction_is_drawn_from_the_stream_of_seed_and_round() -> None:
    drawn = stream(1, "cohort", 4).choice(10, 3, replace=False)
    assert asked(4, fraction=0.3) == tuple(sorted(drawn.tolist()))


def test_everyone_is_asked_once_in_within_rounds_and_a_share_beside_them() -> None:
    rounds = [set(asked(number, 50, fraction=0.04, within_rounds=7)) for number in range(30)]
    for start in range(24):
        assert set.union(*rounds[start : start + 7]) == set(range(50))
    assert all(2 <= len(some) <= 8 + 2 for some in rounds)  # a seventh of fifty, and two drawn


def test_available_asks_everyone_who_can_be_reached() -> None:
    settings = Participation(rule="available")
    assert select(settings, Moment(0, 0, 4)) == (0, 1, 2, 3)
    assert select(settings, Moment(0, 0, 4, reachable={3, 1})) == (1, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rule": "cohorts"}, "needs participation.cohorts"),
        ({"rule": "due"}, "needs participation.within_rounds"),
        ({"rule": "fraction", "cohorts": [[0]]}, "is for the rule 'cohorts', not for 'fraction'"),
        ({"cohorts": [[0]], "within_rounds": 3}, "is for the rule 'due', not for 'cohorts'"),
        ({"rule": "available", "fraction": 0.5}, "asks everyone"),
    ],
)
def test_what_a_rule_would_not_read_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Participation.model_validate(wrong)


def test_an_unknown_rule_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"participation.rule is 'avaliable', .* did you mean 'available'\?"):
        Settings.from_values({"participation": {"rule": "avaliable"}})


def test_a_selection_that_breaks_the_contract_is_named() -> None:
    for answer in ([], [1, 1], [10], [-1]):
        SELECTIONS.add("wrong", lambda settings, now, answer=answer: answer)
        try:
            with pytest.raises(LeanfedError, match="'wrong' must ask different clients from 0 to 9, at least one"):
                asked(rule="wrong")
        finally:
            SELECTIONS.remove("wrong")


def test_whoever_was_absent_for_all_but_one_of_the_rounds_is_overdue() -> None:
    assert overdue(np.array([0, 8, 9, 12]), 10).tolist() == [False, False, True, True]
    assert overdue(np.array([0, 3]), 1).all()
