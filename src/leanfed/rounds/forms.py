"""The forms of FLPDSP-OPT and the settings that decide on keep rates and bandwidth."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.allocation.base import ALLOCATORS
from leanfed.allocation.forms import FORMS
from leanfed.errors import nearest
from leanfed.records import Section, kept_count
from leanfed.tasks.cut import CRITERIA
from leanfed.tasks.head_budget import head_steps

Rate = Annotated[float, Field(ge=0, le=1)]
PACED: Final = ("fast", "tuned")  # the forms that choose their deadline and who takes part
TUNED: Final = {"k_min": 0.0, "k_max": 1.0, "r_min": 0.5, "within_rounds": 10, "settle": 0.0}


def _registered(solver: str) -> str:
    """The name if an allocator has it; else an error that names the nearest one."""
    if solver not in ALLOCATORS:
        raise ValueError(f"no allocator has that name: {nearest(solver, ALLOCATORS)}")
    return solver


class AllocationSettings(Section):
    """How keep rates and bandwidth are decided; constants that the paper does not give are marked with their source."""

    rule: Literal["own", "joint"] = "own"
    """own: the method's rates, bandwidth as below; joint: FLPDSP's k, r and bandwidth are planned every round."""
    bandwidth: Literal["equal", "min-max"] = "equal"
    """With rule = "own": even shares as in the paper, or (min-max) the split with the earliest finish of the slowest
    participant."""
    wait: Literal["all", "fastest", "turns", "pace"] = "all"
    """With rule = "own", who of the clients asked is waited for: all; the share `fastest` with the fastest processors
    of the round; (turns) these, and whoever has to come to take part once in `within_rounds` rounds; or (pace) those
    with whom a round brings the most weight per second, on just the band they need: the fast form's choice of deadline
    and participants, under the same limits, for the method's own payload and work."""
    fastest: float = Field(default=0.6, gt=0, le=1)
    """With wait = "fastest" or "turns": the share of the clients asked, at least one."""
    form: Literal["plain", "safe", "fast", "tuned"] = "fast"
    """With rule = "joint". plain: exactly as in the paper; safe: the paper's objective, but pruned head weights are
    kept and error feedback is on; fast: the most progress per second, with a deadline that it chooses itself; tuned:
    as fast, but what k and the steps of heads are worth is measured on the run, their number is planned, too, and every
    client has a k and an r of its own."""
    head_steps_max: int = Field(default=32, ge=0, le=32)
    """With form = "tuned": the most steps of a head on a batch; 0: algorithm.head_steps in every round."""
    solver: Annotated[str, AfterValidator(_registered)] = "certified"
    """The allocator of the plain and the safe form, by name: the price solver with its certificate (certified),
    Algorithm 2 (dca), or another, your own included. The fast form is an allocator itself."""
    deadline_s: float | None = Field(default=0.8, gt=0)
    """tau_max of a round (assumed, for LeNet-5); the fast form chooses any deadline up to it. None: no limit."""
    energy_budget_j: float | None = Field(default=0.3, gt=0)
    """E_max of one client in one round (assumed, for LeNet-5). None: no limit."""
    theta1: float = Field(default=0.1, ge=0)
    """Price of pruning in Eq. (27) if it is given; only theta1 / theta2 matters."""
    theta2: float = Field(default=1.0, gt=0)
    """Price of sparsification in Eq. (27) if it is given."""
    theta: Literal["given", "estimated"] = "given"
    """For the plain and the safe form: the two prices above (the default if one of them is stated), or those that the
    paper's formulas below Eq. (27) give with constants measured on the clients before the run, and during it where
    theory.every is set (the default if neither is stated). The formulas need eta < 3/L2; where that is broken, the
    prices are those of the learning rate 1/L2, and the round's reasons say so."""
    energy_total_j: float | None = Field(default=None, gt=0)
    """E_max of one client over all rounds, Eq. (27c); None: only the limit of a round. The plain and the safe form put
    a price on each client's joules; the fast form spreads a client's remaining budget over the remaining rounds."""
    k_min: Rate = 0.01
    """Smallest keep rate of a base gradient (plain and safe 0 as in the paper; fast 0.01, assumed)."""
    k_max: Rate = 0.05
    """Largest keep rate of a base gradient (plain and safe 1 as in the paper; fast 0.05, estimated: on the embedded
    digits 0.02 to 0.05 took less simulated time than 0.1, and 0.02 ended a point lower)."""
    r_min: Rate = 0.5
    """Smallest keep rate of a head (plain and safe 0 as in the paper; fast 0.5, assumed)."""
    within_rounds: int = Field(default=10, ge=0, le=10_000_000)
    """Every client takes part at least once in this many rounds, where its own limits allow it (fast 10, estimated on
    the embedded digits); 0: no such guarantee (plain and safe)."""
    first_within: int = Field(default=0, ge=0, le=10_000_000)
    """With form = "tuned": who never took part comes in this round of the run at the latest (counted from 1) where its
    own limits allow it, ahead of `within_rounds`; 0: no such guarantee."""
    settle: Rate = 1 / 3
    """The last part of a run, in which every client takes part in every round where its own limits allow it (fast 1/3,
    estimated on the embedded digits; plain and safe none), so that slow clients catch up."""
    first_k: Rate | None = None
    """k of every client in round 0, lowered where the limits require it; None: round 0 is planned like the others."""
    first_r: Rate | None = None
    """r of every client in round 0, if first_k is given; None: whole heads."""

    @model_validator(mode="before")
    @classmethod
    def _what_the_form_brings(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        form = str(values.get("form", "fast"))
        priced = form in PACED or "theta1" in values or "theta2" in values
        bounds = TUNED if form == "tuned" else FORMS.get(form, {})
        return {**bounds, "theta": "given" if priced else "estimated", **values}

    @model_validator(mode="after")
    def _bounds_in_order(self) -> AllocationSettings:
        if self.k_min > self.k_max:
            raise ValueError(f"k_min = {self.k_min} is above k_max = {self.k_max}; lower one or raise the other")
        if self.first_r is not None and self.first_k is None:
            raise ValueError("first_r is given without first_k; give both, or first_k alone")
        for name in ("within_rounds", "settle"):
            if getattr(self, name) and self.form not in PACED:
                raise ValueError(f"{name} is a floor of the form 'fast'; leave it out with form = {self.form!r}")
        if self.rule == "own" and self.wait == "turns" and not self.within_rounds:
            raise ValueError("wait = 'turns' needs within_rounds, for example 10; set wait = 'fastest' for no turns")
        if self.first_within and self.form != "tuned":
            raise ValueError(f"first_within is read by the form 'tuned'; leave it out with form = {self.form!r}")
        if self.theta == "estimated" and self.form in PACED:
            raise ValueError(
                f"theta = 'estimated' is for the forms 'plain' and 'safe'; {self.form!r} plans without theta"
            )
        if self.rule == "joint" and self.form in PACED and self.solver not in ("certified", "fast"):
            raise ValueError(f"solver = {self.solver!r} plans the forms 'plain' and 'safe'; set form to one of them")
        if self.energy_total_j is not None and self.solver != "certified" and self.form not in PACED:
            raise ValueError(f"energy_total_j needs solver = 'certified': {self.solver!r} knows no price of energy")
        return self

    @property
    def measures(self) -> bool:
        """Whether plans depend on what clients report."""
        return self.rule == "joint" and self.form == "tuned"

    def settling(self, number: int, rounds: int) -> bool:
        """Whether a round belongs to the last part of a run."""
        return number >= rounds - kept_count(self.settle, rounds)

    def fitted(self, algorithm: Algorithm, model: str, cut: str | None = None) -> Algorithm:
        """The method with the defaults of the form: safe and fast keep dense heads and turn error feedback on.

        Fast also sets the number of head steps to what a budget of work allows behind the cut, once there is one.
        What the settings state (algorithm.prune.head_memory, algorithm.sparsify.error_feedback, algorithm.head_steps)
        is not changed.
        """
        if self.rule == "own":
            return algorithm
        if not isinstance(algorithm, Flpdsp):
            raise ValueError(
                "allocation.rule = 'joint' plans k and r of the method 'flpdsp'; for other methods set "
                "allocation.rule = 'own', with allocation.bandwidth = 'min-max' if the band should be split well"
            )
        if algorithm.sparsify.select == "common":
            raise ValueError(
                "allocation.rule = 'joint' plans a keep rate for each client, but algorithm.sparsify.select = 'common' "
                "sends the same entries for everybody; set allocation.rule = 'own', with wait = 'pace' for its pace"
            )
        if self.form == "plain":
            return algorithm
        sparsify, prune = algorithm.sparsify, algorithm.prune
        if "error_feedback" not in sparsify.model_fields_set and not sparsify.rescale:
            sparsify = sparsify.model_copy(update={"error_feedback": True})
        if "head_memory" not in prune.model_fields_set:
            prune = prune.model_copy(update={"head_memory": "keep"})
        update: dict[str, Any] = {"sparsify": sparsify, "prune": prune}
        if self.form == "fast" and "head_steps" not in algorithm.model_fields_set and cut not in CRITERIA:
            update["head_steps"] = head_steps(model, cut)
        return algorithm.model_copy(update=update)
