"""What every contender shares: the round that it is given, and taking turns. Needs Python and NumPy only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PIPE, ROUND, SCHEDULE = "PEERS_PIPE", "PEERS_ROUND", "PEERS_SCHEDULE"  # environment variables of a contender
FLOATS = np.dtype("<f4")
Flat = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GivenRound:
    """The same for everybody: where to start, and which samples each client trains on, in this order."""

    inputs: npt.NDArray[np.float32]  # (clients, steps, batch, 1, 32, 32), normalised
    labels: npt.NDArray[np.int64]  # (clients, steps, batch)
    weights: Mapping[str, Flat]  # by name, in the order in which a flat vector holds them
    learning_rate: float

    @property
    def clients(self) -> int:
        """How many take part."""
        return len(self.labels)

    @property
    def steps(self) -> int:
        """Local steps of a client."""
        return self.labels.shape[1]

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.labels.shape[2]

    def samples(self, client: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """A client's samples in the order of its steps: (steps x batch, 1, 32, 32), (steps x batch,)."""
        return self.inputs[client].reshape(-1, *self.inputs.shape[3:]), self.labels[client].reshape(-1)

    def flat(self, weights: Mapping[str, Any]) -> Flat:
        """Weights of these names as one vector."""
        return np.concatenate([np.asarray(weights[name], dtype=np.float32).reshape(-1) for name in self.weights])

    def write(self, file: Path) -> None:
        """To one .npz file."""
        weights = {f"weights/{name}": value for name, value in self.weights.items()}
        rate = np.array(self.learning_rate)
        with file.open("wb") as stream:
            np.savez(stream, inputs=self.inputs, labels=self.labels, learning_rate=rate, **weights)


def read_round(file: Path) -> GivenRound:
    """What `GivenRound.write` has written."""
    with np.load(file) as held:
        weights = {name.partition("/")[2]: held[name] for name in held.files if name.startswith("weights/")}
        return GivenRound(held["inputs"], held["labels"], weights, float(held["learning_rate"]))


def given_round() -> GivenRound:
    """The round of this contender."""
    return read_round(Path(os.environ[ROUND]))


class Turns:
    """Waits for its turn, measures the rounds of the turn, and tells the driver; the last weights go along.

    A contender calls `begin` right before its first round and `after_round` after every one, `rounds` times.
    """

    def __init__(self, *packages: str) -> None:
        self._left = [int(count) for count in os.environ[SCHEDULE].split(",")]  # rounds of each turn
        self.rounds = sum(self._left)
        self._pipe = Connection(int(os.environ[PIPE]))
        self._versions = {package: version(package) for package in packages}
        self._seconds: list[float] = []
        self._began = 0.0

    def begin(self) -> None:
        """Say that everything is set up, and wait for the first turn."""
        self._pipe.send({"versions": self._versions})
        self._wait()

    def after_round(self, weights: Callable[[], Flat]) -> None:
        """A round is done, with nothing left to compute; at the end of a turn `weights` is asked for the model."""
        self._seconds.append(time.perf_counter() - self._began)
        if len(self._seconds) == self._left[0]:
            self._pipe.send({"seconds": self._seconds, "weights": weights().astype(FLOATS).tobytes()})
            self._seconds = []
            del self._left[0]
            if self._left:
                self._wait()
        self._began = time.perf_counter()

    def _wait(self) -> None:
        self._pipe.recv()
        self._began = time.perf_counter()
