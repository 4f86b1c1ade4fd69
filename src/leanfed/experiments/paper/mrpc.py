"""MRPC with BERT and LoRA: loss, accuracy and F1 against latency. The runs are not there yet."""

from __future__ import annotations

from leanfed.experiments.catalogue import ENTRIES, Claim, Entry
from leanfed.experiments.paper.figures import FINAL, figure, in_order, soonest_in_every_panel
from leanfed.experiments.paper.protocol import Study

PENDING = "its model (BERT with LoRA) has no settings file here yet"
STUDY = Study(
    dataset="MRPC",
    partitions={f"alpha {a}": ("joint_mrpc", (f"task.partition.alpha={a}",)) for a in ("1", "2")},
    targets=dict.fromkeys(("alpha 1", "alpha 2"), (0.7, 0.75)),
    quick=(),
)
ENTRIES.add(
    "mrpc-accuracy",
    figure(
        STUDY,
        "accuracy",
        [
            *(
                Claim(
                    f"{name} falls below FedAvg on this harder task",
                    "final test accuracy even falls below FedAvg",
                    in_order("FedAvg, equal", f"{name}, equal", FINAL, STUDY),
                )
                for name in ("LG-FedAvg", "FedMask")
            ),
            Claim(
                "FLPDSP-OPT (fast) converges fastest",
                "a significant advantage in time efficiency",
                soonest_in_every_panel("fast", STUDY),
            ),
        ],
        place="Figure: test accuracy vs. latency on MRPC for BERT-Base with LoRA",
        pending=PENDING,
    ),
)
ENTRIES.add("mrpc-loss", figure(STUDY, "loss", (), place="Figure: loss vs. latency on MRPC", pending=PENDING))
ENTRIES.add(
    "mrpc-f1",
    Entry(title="F1 score against latency on MRPC", place="Figure: F1 score vs. latency on MRPC", pending=PENDING),
)
