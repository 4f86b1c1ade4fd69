"""The paper's parameter table and the settings of the protocol side by side; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

from leanfed.reproduction.catalogue import ENTRIES, Claim, Entry, Form, Measured, Outcome, Scale
from leanfed.reproduction.judging import Bound, Every, key_of
from leanfed.reproduction.paper.protocol import CONFIGS
from leanfed.runs.settings import Settings
from leanfed.wireless.cost import BASE_STATION_POWER_W
from leanfed.wireless.units import w_to_dbm

PAPER = {
    "path loss at 1 km (dB)": 128.1,
    "path loss per decade (dB)": 37.6,
    "radius (m)": 200.0,
    "lowest CPU frequency (GHz)": 0.5,
    "highest CPU frequency (GHz)": 3.0,
    "lowest power (dBm)": 20.0,
    "highest power (dBm)": 28.0,
    "base station's power (dBm)": 33.0,
    "noise (dBm/Hz)": -174.0,
    "bandwidth (MHz)": 10.0,
    "devices": 100.0,
    "batch size": 32.0,
}
OTHER = {"rounds": 100.0, "learning rate": 0.01}  # where the protocol departs; see the entry `literal`


def _measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
    settings = Settings.from_toml(CONFIGS / "joint_alpha01.toml")
    fleet = settings.radio.fleet
    band = fleet.bandwidth_hz if isinstance(fleet.bandwidth_hz, float) else fleet.bandwidth_hz[0]
    ours = (
        fleet.path_loss_at_1km_db,
        fleet.path_loss_per_decade_db,
        fleet.radius_m,
        fleet.cpu_hz[0] / 1e9,
        fleet.cpu_hz[1] / 1e9,
        *fleet.power_dbm,
        round(float(w_to_dbm(BASE_STATION_POWER_W)), 9),
        fleet.noise_dbm_per_hz,
        band / 1e6,
        float(settings.task.partition.clients),
        float(settings.training.batch_size),
        float(settings.rounds),
        settings.training.learning_rate,
    )
    return Measured([({"parameter": name}, 0, value) for name, value in zip({**PAPER, **OTHER}, ours, strict=True)])


def _same(name: str, value: float) -> Bound:
    return Bound({"parameter": name}, above=value - 1e-9, below=value + 1e-9)


ENTRIES.add(
    "parameters",
    Entry(
        title="Simulation parameters",
        place="Table: simulation parameters",
        claims=(
            Claim(
                "radio, devices and batch size are the paper's",
                "path loss, radius, CPU, powers, noise, bandwidth, N, batch size",
                Every(tuple(_same(name, value) for name, value in PAPER.items())),
            ),
            Claim(
                "rounds and learning rate are the paper's",
                "T = 100, learning rate 0.01",
                Every(tuple(_same(name, value) for name, value in OTHER.items())),
                "its literal setting cannot reach its accuracies: `leanfed reproduce literal`",
            ),
        ),
        measure=_measure,
        published={key_of({"parameter": name}): value for name, value in {**PAPER, **OTHER}.items()},
        form=Form(rows=("parameter",)),
        settings="configs/joint_alpha01.toml",
    ),
)
