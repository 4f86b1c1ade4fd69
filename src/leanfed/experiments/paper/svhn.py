"""SVHN with ResNet-18 under five bandwidths: the figure. The runs are not there yet.

Its table of k and r needs no training: bandwidth.py.
"""

from __future__ import annotations

from leanfed.experiments.catalogue import ENTRIES, Claim
from leanfed.experiments.paper.figures import ends_highest, figure
from leanfed.experiments.paper.protocol import Study

STUDY = Study(
    dataset="SVHN",
    partitions={
        name: ("joint_svhn", (f"radio.fleet.bandwidth_hz={width}",))
        for name, width in {
            "10 MHz": "10e6",
            "30 MHz": "30e6",
            "50 MHz": "50e6",
            "10~50 MHz": "[10e6, 50e6]",
            "20~40 MHz": "[20e6, 40e6]",
        }.items()
    },
    targets=dict.fromkeys(("10 MHz", "30 MHz", "50 MHz", "10~50 MHz", "20~40 MHz"), (0.7, 0.8)),
    quick=(),
)
ENTRIES.add(
    "svhn-accuracy",
    figure(
        STUDY,
        "accuracy",
        [
            Claim(
                "FLPDSP-OPT (safe) keeps its accuracy at every bandwidth: within a point of the best",
                "high time efficiency and test accuracy",
                ends_highest("safe", STUDY, 0.01),
            ),
        ],
        place="Figure: test accuracy vs. latency on SVHN for different bandwidth cases",
        pending=(
            "its runs (configs/joint_svhn.toml, 1,000 rounds of ResNet-18 for every method and bandwidth) take days on "
            "two cores"
        ),
    ),
)
