"""One engine on every rank: each computes its own clients, and the ranks add up what they have."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.contract import PRIVATE, SIGNALS, ClientState, ServerState
from leanfed.compression import exact
from leanfed.errors import LeanfedError, SettingsError
from leanfed.records import Floats, RoundPlan
from leanfed.rounds.client_store import ClientStore, States
from leanfed.rounds.engine import Engine
from leanfed.rounds.evaluation import Hits, Results
from leanfed.rounds.exchange import Answers
from leanfed.rounds.ranks import Ranks, SharedError
from leanfed.rounds.world import World

COLUMNS = 5 + len(SIGNALS)  # of a participant: loss, samples, entries, bits, reach, and what it reports


def why_one_rank(world: World) -> str | None:
    """Why a world cannot be spread over ranks, as a clause; None if it can."""
    if world.aggregation.single_uploads:
        return f"the aggregation rule {type(world.aggregation).__name__} looks at every upload by itself"
    if world.tamperers:
        return f"adversary.kind = {world.adversary.kind!r} looks at every upload by itself"
    if world.adversary.kind == "backdoor":
        return "adversary.kind = 'backdoor' tests every model once more"
    if world.ledger is not None:
        return "privacy.unit = 'client' clips every upload by itself"
    return None


def check_spread(world: World, ranks: Ranks) -> None:
    """Refuse a world that needs single uploads, which do not travel between ranks."""
    if ranks.size > 1 and (reason := why_one_rank(world)):
        raise SettingsError(
            f"This run cannot be spread over {ranks.size} ranks: {reason}, and ranks exchange only their sum. "
            "Run it in one process (run.threads for more cores), or change that setting."
        )


@final
class RankedEngine(Engine):
    """An engine that computes this rank's share of a round, with the answers of all ranks together."""

    single_uploads = False

    def __init__(self, inner: Engine, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        self.name, self.wire = inner.name, inner.wire
        self.reason = f"{inner.reason} Clients are spread over {ranks.size} ranks."
        self.world, self.learner = inner.world, inner.learner

    @override
    def exchange(self, server: ServerState, clients: ClientStore, plan: RoundPlan, *, single: bool) -> Answers:
        own, failure = None, None
        mine = set(self.ranks.owns(plan.participants))
        places = [place for place, client in enumerate(plan.participants) if client in mine]
        try:
            if places:
                own = self.inner.exchange(server, clients, plan.only(places), single=False)
        except LeanfedError as error:
            failure = error
        columns = self._columns(own, places, len(plan.participants), failure, _digest(server, plan))
        sums = self._sums(own, len(server.shared))
        self.ranks.add(sums)
        return Answers(
            gamma=self.world.task.gamma[list(plan.participants)],
            loss=columns[0],
            samples=columns[1].astype(np.int64),
            entries=columns[2].astype(np.int64),
            coded_bits=None if self.wire is None else columns[3],
            total=sums[: len(server.shared)],
            uploads=(),
            statistics=sums[len(server.shared) :] if self.world.statistics_size else None,
            reach=columns[4],
            signals=columns[5:].T if self.world.reports else None,
        )

    @override
    def test(self, server: ServerState, clients: ClientStore, some: Sequence[int]) -> Results:
        def own() -> tuple[list[int], list[float], dict[str, list[float]], tuple[int, int, int]]:
            mine = self.ranks.owns(some)
            found = self.inner.test(server, clients, mine) if mine else Results.none(self.world)
            scores = {name: values.tolist() for name, values in found.scores.items()}
            return mine, found.loss.tolist(), scores, (found.hits.true, found.hits.named, found.hits.present)

        loss = np.zeros(self.world.task.clients)
        scores = {name: np.zeros(self.world.task.clients) for name in self.world.task.loss.scores}
        hits = Hits(0, 0, 0)
        for tested, losses, values, counts in self.ranks.agree(own):
            loss[tested] = losses
            for name, score in scores.items():
                score[tested] = values[name]
            hits += Hits(*counts)
        chosen = list(some)
        return Results(loss[chosen], {name: score[chosen] for name, score in scores.items()}, hits)

    @override
    def states(self, clients: ClientStore, some: Sequence[int]) -> States:
        """The states of a few clients, on every rank."""
        mine = {client: clients[client] for client in self.ranks.owns(some)}
        sizes: dict[str, dict[str, int]] = {}
        for told in self.ranks.gather({str(client): _sizes(state) for client, state in mine.items()}):
            sizes |= told
        return {client: self._state(mine.get(client), sizes[str(client)]) for client in some}

    def _state(self, own: ClientState | None, sizes: Mapping[str, int]) -> ClientState:
        """A client's state from the rank that has it."""
        values = exact.zeros(sum(sizes.values()))
        if own is not None:
            parts = {PRIVATE: own.private, **own.memory}
            torch.cat([parts[name].to(torch.float64) for name in sizes], out=values)
        self.ranks.add(values)
        rows = dict(zip(sizes, torch.split(values.to(torch.float32), list(sizes.values())), strict=True))
        return ClientState(rows.pop(PRIVATE), rows)

    def _columns(
        self, own: Answers | None, places: Sequence[int], count: int, failure: LeanfedError | None, digest: int
    ) -> Floats:
        """The columns (COLUMNS, count) of all participants; where a rank has failed, all raise its error."""
        columns, marks = np.zeros((COLUMNS, count)), np.zeros((self.ranks.size, 2))
        if own is not None:
            bits = 0.0 if own.coded_bits is None else own.coded_bits
            told = np.zeros(len(SIGNALS)) if own.signals is None else own.signals.T
            for column, values in zip(
                columns, (own.loss, own.samples, own.entries, bits, own.reach, *told), strict=True
            ):
                column[places] = values
        marks[self.ranks.rank] = failure is not None, digest
        together = torch.from_numpy(np.concatenate([columns.ravel(), marks.ravel()]))
        self.ranks.add(together)
        columns = together[: columns.size].numpy().reshape(columns.shape)
        marks = together[columns.size :].numpy().reshape(marks.shape)
        if marks[:, 0].any():
            self.ranks.agree(lambda: _raised(failure))
        if len(set(marks[:, 1].tolist())) > 1:
            raise SharedError(
                "The ranks no longer compute the same: their plans or shared weights differ, as on machines with "
                "unlike processors or libraries. Run on machines of one kind; the last checkpoint is whole.",
                LeanfedError.exit_code,
                silent=not self.ranks.first,
            )
        return columns

    def _sums(self, own: Answers | None, size: int) -> Tensor:
        """[sum of gamma x upload | sum of gamma x statistics] of this rank."""
        sums = exact.zeros(size + self.world.statistics_size)
        if own is not None and own.total is not None:
            sums[:size] = own.total
        if own is not None and own.statistics is not None:
            sums[size:] = own.statistics
        return sums


def _raised(failure: LeanfedError | None) -> None:
    if failure is not None:
        raise failure


def _digest(server: ServerState, plan: RoundPlan) -> int:
    """A checksum of what all ranks must have alike before a round."""
    said = zlib.crc32(np.concatenate([np.array(plan.participants, dtype=np.float64), plan.k, plan.r]).tobytes())
    return zlib.crc32(server.shared.numpy().tobytes(), said)


def _sizes(state: ClientState) -> dict[str, int]:
    return {PRIVATE: len(state.private), **{name: len(values) for name, values in state.memory.items()}}
