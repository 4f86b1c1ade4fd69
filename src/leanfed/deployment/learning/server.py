"""The server's loop: find nodes, plan, send orders, collect answers until the deadline, check, aggregate, record."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from leanfed.algorithms.contract import ServerState
from leanfed.deployment.door.audit import Audit
from leanfed.deployment.learning.bindings import Bindings
from leanfed.deployment.learning.checks import Expected, digest
from leanfed.deployment.learning.config import RunConfig
from leanfed.deployment.learning.fleet_rows import PendingRound, outcome_of, rows_of
from leanfed.deployment.learning.good_states import GoodStates
from leanfed.deployment.learning.mail import Accepted, Clock, Inbox, Letter, Post
from leanfed.deployment.learning.masked_rounds import MaskedRounds
from leanfed.deployment.learning.members import Member, Members
from leanfed.deployment.learning.messages import HelloRequest, pack, pack_one
from leanfed.deployment.learning.orders import make_orders
from leanfed.deployment.learning.planning import FleetPlanner, far_world
from leanfed.deployment.learning.probes import is_due, is_unsure, new_probe
from leanfed.deployment.learning.progress import round_line
from leanfed.deployment.learning.questions import GRACE_S, Questions
from leanfed.deployment.learning.reported_fleet import DeviceReport
from leanfed.deployment.learning.screen import USUAL_ROUNDS, Screen, capped
from leanfed.deployment.learning.views import Views, name_of
from leanfed.deployment.masking.records import MASKS
from leanfed.deployment.masking.refusals import check_masked_run
from leanfed.deployment.masking.rules import Rules
from leanfed.deployment.masking.sums import GivenUpError
from leanfed.errors import LeanfedError, SettingsError
from leanfed.records import RoundPlan
from leanfed.results import RunFolder, joined
from leanfed.rounds.aggregation import Combined, by_rule, remembering, stepped
from leanfed.rounds.broadcast import advanced
from leanfed.rounds.checkpoint import Checkpoints
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.loop import Progress
from leanfed.rounds.planning import Planned
from leanfed.runs.finish import finish_folder
from leanfed.runs.play import arrived
from leanfed.runs.settings import Settings

MOST_TURNS = 3  # a run that diverges more often without getting further is stopped
LONGEST_PROBE_S = 30.0  # that the first round waits for probes


class NoQuorumError(LeanfedError):
    """A round could not be completed; the run can be resumed."""


class DivergedError(LeanfedError):
    """The run diverges again and again; its good states are kept."""


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
        _check(settings, config)
        audit = Audit(Path(config.audit) if config.audit else folder.path / "audit.jsonl")
        bound = Bindings(Path(config.bindings) if config.bindings else None, config.max_samples)
        self.inbox = Inbox(Members(), audit, config.offences, settings.task.partition.counted(), bound)
        self.inbox.use_late = config.late_rounds if config.late == "use" else 0
        self.screen = Screen(config.norm_bound, config.divergence)
        self.good = GoodStates(folder.checkpoint)
        rules = Rules.of(settings, config)
        questions = Questions(self.post, self.inbox, self._collect, config.deadline_s, config.poll_s)
        self.masks = None if rules is None else MaskedRounds(run, rules, questions)  # None: updates are seen
        self._given_up = 0  # rounds in a row
        self.planner: FleetPlanner | None = None
        self.pending: PendingRound | None = None
        self._tested: tuple[int, float] | None = None  # the newest round that was tested, and its accuracy
        self._durations: deque[float] = deque(maxlen=USUAL_ROUNDS)  # seconds of the last rounds
        self._arrived = False  # whether the accuracy that ends the run is reached
        self._counted: dict[int, int] = {}  # client -> samples, as the planner was built
        self._turned_back = 0  # times that the run has diverged since it last got further
        self._furthest = 0
        self.views: Views  # what nodes have of the base; set when the state is loaded
        self._sent_down: Counter[int] = Counter()  # client -> bytes of base and differences in this round
        self._overdue: frozenset[int] = frozenset()  # clients that had not answered at the last deadline

    @property
    def _shows(self) -> bool:
        """Whether nodes report losses and tests."""
        return self.settings.privacy.metrics == "shown"

    def _tests_after(self, number: int) -> bool:
        """Whether the model of a round is tested, beside the last one."""
        due = (number + 1) % self.settings.evaluation.every == 0 or number + 1 == self.settings.rounds
        return self._shows and due

    def play(self) -> None:
        """Run the remaining rounds, then the last test, and write the final files."""
        checkpoints = Checkpoints(self.folder.checkpoint, self.run_name)
        with closing(checkpoints):
            if self.config.resume and self.config.roll_back:
                self._note_return(self.good.go_back(self.config.roll_back), "the owner's command")
            progress = self._load(checkpoints)
            for client in self.config.released:
                self.inbox.release(client)
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
        self._probe_unsure()

    def _probe_unsure(self) -> None:
        """Measure links that no message has told of, before the first plan is made from them."""
        size = 1000 * self.config.probe_kb
        there = [self.inbox.members[client] for client in self._available()]
        self._probe([member for member in there if is_unsure(member, size)])
        end = self.clock.steady() + min(self.config.deadline_s, LONGEST_PROBE_S)
        while self.post.probing() and self.clock.steady() < end:
            self._collect()
            if self.post.probing():
                self.clock.sleep(self.config.poll_s)

    def _probe(self, members: Sequence[Member]) -> None:
        """Send probes; `_collect` takes what comes back, whenever it comes."""
        if not self.config.probe_kb or self.config.fleet != "measured":
            return
        letters = []
        for member in members:
            probe = new_probe(self.run_name, 1000 * self.config.probe_kb)
            letters.append(Letter(member.node, pack(probe=probe), "query", "probe", probe=(member.client, probe)))
        self.post.send(letters, self.config.deadline_s + GRACE_S)

    def _present(self) -> int:
        """Clients whose node has said hello in this run of the server."""
        return sum(member.node in self.inbox.members.greeted for member in self.inbox.members)

    def _greet(self, ttl_s: float) -> None:
        """Ask new nodes to identify themselves; `_collect` processes their answers whenever they arrive."""
        members = self.inbox.members
        new = members.to_ask(self.post.online(), self.clock.steady())
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
        behind, self.inbox.behind = self.inbox.behind, []
        if behind:
            views = list(self.views.parcel().views or ())
            self._send([replace(one, order=one.order.model_copy(update={"views": views})) for one in behind])

    def _available(self) -> list[int]:
        """Clients that can be given an order now."""
        ready = (self.post.online() & self.inbox.members.greeted) - self.post.busy()
        return [member.client for member in self.inbox.members if member.node in ready and not member.set_aside]

    # Rounds

    def _round(self, progress: Progress, checkpoints: Checkpoints) -> Progress:
        """Run one round; repeated until a quorum answers, for at most `attempts` times."""
        self._sent_down = Counter()
        for attempt in range(self.config.attempts):
            began = self.clock.steady()
            planned = self._plan(progress.round)
            if planned is not None:
                self._exchange(progress, planned.plan)
                self._note_misses(planned.plan)
                self.inbox.add_late()
                self._screen_updates()
                if self._enough(planned.plan):
                    if (why := self._diverged()) is not None:
                        return self._go_back(progress, checkpoints, why)
                    combined = self._combined(progress)
                    return self._apply(progress, planned, combined, checkpoints, self.clock.steady() - began)
                if self.inbox.spent:  # a server that ended between unmasking and saving
                    self._give_up(progress.round, f"{len(self.inbox.spent)} nodes have unmasked a sum of it before")
                    return self._apply(progress, planned, None, checkpoints, self.clock.steady() - began)
                self._planner().undo()
            there = len(planned.plan.participants) if planned else 0
            facts = {"round": progress.round, "attempt": attempt, "asked": there, "answered": len(self.inbox.accepted)}
            self.inbox.audit.write("no_quorum", **facts)
            self.folder.log("no_quorum", **facts)
        raise NoQuorumError(
            f"Round {progress.round} had no quorum ({self.config.quorum:g} of its participants) in "
            f"{self.config.attempts} attempts. Bring nodes back, then resume the run: nothing is lost."
        )

    def _enough(self, plan: RoundPlan) -> bool:
        """Whether the updates are a quorum and, where they are masked, their sum can be unmasked."""
        accepted = self.inbox.accepted
        if len(accepted) < self._needed(plan):
            return False
        if self.masks is None or (why := self.masks.why_not(accepted)) is None:
            return True
        self.inbox.audit.write("not_unmasked", round=plan.round, why=why, **self.masks.told(accepted))
        return False

    def _combined(self, progress: Progress) -> Combined | None:
        """The update of the accepted ones; None where there is none, or their sum could not be unmasked."""
        accepted, number, size = self.inbox.accepted, progress.round, len(progress.server.shared)
        if not accepted:
            return None
        if self.masks is not None:
            try:
                mean = self.masks.mean(size, accepted)
            except GivenUpError as error:
                self._give_up(number, str(error))
                return None
            self._given_up, self.inbox.accepted = 0, self.masks.bill(accepted)
            self.inbox.audit.write("unmasked", round=number, **self.masks.told(accepted))
            return Combined(mean)
        members, world = sorted(accepted), self._planner().world
        age = np.array([number - accepted[client].order.round for client in members])
        # An update that is a rounds late counts for 1 / sqrt(1 + a) of its weight (FedAsync's polynomial, a = 1/2).
        given = world.task.gamma[members] / np.sqrt(1 + age)
        uploads = [accepted[client].upload for client in members]
        return by_rule(world.aggregation, progress.server, members, given, uploads)

    def _give_up(self, number: int, why: str) -> None:
        """Leave a round without an update: its masks are spent, so that it is not tried again."""
        self._given_up += 1
        self.inbox.audit.write("given_up", round=number, why=why)
        self.folder.log("given_up", round=number, why=why)
        self.inbox.accepted = {}
        if self._given_up >= self.config.attempts:
            raise NoQuorumError(
                f"Round {number} was given up ({why}), and {self._given_up - 1} before it. Bring nodes back, then "
                "resume the run: its state is that before these rounds' updates."
            )

    def _note_misses(self, plan: RoundPlan) -> None:
        """Let clients rest that had until the deadline and did not answer; what others have missed is forgiven."""
        for client in plan.participants:
            member = self.inbox.members[client]
            if client in self.inbox.accepted:
                member.missed = 0
            elif client in self._overdue and self.config.rest_rounds:
                member.miss(plan.round, self.config.rest_rounds)
                facts = {"client": client, "node": member.node, "missed": member.missed}
                self.inbox.audit.write("rests", round=plan.round, **facts, until_round=member.rests_until)

    def _target(self, plan: RoundPlan) -> int:
        """Updates that close a round before its deadline: a share of the clients that the settings ask."""
        wanted = min(len(plan.participants), len(self._planner().world.cohort(plan.round)))
        return math.ceil(self.config.close_at * wanted)

    def _screen_updates(self) -> None:
        """Refuse updates that do not fit among the others of the round."""
        accepted = self.inbox.accepted
        updates = {client: (one.upload, one.answer.loss or 0.0) for client, one in accepted.items()}
        self.inbox.withdraw(self.screen.offenders(updates))

    def _diverged(self) -> str | None:
        """Why the base that was sent out is not to be built upon, by the losses of the clients' training on it."""
        accepted, gamma = self.inbox.accepted, self._planner().world.task.gamma
        if not accepted or not self._shows:
            return None
        weights = [gamma[client] for client in accepted]
        losses = [one.answer.loss or 0.0 for one in accepted.values()]
        return self.screen.diverged(float(np.average(losses, weights=weights)))

    def _go_back(self, progress: Progress, checkpoints: Checkpoints, why: str) -> Progress:
        """Go on from the state before the one that diverged, with a tighter bound on updates."""
        self._turned_back += 1
        facts = {"round": progress.round, "why": why, "norm_bound": self.screen.norm_bound}
        self.inbox.audit.write("diverged", **facts, suspects=sorted(self._last_applied(progress.round - 1)))
        self.folder.log("diverged", **facts)
        if self._turned_back > MOST_TURNS or len(self.good.rounds()) < 2:
            raise DivergedError(
                f"Round {progress.round} diverged ({why}); going back has not helped {self._turned_back - 1} times. "
                "See who is refused (`leanfed deploy status FLEET`) and revoke it, or set a rule of aggregation that "
                "holds against outliers ([aggregation]), then resume the run: its good states are kept."
            )
        self.screen.tighten()
        members = self.inbox.members
        self.good.go_back(1)
        again = self._load(checkpoints)
        for member in self.inbox.members:  # who is there, and what it has done, stays
            if (now := members.by_client.get(member.client)) is not None:
                now.applied, now.applied_token = member.applied, member.applied_token
                now.last_frame = member.last_frame
        self.inbox.members = members
        self._note_return(again.round, "divergence")
        return again

    def _note_return(self, number: int, why: str) -> None:
        self.inbox.audit.write("rolled_back", round=number, why=why, norm_bound=self.screen.norm_bound)
        self.folder.log("rolled_back", round=number, why=why)

    def _last_applied(self, number: int) -> list[int]:
        return [member.client for member in self.inbox.members if member.applied == number]

    def _needed(self, plan: RoundPlan) -> int:
        """The quorum: a share of the participants and of the selected clients that were not available."""
        planner, members = self._planner(), self.inbox.members.by_client
        asked = planner.world.cohort(plan.round)
        known = [client for client in asked if client in members and not members[client].set_aside]
        missing = [client for client in known if client not in planner.available]
        return math.ceil(self.config.quorum * (min(len(plan.participants), len(asked)) + len(missing)))

    def _plan(self, number: int) -> Planned | None:
        """A plan for the available clients; waits for them for at most deadline_s seconds, then returns None."""
        end = self.clock.steady() + self.config.deadline_s
        while True:
            self._greet(self.config.deadline_s)
            self._collect()
            available = self._rested(number, self._available())
            planned = self._planner().plan(number, available) if available else None
            if planned is not None or self.clock.steady() >= end:
                return planned
            self.clock.sleep(self.config.poll_s)

    def _rested(self, number: int, available: list[int]) -> list[int]:
        """Without those that rest, as long as the quorum can do without them."""
        rested = [client for client in available if self.inbox.members[client].rests_until <= number]
        known = [client for client in self._planner().world.cohort(number) if client in self.inbox.members.by_client]
        wanted = [client for client in known if not self.inbox.members[client].set_aside]
        enough = math.ceil(self.config.quorum * len(wanted))
        return rested if len(set(rested) & set(wanted)) >= enough else available

    def _planner(self) -> FleetPlanner:
        """The planner; rebuilt if the sample counts have changed."""
        members = self.inbox.members
        counted = capped({member.client: member.samples for member in members}, self.config.samples_ratio)
        if self.planner is None or counted != self._counted:
            more = self.config.over_selection
            guesses = {member.client: member.majority_guess or 0.0 for member in members}
            world = far_world(self.settings, counted, guesses, more)
            measured = self.config.fleet == "measured"
            planner = FleetPlanner(self.settings, world, measured=measured)
            if self.planner is not None:
                planner.planner.remember(self.planner.planner.memory())
            for member in members:
                if counted[member.client] < member.samples != self._counted.get(member.client):
                    facts = {"says": member.samples, "counts": counted[member.client]}
                    self.inbox.audit.write("samples_capped", client=member.client, node=member.node, **facts)
            self.planner, self._counted = planner, counted
        if self.planner.reports is not None:
            tests = self.pending is not None and self.pending.due
            self.planner.reports.newest = {
                member.client: DeviceReport(
                    member.device, member.measured, self.views.parcel(member.view).bytes, tests=tests
                )
                for member in members
            }
        return self.planner

    def _exchange(self, progress: Progress, plan: RoundPlan | None) -> None:
        """Send the base and every client's order, then wait for answers until the deadline."""
        self.inbox.open_round(progress.round)
        if plan is not None and self.masks is not None:
            plan = self.masks.agree(plan, self._planner().world.task.gamma)
        evaluate = self.pending is not None and self.pending.due
        there = self._available()
        if plan is not None:  # whoever rests is not asked to test either
            there = [client for client in there if client in self._planner().available]
        orders = make_orders(
            self.run_name,
            progress.round,
            [self.inbox.members[client] for client in there],
            plan,
            self._planner().world,
            evaluate=evaluate,
            values=self.settings.radio.wire_type,
            views=lambda member: self.views.parcel(member.view).views,
        )
        if self.masks is not None:
            orders = self.masks.masked(orders, name_of(self.views.view))
        self._send(orders)
        if plan is not None:
            idle = [self.inbox.members[client] for client in self._available()]
            self._probe([one for one in idle if is_due(one, progress.round, self.config.probe_rounds)])
        end = self.clock.steady() + self.config.deadline_s
        hurried = plan is not None and (self.config.close_at < 1 or self.config.over_selection > 0)
        target = self._target(plan) if plan is not None and hurried else len(orders) + 1
        while self.inbox.waiting and self.clock.steady() < end:
            self._collect()
            if len(self.inbox.accepted) >= target:
                break
            if self.inbox.waiting:
                self.clock.sleep(self.config.poll_s)
        late = self.clock.steady() >= end
        self._overdue = frozenset(self.inbox.waiting.values()) if late else frozenset()
        self.inbox.waiting.clear()

    def _send(self, orders: Sequence[Expected]) -> None:
        """Send orders, each with what brings its node to the newest view of the base."""
        letters = []
        for expected in orders:
            order, member = expected.order, self.inbox.members[expected.order.client]
            parcel = self.views.parcel(member.view)
            if parcel.unknown:
                facts = {"round": order.round, "client": order.client, "node": member.node, "view": member.view}
                self.inbox.audit.write("unknown_view", **facts)
            content = pack(order=order, base=parcel.record)
            if expected.masked is not None:
                content.update(pack_one(MASKS, expected.masked.order))
            kind = "train" if order.train else "evaluate"
            letter = Letter(member.node, content, kind, str(order.round), expected)
            letters.append(replace(letter, base_bytes=parcel.bytes))
            self.inbox.waiting[order.token] = order.client
            member.order = order.token
            self._sent_down[order.client] += parcel.bytes
        rounds = 1 + self.inbox.use_late  # a late update can be used only while its message is valid
        for letter in self.post.send(letters, rounds * self.config.deadline_s + GRACE_S):
            if letter.expected is not None:
                self.inbox.waiting.pop(letter.expected.order.token)

    def _apply(
        self,
        progress: Progress,
        planned: Planned,
        combined: Combined | None,
        checkpoints: Checkpoints,
        elapsed_s: float,
    ) -> Progress:
        """Update the base, complete the last round's rows, and save everything before the next orders are sent."""
        planner, accepted, number = self._planner(), self.inbox.accepted, progress.round
        plan = _applied_part(planned.plan, accepted)
        server = progress.server if combined is None else self._moved(progress, combined)
        outcome = outcome_of(server, accepted, None if combined is None else combined.weights)
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
            sent_down=self._sent_down,
            due=self._tests_after(number),
        )
        for client in plan.participants:
            member, answer = self.inbox.members[client], accepted[client].answer
            member.applied, member.applied_token = answer.round, answer.token
            member.last_frame = digest(answer.frame)
        planner.planner.observe(self.pending.row)
        planner.done(number, plan.participants)
        after = Progress(number + 1, server, progress.clients)
        saved, differences = self.views.packed(server)
        rows = finished.frames() if finished is not None else {}
        checkpoints.save(replace(after, server=saved), rows, self._extra(differences))
        checkpoints.wait()
        self.good.keep()
        if after.round > self._furthest:
            self._furthest, self._turned_back = after.round, 0
        self._log(planned, plan, number, elapsed_s)
        return after

    def _moved(self, progress: Progress, combined: Combined) -> ServerState:
        """The server's state after an update, with what clients have of it."""
        how, number = self.settings, progress.round
        taken = math.fsum(self._planner().world.task.gamma[sorted(self.inbox.accepted)])
        moved = stepped(how.algorithm, progress.server, combined.update, how.training, number, taken)
        moved = remembering(moved, combined.memory)
        server, difference = advanced(self.views.how, progress.server, moved, how.seed, number)
        self.views.advance(server, difference)
        return server

    # Start and end

    def _load(self, checkpoints: Checkpoints) -> Progress:
        """The state in the newest checkpoint, or the initial state."""
        world = far_world(self.settings, {}, {})
        no_clients = ClientStore(0, lambda client: self.settings.algorithm.start_client(world.task, client))
        progress = checkpoints.load(world)
        how, self._sent_down = self.settings.radio.differences, Counter()
        if progress is None:
            start, self.views = Views.unpacked(how, self.settings.algorithm.start_server(world.task))
            return Progress(0, start, no_clients)
        extra = checkpoints.extra
        server, self.views = Views.unpacked(how, progress.server, extra.get("differences", ()))
        self.inbox.members = Members.from_json(extra["members"])
        self.inbox.totals = Counter(extra["totals"])
        self.screen.remember(extra.get("screen", {}))
        self.pending = PendingRound(**extra["held"])
        self._planner().planner.remember(extra["planner"])
        return Progress(progress.round, server, no_clients)

    def _extra(self, differences: list[dict[str, Any]]) -> dict[str, Any]:
        """State for a resumed server besides the base: members, totals, the planner's memory, the pending round."""
        return {
            "differences": differences,
            "members": self.inbox.members.to_json(),
            "totals": dict(self.inbox.totals),
            "planner": self._planner().planner.memory(),
            "held": self.pending.to_json() if self.pending is not None else None,
            "screen": self.screen.to_json(),
        }

    def _complete_pending(self) -> None:
        """Add the test results that arrived in this round to the last round's rows."""
        if self.pending is not None:
            gamma = dict(enumerate(self._planner().world.task.gamma.tolist()))
            self.pending.complete(self.inbox.tested, gamma, self.settings.evaluation.per_client)
            if self.pending.row.get("accuracy") is not None:
                self._tested = (self.pending.row["round"], self.pending.row["accuracy"])
        self.inbox.tested = {}

    def _finish(self, progress: Progress, checkpoints: Checkpoints) -> None:
        """Test the last model on every available client, then write the final files."""
        assert self.pending is not None
        if self._shows:
            self.pending.due = True
            self._last_test(progress)
        self._complete_pending()
        tables = self.pending.frames()
        if progress.round > 1:
            earlier = checkpoints.tables()
            tables = {name: joined((earlier[name], rows)) for name, rows in tables.items()}
        run = finish_folder(self.settings, self._planner().world, self.folder, tables, progress)
        totals = dict(self.inbox.totals)
        self.inbox.audit.write("finished", round=progress.round, accuracy=run.summary["accuracy"], totals=totals)

    def _last_test(self, progress: Progress) -> None:
        """Let every available client test the last model."""
        for _ in range(self.config.attempts):
            self._greet(self.config.deadline_s)
            self._collect()
            self._exchange(progress, None)
            if self.inbox.tested:
                return
        raise NoQuorumError("Nobody answered the last test. Bring nodes back, then resume the run.")

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
        self._durations.append(elapsed_s)
        line = round_line(
            pending.row,
            rounds=self.settings.rounds,
            asked=len(planned.plan.participants),
            counts=self.inbox.counts,
            tested=self._tested,
            durations_s=self._durations,
        )
        print(line, flush=True)  # whoever follows the run sees it
        chosen = pending.chosen_weights()
        told = {"weights": chosen} if chosen else {}
        self.inbox.audit.write("round", round=number, applied=len(plan.participants), **dict(self.inbox.counts), **told)


