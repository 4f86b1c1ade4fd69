"""Run folders made by hand: every number in them is known, and they can be as large as a test needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

SETTINGS: dict[str, Any] = {
    "name": "by hand",
    "seed": 0,
    "rounds": 4,
    "task": {
        "dataset": "mnist-5k",
        "model": "lenet5",
        "partition": {"kind": "class", "classes_per_client": 2, "clients": 2},
    },
    "algorithm": {"name": "flpdsp"},
    "allocation": {"rule": "joint", "form": "fast", "deadline_s": 0.8, "energy_budget_j": 0.3},
    "radio": {
        "value_bits": 32,
        "fleet": {"radius_m": 200.0, "path_loss_at_1km_db": 128.1, "path_loss_per_decade_db": 37.6, "hold": []},
    },
    "run": {"threads": 1},
}


def write_run(
    folder: Path, *, rounds: int = 4, clients: int = 2, every: int = 1, seed: int = 0, **changes: Any
) -> Path:
    """A finished run in which client n of round t computes 0.1 (n + 1) s, uploads 0.2 s and spends 0.01 (n + 1) J."""
    folder.mkdir(parents=True)
    settings = json.loads(json.dumps(SETTINGS)) | {"seed": seed, "rounds": rounds} | changes
    settings["task"]["partition"]["clients"] = clients
    accuracy = np.linspace(0.1, 1.0, rounds)
    write = {"settings": settings, "summary": {"format": 1}, "world": _world(clients), "environment": _environment()}
    for name, value in write.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    _rounds(rounds, clients, every, accuracy).write_parquet(folder / "rounds.parquet")
    _clients(rounds, clients).write_parquet(folder / "clients.parquet")
    _evaluations(rounds, clients, every, accuracy).write_parquet(folder / "evaluations.parquet")
    _fleet(rounds, clients).write_parquet(folder / "fleet.parquet")
    (folder / "events.jsonl").write_text("".join(json.dumps(_plan(t, clients)) + "\n" for t in range(rounds)))
    return folder


def _world(clients: int) -> dict[str, Any]:
    return {
        "shared_size": 10,
        "private_size": 5,
        "label_counts": [[10 * (n + 1), 0, 5] for n in range(clients)],
        "test_samples": [3] * clients,
        "majority_guess": [0.5] * clients,
        "sources": {"seed": {"source": "chosen", "meaning": "The seed of every random stream."}},
    }


def _environment() -> dict[str, Any]:
    return {"python": "3.11.0", "platform": "Linux", "versions": {"leanfed": "0"}, "command": "leanfed run x.toml"}


def _rounds(rounds: int, clients: int, every: int, accuracy: Any) -> pl.DataFrame:
    number = np.arange(rounds)
    tested = [float(a) if (t + 1) % every == 0 else None for t, a in enumerate(accuracy)]
    return pl.DataFrame(
        {
            "round": number,
            "participants": np.full(rounds, clients),
            "accuracy": tested,
            "loss": [None if a is None else 1.0 - a for a in tested],
            "worst_decile": [None if a is None else a / 2 for a in tested],
            "majority_guess": np.full(rounds, 0.5),
            "latency_s": np.full(rounds, 0.1 * clients + 0.2),
            "energy_j": np.full(rounds, 0.01 * clients * (clients + 1) / 2),
            "upload_bits": np.full(rounds, 1e9),
            "exact_bits": np.full(rounds, 100.0 * clients),
            "paper_bits": np.full(rounds, 120.0 * clients),
            "coded_bits": [None] * rounds,
            "download_bits": np.full(rounds, 320.0),
            "flops": np.full(rounds, 2e12),
        }
    )


def _clients(rounds: int, clients: int) -> pl.DataFrame:
    number, client = np.repeat(np.arange(rounds), clients), np.tile(np.arange(clients), rounds)
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "round": number,
            "client": client,
            "k": rng.uniform(0.01, 0.05, len(client)),
            "r": rng.uniform(0.5, 1.0, len(client)),
            "share": np.full(len(client), 1 / clients),
            "computation_s": 0.1 * (client + 1),
            "communication_s": np.full(len(client), 0.2),
            "energy_j": 0.01 * (client + 1),
        }
    )


def _evaluations(rounds: int, clients: int, every: int, accuracy: Any) -> pl.DataFrame:
    number = np.arange(every - 1, rounds, every)
    values = np.repeat(accuracy[number], clients) - 0.01 * np.tile(np.arange(clients), len(number)) / clients
    return pl.DataFrame(
        {
            "round": np.repeat(number, clients),
            "client": np.tile(np.arange(clients), len(number)),
            "accuracy": values,
            "loss": 1.0 - values,
        }
    )


def _fleet(rounds: int, clients: int) -> pl.DataFrame:
    """Client n stands at 50 (n + 1) m, modulo 200."""
    distance_km = np.tile(0.05 * (1 + np.arange(clients) % 4), rounds)
    return pl.DataFrame(
        {
            "round": np.repeat(np.arange(rounds), clients),
            "device": np.tile(np.arange(clients), rounds),
            "gain": 10 ** (-(128.1 + 37.6 * np.log10(distance_km)) / 10),
        }
    )


def _plan(number: int, clients: int) -> dict[str, Any]:
    out = [
        {"client": n, "why": "the round's 0.13 s end before its 0.22 s", "needs": 0.22} for n in range(0, clients, 3)
    ]
    tried = [{"k": 0.01 * n, "deadline_s": 0.1, "participants": clients, "worth_per_s": float(n)} for n in range(1, 6)]
    chosen = {"deadline_s": 0.15, "k": 0.05, "worth_per_s": 5.0, "participants": clients}
    said = {"event": "plan", "round": number, "seconds": 0.02, "solver": "pace", "status": "solved", "trace": []}
    return {**said, **chosen, "alternatives": tried, "excluded": out, "starved": []}
