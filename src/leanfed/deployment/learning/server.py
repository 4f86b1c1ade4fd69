"""The server's loop: find nodes, plan, send orders, collect answers until the deadline, check, aggregate, record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from leanfed.compression.codec import encode
from leanfed.deployment.door.audit import Audit
from leanfed.deployment.learning.checks import digest
from leanfed.deployment.learning.config import RunConfig
from leanfed.deployment.learning.fleet_rows import PendingRound, outcome_of, rows_of
from leanfed.deployment.learning.mail import Accepted, Clock, Inbox, Letter, Post
from leanfed.deployment.learning.members import Members
from leanfed.deployment.learning.messages import HelloRequest, base_record, pack
from leanfed.deployment.learning.orders import make_orders
from leanfed.deployment.learning.planning import FleetPlanner, far_world
from leanfed.deployment.learning.reported_fleet import DeviceReport
from leanfed.errors import LeanfedError
from leanfed.records import RoundPlan
from leanfed.results import RunFolder, joined
from leanfed.rounds.aggregation import stepped
from leanfed.rounds.checkpoint import Checkpoints
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.loop import Progress
from leanfed.rounds.planning import Planned
from leanfed.runs.build import arrived, finish_folder
from leanfed.runs.settings import Settings

GRACE_S = 5.0  # a message is valid for this much longer than its round


class NoQuorumError(LeanfedError):
    """A round could not be completed; the run can be resumed."""


class FleetServer:
    """One run on a fleet; its run folder has the same files and tables as that of a simulation."""

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        settings: Settings,
        folder: RunFolder,
        run: str,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.settings = settings
        self.folder = folder
        self.run_name = run
        self.clock = clock or Clock()
        self.post = Post(grid, self.clock)
        audit = Audit(Path(config.audit) if config.audit else folder.path / "audit.jsonl")
        self.inbox = Inbox(Members(), audit, config.offences, settings.task.partition.clients)
        self.planner: FleetPlanner | None = None
        self.pending: PendingRound | None = None
        self._arrived = False  # whether the accuracy that ends the run is reached
        self._counted: dict[int, int] = {}  # client -> samples, as the planner was built

    def play(self) -> None:
        """Run the remaining rounds, then the last test, and write the final files."""
        checkpoints = Checkpoints(self.folder.checkpoint, self.run_name)
        with closing(checkpoints):
            progress = self._load(checkpoints)
            self.inbox.audit.write("run", run=self.run_name, round=progress.round, resumed=progress.round > 0)
            self._gather()
            while progress.round < self.settings.rounds and not self._arrived:
                progress = self._round(progress, checkpoints)
            self._finish(progress, checkpoints)

    # Joining

    def _gather(self) -> None:
        """Wait until the expected nodes have joined, for at most join_s seconds."""
        wanted = self.config.nodes or self.inbox.clients
        end = self.clock.steady() + self.config.join_s
        while self._present() < wanted and self.clock.steady() < end:
            self._greet(end - self.clock.steady())
            self._collect()
            if self._present() < wanted:
                self.clock.sleep(self.config.poll_s)
        if not self._present():
            raise NoQuorumError(f"No node joined within {self.config.join_s:g} s. Start nodes, then resume the run.")

    def _present(self) -> int:
        """Clients whose node has said hello in this run of the server."""
        return sum(member.node in self.inbox.members.greeted for member in self.inbox.members)

    def _greet(self, ttl_s: float) -> None:
        """Ask new nodes to identify themselves; `_collect` processes their answers whenever they arrive."""
        members = self.inbox.members
        new = sorted(self.post.online() - members.asked)
        request = pack(request=HelloRequest(run=self.run_name))
        letters = [Letter(node, request, "query", "hello") for node in new]
        members.asked.update(new)
        for letter in self.post.send(letters, max(ttl_s, GRACE_S)):
            members.asked.discard(letter.node)

    def _collect(self) -> None:
        """Process the messages that have arrived."""
        deliveries = self.post.collect()
        online = self.post.online() if any(one.sent.letter.expected is None for one in deliveries) else set()
        for delivery in deliveries:
            self.inbox.take(delivery, online)

    def _available(self) -> list[int]:
        """Clients that can be given an order now."""
        ready = (self.post.online() & self.inbox.members.greeted) - self.post.busy()
        return [member.client for member in self.inbox.members if member.node in ready and not member.set_aside]

    # Rounds

    def _round(self, progress: Progress, checkpoints: Checkpoints) -> Progress:
        """Run one round; repeated until a quorum answers, for at most `attempts` times."""
        for attempt in range(self.config.attempts):
            began = self.clock.steady()
            planned = self._plan(progress.round)
            if planned is not None:
                self._exchange(progress, planned.plan)
                if len(self.inbox.accepted) >= self._needed(planned.plan):
                    return self._apply(progress, planned, checkpoints, self.clock.steady() - began)
                self._planner().undo()
            there = len(planned.plan.participants) if planned else 0
            facts = {"round": progress.round, "attempt": attempt, "asked": there, "answered": len(self.inbox.accepted)}
            self.inbox.audit.write("no_quorum", **facts)
            self.folder.log("no_quorum", **facts)
        raise NoQuorumError(
            f"Round {progress.round} had no quorum ({self.config.quorum:g} of its participants) in "
            f"{self.config.attempts} attempts. Bring nodes back, then resume the run: nothing is lost."
        )

    def _needed(self, plan: RoundPlan) -> int:
        """The quorum: a share of the participants and of the selected clients that were not available."""
        planner, members = self._planner(), self.inbox.members.by_client
        asked = planner.world.cohort(plan.round)
        known = [client for client in asked if client in members and not members[client].set_aside]
        missing = [client for client in known if client not in planner.available]
        return math.ceil(self.config.quorum * (len(plan.participants) + len(missing)))

    def _plan(self, number: int) -> Planned | None:
        """A plan for the available clients; waits for them for at most deadline_s seconds, then returns None."""
        end = self.clock.steady() + self.config.deadline_s
        while True:
            self._greet(self.config.deadline_s)
            self._collect()
            available = self._available()
            planned = self._planner().plan(number, available) if available else None
            if planned is not None or self.clock.steady() >= end:
                return planned
            self.clock.sleep(self.config.poll_s)

    def _planner(self) -> FleetPlanner:
        """The planner; rebuilt if the sample counts have changed."""
        members = self.inbox.members
        counted = {member.client: member.samples for member in members}
        if self.planner is None or counted != self._counted:
            world = far_world(self.settings, counted, {member.client: member.majority_guess for member in members})
            measured = self.config.fleet == "measured"
            planner = FleetPlanner(self.settings, world, measured=measured)
            if self.planner is not None:
                planner.planner.remember(self.planner.planner.memory())
            self.planner, self._counted = planner, counted
        if self.planner.reports is not None:
            self.planner.reports.newest = {
                member.client: DeviceReport(member.device, member.upload_bit_per_s, member.upload_share)
                for member in members
            }
        return self.planner

    def _exchange(self, progress: Progress, plan: RoundPlan | None) -> None:
        """Send the base and every client's order, then wait for answers until the deadline."""
        self.inbox.open_round(progress.round)
        evaluate = self.pending is not None and self.pending.due
        base = base_record(encode(len(progress.server.shared), None, progress.server.shared.numpy()))
        letters = []
        chosen = [self.inbox.members[client] for client in self._available()]
        width = self.settings.radio.value_bits
        world = self._planner().world
        for expected in make_orders(
            self.run_name, progress.round, chosen, plan, world, evaluate=evaluate, value_bits=width
        ):
            order = expected.order
            kind = "train" if order.train else "evaluate"
            node = self.inbox.members[order.client].node
            letters.append(Letter(node, pack(order=order, base=base), kind, str(progress.round), expected))
            self.inbox.waiting[order.token] = order.client
        for letter in self.post.send(letters, self.config.deadline_s + GRACE_S):
            if letter.expected is not None:
                self.inbox.waiting.pop(letter.expected.order.token)
        end = self.clock.steady() + self.config.deadline_s
        while self.inbox.waiting and self.clock.steady() < end:
            self._collect()
            if self.inbox.waiting:
                self.clock.sleep(self.config.poll_s)
        self.inbox.waiting.clear()

    def _apply(self, progress: Progress, planned: Planned, checkpoints: Checkpoints, elapsed_s: float) -> Progress:
        """Update the base, complete the last round's rows, and save everything before the next orders are sent."""
        planner, accepted, number = self._planner(), self.inbox.accepted, progress.round
        plan = _applied_part(planned.plan, accepted)
        gamma = planner.world.task.gamma
        server = progress.server
        if plan.participants:  # without participants the base does not change
            members = list(plan.participants)
            uploads = [accepted[client].upload for client in members]
            mean = planner.world.aggregation.combine(len(server.shared), gamma[members], uploads)
            server = stepped(self.settings.algorithm, server, mean, self.settings.training, number)
        outcome = outcome_of(server, accepted)
        self._complete_pending()
        finished = self.pending
        self._arrived = finished is not None and arrived(self.settings, finished.frames()["rounds"])
        self.pending = rows_of(
            plan,
            outcome,
            planner.accountant,
            accepted,
            counts=self.inbox.counts,
            elapsed_s=elapsed_s,
            due=(number + 1) % self.settings.evaluation.every == 0 or number + 1 == self.settings.rounds,
        )
        for client in plan.participants:
            member, answer = self.inbox.members[client], accepted[client].answer
            member.applied, member.applied_token = number, answer.token
            member.last_frame = digest(answer.frame)
        planner.done(number, plan.participants)
        after = Progress(number + 1, server, progress.clients)
        frames = finished.frames() if finished is not None else {}
        checkpoints.save(after, frames, self._extra())
        checkpoints.wait()
        self._log(planned, plan, number, elapsed_s)
        return after

    # Start and end

    def _load(self, checkpoints: Checkpoints) -> Progress:
        """The state in the newest checkpoint, or the initial state."""
        world = far_world(self.settings, {}, {})
        no_clients = ClientStore(0, lambda client: self.settings.algorithm.start_client(world.task, client))
        progress = checkpoints.load(world)
        if progress is None:
            return Progress(0, self.settings.algorithm.start_server(world.task), no_clients)
        extra = checkpoints.extra
        self.inbox.members = Members.from_json(extra["members"])
        self.inbox.totals.update(extra["totals"])
        self.pending = PendingRound(**extra["held"])
        self._planner().planner.remember(extra["planner"])
        return Progress(progress.round, progress.server, no_clients)

    def _extra(self) -> dict[str, Any]:
        """State for a resumed server besides the base: members, totals, the planner's memory, the pending round."""
        return {
            "members": self.inbox.members.to_json(),
            "totals": dict(self.inbox.totals),
            "planner": self._planner().planner.memory(),
            "held": self.pending.to_json() if self.pending is not None else None,
        }

    def _complete_pending(self) -> None:
        """Add the test results that arrived in this round to the last round's rows."""
        if self.pending is not None:
            gamma = dict(enumerate(self._planner().world.task.gamma.tolist()))
            self.pending.complete(self.inbox.tested, gamma, self.settings.evaluation.per_client)
        self.inbox.tested = {}

    def _finish(self, progress: Progress, checkpoints: Checkpoints) -> None:
        """Test the last model on every available client, then write the final files."""
        assert self.pending is not None
        self.pending.due = True
        for _ in range(self.config.attempts):
            self._greet(self.config.deadline_s)
            self._collect()
            self._exchange(progress, None)
            if self.inbox.tested:
                break
        else:
            raise NoQuorumError("Nobody answered the last test. Bring nodes back, then resume the run.")
        self._complete_pending()
        tables = self.pending.frames()
        if progress.round > 1:
            earlier = checkpoints.tables()
            tables = {name: joined((earlier[name], rows)) for name, rows in tables.items()}
        run = finish_folder(self.settings, self._planner().world, self.folder, tables, progress)
        totals = dict(self.inbox.totals)
        self.inbox.audit.write("finished", round=progress.round, accuracy=run.accuracy, totals=totals)

    def _log(self, planned: Planned, plan: RoundPlan, number: int, elapsed_s: float) -> None:
        """Log the round with predicted and measured values."""
        if planned.reasons:
            facts = {"participants": len(planned.plan.participants), **planned.reasons}
            self.folder.log("plan", round=number, seconds=round(planned.seconds, 6), **facts)
        pending = self.pending
        assert pending is not None
        self.folder.log(
            "round",
            round=number,
            train_loss=pending.row["train_loss"],
            asked=len(planned.plan.participants),
            applied=len(plan.participants),
            predicted_s=pending.row["latency_s"],
            seconds={"total": round(elapsed_s, 5)},
            counts=dict(self.inbox.counts),
        )
        self.inbox.audit.write("round", round=number, applied=len(plan.participants), **dict(self.inbox.counts))


def _applied_part(plan: RoundPlan, accepted: Mapping[int, Accepted]) -> RoundPlan:
    """The plan reduced to the clients whose updates are applied."""
    kept = [place for place, client in enumerate(plan.participants) if client in accepted]
    return replace(
        plan,
        participants=tuple(plan.participants[place] for place in kept),
        k=plan.k[kept],
        r=plan.r[kept],
        share=None if plan.share is None else plan.share[kept],
    )
