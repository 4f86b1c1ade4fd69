"""CIFAR-10 with ResNet-18 at a reduced size: the two figures and the cost table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leanfed.reproduction.catalogue import ENTRIES, Claim
from leanfed.reproduction.paper.costs import cost_table, published_costs, shares, soonest
from leanfed.reproduction.paper.figures import ends_highest, figure, loss_claims, soonest_in_every_panel
from leanfed.reproduction.paper.protocol import EQUAL, METHODS, PUBLISHED, Study, longer

ABOUT = {
    "settings": "configs/joint_cifar10_small.toml; baselines with algorithm.name and allocation.rule = own",
    "reduced": "the ImageNet stem at 32x32 in place of the 3x3 stem (a fifteenth of the arithmetic); ten clients "
    "instead of 100, all in every round; 48 rounds, 96 for the fast form, whose rounds take about half as long "
    "(48 were run first: 0.796 on Class-2 and 0.694 at alpha 0.1, in half of FedPer's seconds); the fast form and "
    "three baselines; one seed. joint_cifar10.toml has the full size, whose 1,000 rounds take days on two cores",
}
DIRICHLET = 'task.partition={{kind = "dirichlet", alpha = {alpha}, clients = 10}}'
STUDY = Study(
    dataset="CIFAR-10",
    partitions={
        "Class-4": ("joint_cifar10_small", ("task.partition.classes_per_client=4",)),
        "Class-2": ("joint_cifar10_small", ()),
        "alpha 0.5": ("joint_cifar10_small", (DIRICHLET.format(alpha=0.5),)),
        "alpha 0.1": ("joint_cifar10_small", (DIRICHLET.format(alpha=0.1),)),
    },
    targets={  # the paper's two, and 50 % where no method reached those, added after the runs
        "Class-4": (0.6, 0.7, 0.5),
        "Class-2": (0.7, 0.8),
        "alpha 0.5": (0.7, 0.8, 0.5),
        "alpha 0.1": (0.7, 0.8),
    },
    quick=("rounds=1", "training.batch_size=8", "evaluation.renew_statistics=1", "evaluation.clients=2"),
    only={"FLPDSP-OPT fast": longer(96, 0.985), **dict.fromkeys(("FedPer", "LG-FedAvg", "FedAvg"), ())},
)
Blocks = Mapping[tuple[str, float], Mapping[str, Sequence[float]]]
CLASS_4: Blocks = {
    ("latency_s", 0.6): {"LG-FedAvg": (12091,), "FedPer": (7787,), "FLPDSP-OPT": (3912,)},
    ("latency_s", 0.7): {"LG-FedAvg": (25011,), "FedPer": (20141,), "FLPDSP-OPT": (14188,)},
    ("energy_j", 0.6): {"LG-FedAvg": (19919,), "FedPer": (13198,), "FLPDSP-OPT": (10926,)},
    ("energy_j", 0.7): {"LG-FedAvg": (41884,), "FedPer": (34244,), "FLPDSP-OPT": (40489,)},
    ("gigabits", 0.6): {"LG-FedAvg": (245.65,), "FedPer": (196.03,), "FLPDSP-OPT": (134.89,)},
    ("gigabits", 0.7): {"LG-FedAvg": (512.88,), "FedPer": (504.72,), "FLPDSP-OPT": (487.61,)},
    ("tflops", 0.6): {"LG-FedAvg": (227.38,), "FedPer": (133.72,), "FLPDSP-OPT": (140.14,)},
    ("tflops", 0.7): {"LG-FedAvg": (474.72,), "FedPer": (344.32,), "FLPDSP-OPT": (508.06,)},
}
OTHERS: Blocks = {  # Class-2, alpha 0.5, alpha 0.1
    ("latency_s", 0.7): {"LG-FedAvg": (2959, 1737, 1036), "FedPer": (2979, 1797, 1391), "FLPDSP-OPT": (1546, 819, 546)},
    ("latency_s", 0.8): {
        "LG-FedAvg": (10682, 3512, 1379),
        "FedPer": (7601, 3394, 1797),
        "FLPDSP-OPT": (5004, 1546, 728),
    },
    ("energy_j", 0.7): {
        "LG-FedAvg": (4958, 2865, 1809),
        "FedPer": (4850, 2964, 2309),
        "FLPDSP-OPT": (4396, 2312, 1647),
    },
    ("energy_j", 0.8): {
        "LG-FedAvg": (17507, 5795, 2329),
        "FedPer": (12826, 5518, 2964),
        "FLPDSP-OPT": (14122, 4396, 2094),
    },
    ("gigabits", 0.7): {
        "LG-FedAvg": (61.42, 36.11, 21.67),
        "FedPer": (73.53, 44.10, 34.31),
        "FLPDSP-OPT": (54.91, 28.51, 19.61),
    },
    ("gigabits", 0.8): {
        "LG-FedAvg": (216.71, 72.23, 28.89),
        "FedPer": (191.11, 83.32, 44.11),
        "FLPDSP-OPT": (173.37, 54.91, 26.03),
    },
    ("tflops", 0.7): {
        "LG-FedAvg": (56.84, 33.42, 25.06),
        "FedPer": (50.14, 31.18, 23.42),
        "FLPDSP-OPT": (55.62, 29.62, 19.82),
    },
    ("tflops", 0.8): {
        "LG-FedAvg": (201.58, 66.87, 30.74),
        "FedPer": (130.38, 56.85, 29.88),
        "FLPDSP-OPT": (178.86, 54.65, 26.36),
    },
}
COSTS = {
    key: value
    for key, value in {
        **published_costs(CLASS_4, ("Class-4",)),
        **published_costs(OTHERS, ("Class-2", "alpha 0.5", "alpha 0.1")),
    }.items()
    if dict(key)["method"] in (PUBLISHED, *STUDY.of(METHODS))
}
RATIOS = "first target: 0.50, 0.52, 0.46, 0.39; second: 0.70, 0.66, 0.46, 0.41 (Class-4, Class-2, alpha 0.5, alpha 0.1)"
SHORT = "nobody comes to 70 % on Class-4 and at alpha 0.5, or to 80 % at alpha 0.1, in so few rounds"
TABLED = ("LG-FedAvg, equal", "FedPer, equal")  # the baselines of the paper's table

ENTRIES.add(
    "cifar10-cost",
    cost_table(
        STUDY,
        COSTS,
        [
            Claim(
                "FLPDSP-OPT (fast) needs the paper's share of FedPer's latency, equal shares",
                RATIOS,
                shares("fast", "FedPer, equal", STUDY, COSTS),
            ),
            Claim(
                "FLPDSP-OPT (fast) has the lowest latency of all",
                "lowest in all eight columns (of LG-FedAvg, FedPer)",
                soonest("fast", tuple(STUDY.of(EQUAL)), STUDY),
                SHORT,
            ),
            Claim(
                "FLPDSP-OPT (fast) sends the fewest bits",
                "fewest in all eight columns (of LG-FedAvg, FedPer)",
                soonest("fast", TABLED, STUDY, "uplink (Gbit)"),
                SHORT,
            ),
            Claim(
                "FLPDSP-OPT (fast) spends the least energy",
                "least in six of eight columns (FedPer's is lower for the second target of Class-4 and Class-2)",
                soonest("fast", TABLED, STUDY, "energy (J)"),
            ),
        ],
        place="Table: communication and computation costs for CIFAR-10",
        seeds=1,
        **ABOUT,
    ),
)
ENTRIES.add(
    "cifar10-accuracy",
    figure(
        STUDY,
        "accuracy",
        [
            Claim(
                "FLPDSP-OPT (fast) has the fastest convergence",
                "the fastest in all four cases",
                soonest_in_every_panel("fast", STUDY),
                SHORT,
            ),
            Claim(
                "FLPDSP-OPT (fast) ends at the highest accuracy, within half a point",
                "the highest in all four cases",
                ends_highest("fast", STUDY, 0.005),
            ),
        ],
        place="Figure: test accuracy vs. latency on CIFAR-10",
        **ABOUT,
    ),
)
ENTRIES.add(
    "cifar10-loss",
    figure(STUDY, "loss", loss_claims(STUDY, ("fast",)), place="Figure: loss vs. latency on CIFAR-10", **ABOUT),
)
