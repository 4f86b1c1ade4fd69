import numpy as np
import pytest

from leanfed.wireless.units import db_to_ratio, dbm_to_w, ratio_to_db, w_to_dbm


@pytest.mark.parametrize(
    ("dbm", "watts"),
    [(20.0, 0.1), (28.0, 0.630957344), (33.0, 1.99526231), (-174.0, 3.98107171e-21)],
    ids=["weakest device", "strongest device", "base station", "noise per hertz"],
)
def test_values_of_the_papers_table_in_watts(dbm, watts):
    assert dbm_to_w(dbm) == pytest.approx(watts, rel=1e-8)


def test_three_decibels_are_about_a_factor_of_two():
    assert db_to_ratio(3.0) == pytest.approx(1.995262315)


def test_conversions_undo_one_another():
    dbm = np.array([-174.0, -30.0, 0.0, 20.0, 33.0])
    np.testing.assert_allclose(w_to_dbm(dbm_to_w(dbm)), dbm, atol=1e-12)
    np.testing.assert_allclose(ratio_to_db(db_to_ratio(dbm)), dbm, atol=1e-12)