def _check(settings: Settings, config: RunConfig) -> None:
    """Refuse what the server of a fleet cannot do."""
    if limits := settings.run.limits():
        raise SettingsError(
            f"A fleet ends after its rounds or at an accuracy, not at a limit of {', '.join(limits)}. Leave out "
            "run.stop_at_seconds, stop_at_joules and stop_at_bits."
        )
    if settings.evaluation.clients is not None:
        raise SettingsError(
            f"evaluation.clients = {settings.evaluation.clients} draws a panel in simulations; of a fleet all "
            "nodes are tested. Leave it out."
        )
    check_masked_run(settings, config)


def _applied_part(plan: RoundPlan, accepted: Mapping[int, Accepted]) -> RoundPlan:
    """The plan of the clients whose updates are applied: its own, and late ones by their own orders."""
    orders = [accepted[client].order for client in sorted(accepted)]
    place = {client: n for n, client in enumerate(plan.participants)}
    k = [plan.k[place[o.client]] if o.client in place else o.k for o in orders]
    r = [plan.r[place[o.client]] if o.client in place else o.r for o in orders]
    share = None
    if plan.share is not None:
        share = np.array([plan.share[place[o.client]] if o.client in place else o.share for o in orders])
    return replace(plan, participants=tuple(o.client for o in orders), k=np.array(k), r=np.array(r), share=share)
