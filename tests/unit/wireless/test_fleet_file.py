import numpy as np
import pytest

from leanfed.errors import DataError, StorageError
from leanfed.wireless.fleet import FleetSettings, SampledFleet
from leanfed.wireless.fleet_file import read_fleet, write_fleet

SETTINGS = FleetSettings(devices=2)
HEADER = "device,gain,power_w,cpu_hz"


def csv(folder, *lines, name="fleet.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["fleet.csv", "fleet.parquet"])
def test_a_written_trace_reads_back_to_the_same_numbers(tmp_path, name):
    settings = FleetSettings(devices=3, rayleigh=True, bandwidth_hz=(1e7, 5e7))
    states = [SampledFleet(settings, seed=2).state(number) for number in range(4)]
    write_fleet(tmp_path / name, states)
    fleet = read_fleet(tmp_path / name, settings, clients=3)
    for number, state in enumerate(states):
        again = fleet.state(number)
        for field in ("gain", "power_w", "cpu_hz", "energy_coefficient", "bandwidth_hz"):
            np.testing.assert_array_equal(getattr(again, field), getattr(state, field))


def test_units_in_the_column_names_become_si(tmp_path):
    path = csv(tmp_path, "device,distance_m,power_dbm,cpu_ghz,bandwidth_mhz", "a,1000,30,1.5,20", "b,100,20,2,20")
    state = read_fleet(path, SETTINGS).state(0)
    np.testing.assert_allclose(state.gain, [10**-12.81, 10**-9.05])
    np.testing.assert_allclose(state.power_w, [1.0, 0.1])
    np.testing.assert_allclose(state.cpu_hz, [1.5e9, 2e9])
    assert state.bandwidth_hz == 20e6


def test_a_gain_in_decibels_may_be_negative(tmp_path):
    path = csv(tmp_path, "device,gain_db,power_dbm,cpu_hz", "a,-100,-3,1e9")
    assert read_fleet(path, SETTINGS).state(0).gain == pytest.approx(1e-10)


def test_what_the_file_leaves_out_comes_from_the_settings(tmp_path):
    settings = FleetSettings(bandwidth_hz=7e6, energy_coefficient=3e-28)
    state = read_fleet(csv(tmp_path, HEADER, "a,1e-10,0.1,1e9"), settings).state(0)
    assert state.bandwidth_hz == 7e6
    np.testing.assert_array_equal(state.energy_coefficient, [3e-28])


def test_a_measurement_holds_until_the_next(tmp_path):
    path = csv(tmp_path, "round," + HEADER, "10,a,3e-10,0.1,1e9", "2,a,2e-10,0.1,1e9")
    fleet = read_fleet(path, SETTINGS)
    gains = [fleet.state(number).gain.item() for number in (0, 2, 9, 10, 99)]
    assert gains == [2e-10, 2e-10, 2e-10, 3e-10, 3e-10]


def test_rows_may_come_in_any_order(tmp_path):
    path = csv(
        tmp_path, "round," + HEADER, "0,a,1e-10,0.1,1e9", "1,b,4e-10,0.1,1e9", "1,a,3e-10,0.1,1e9", "0,b,2e-10,0.1,1e9"
    )
    fleet = read_fleet(path, SETTINGS)
    assert fleet.names == ("a", "b")
    np.testing.assert_array_equal(fleet.state(1).gain, [3e-10, 4e-10])


def test_more_devices_than_clients_takes_the_first(tmp_path):
    fleet = read_fleet(csv(tmp_path, HEADER, "a,1e-10,0.1,1e9", "b,2e-10,0.1,1e9"), SETTINGS, clients=1)
    assert fleet.devices == 1
    np.testing.assert_array_equal(fleet.state(0).gain, [1e-10])


ROW = "a,1e-10,0.1,1e9"
REFUSALS = {
    "missing column": ("device,gain,power_w", "a,1e-10,0.1", "no column for the cpu.*'cpu_hz' or 'cpu_ghz'"),
    "no device": ("gain,power_w,cpu_hz", "1e-10,0.1,1e9", "no column 'device'"),
    "unknown unit": ("device,gain,power_mw,cpu_hz", ROW, "'power_mw' has the unknown unit 'mw'.*power_w, power_dbm"),
    "unknown column": (HEADER + ",colour", ROW + ",red", "unknown column 'colour'"),
    "misspelt column": ("device,gain,power_w,cpuhz", ROW, "'cpuhz'; did you mean 'cpu_hz'"),
    "same quantity twice": (HEADER + ",power_dbm", ROW + ",20", "power twice, as 'power_w' and 'power_dbm'"),
    "negative": (HEADER, "a,1e-10,-0.1,1e9", "row 1: power_w is -0.1"),
    "nan": (HEADER, f"{ROW}\nb,NaN,0.1,1e9", "row 2: gain is nan"),
    "infinite": (HEADER, "a,inf,0.1,1e9", "row 1: gain is inf"),
    "zero clock": (HEADER, f"{ROW}\nb,1e-10,0.1,0", "row 2: cpu_hz is 0.0.*above zero"),
    "empty field": (HEADER, f"{ROW}\nb,,0.1,1e9", "row 2: gain is empty"),
    "text": (HEADER, "a,1e-10,strong,1e9", "row 1: power_w is 'strong', not a number"),
    "unnamed device": (HEADER, ",1e-10,0.1,1e9", "row 1: device is empty"),
    "half a round": ("round," + HEADER, f"0.5,{ROW}", "row 1: round is 0.5"),
    "doubled row": (HEADER, f"{ROW}\n{ROW}", "row 2: device 'a' in round 0 is also row 1"),
    "gap in a trace": ("round," + HEADER, f"0,{ROW}\n0,b,1e-10,0.1,1e9\n1,{ROW}", "no row for device 'b' in round 1"),
    "two bands": (HEADER + ",bandwidth_hz", f"{ROW},1e6\nb,1e-10,0.1,1e9,2e6", "bandwidth_hz differs .* round 0"),
}


@pytest.mark.parametrize(("header", "rows", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_bad_files_are_refused_naming_row_and_field(tmp_path, header, rows, message):
    with pytest.raises(DataError, match=message):
        read_fleet(csv(tmp_path, header, rows), SETTINGS)


def test_fewer_devices_than_clients_are_refused(tmp_path):
    with pytest.raises(DataError, match="1 devices for 2 clients"):
        read_fleet(csv(tmp_path, HEADER, ROW), SETTINGS, clients=2)


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(DataError, match="0 devices"):
        read_fleet(csv(tmp_path, HEADER), SETTINGS)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"absent\.csv"):
        read_fleet(tmp_path / "absent.csv", SETTINGS)


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"'\.xlsx'"):
        read_fleet(tmp_path / "fleet.xlsx", SETTINGS)


def test_a_damaged_parquet_file_is_refused(tmp_path):
    path = tmp_path / "fleet.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(DataError, match="not a readable table"):
        read_fleet(path, SETTINGS)


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_bytes(b"")
    with pytest.raises(DataError, match="not a readable table"):
        read_fleet(path, SETTINGS)
