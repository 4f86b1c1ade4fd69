"""Each method's update as its paper prints it, written out by hand on the tiny model with plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from leanfed.algorithms.apfl import Apfl
from leanfed.algorithms.contract import ClientState, Cohort, ServerState, Training, Work
from leanfed.algorithms.ditto import Ditto
from leanfed.algorithms.fedala import FedAla
from leanfed.algorithms.fedavg import FedAvg
from leanfed.algorithms.fedbabu import FedBabu
from leanfed.algorithms.fedbn import FedBn
from leanfed.algorithms.feddyn import FedDyn
from leanfed.algorithms.fedprox import FedProx
from leanfed.algorithms.per_fedavg import PerFedAvg
from leanfed.algorithms.pfedme import PFedMe
from leanfed.algorithms.scaffold import Scaffold
from leanfed.algorithms.spafl import SpaFl
from leanfed.errors import SettingsError
from leanfed.runs.prepare import build_world
from leanfed.runs.settings import Settings
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split
from tests.unit.algorithms.test_methods import BASE, ETA, HEAD, INPUTS, LABELS, ask, close, dense, gradient_at, tiny

SHARED = torch.cat([BASE, HEAD])
NOTHING = ClientState(torch.empty(0))
OWN = SHARED + torch.linspace(-0.3, 0.3, 10)  # a client's model or memory, away from the shared one


def g(weights: Tensor) -> Tensor:
    """The gradient of the whole tiny model."""
    return gradient_at(weights[:6], weights[6:])


def test_fedprox_is_pulled_back_to_the_rounds_model() -> None:
    sent = dense(ask(FedProx(proximal=2.0), SHARED, NOTHING, steps=2).upload)
    w = SHARED - ETA * g(SHARED)
    w = w - ETA * (g(w) + 2.0 * (w - SHARED))
    assert close(SHARED - ETA * sent, w)


def test_fedprox_of_one_step_is_fedavg() -> None:
    ours, theirs = (ask(method, SHARED, NOTHING).upload for method in (FedProx(proximal=2.0), FedAvg()))
    assert torch.equal(ours.values, theirs.values)


def test_scaffold_corrects_drift_and_sends_two_vectors() -> None:
    c, own = torch.linspace(-0.1, 0.2, 10), OWN
    answer = ask(Scaffold(), torch.cat([SHARED, c]), ClientState(torch.empty(0), {"control": own}), steps=2)
    y = SHARED - ETA * (g(SHARED) - own + c)
    y = y - ETA * (g(y) - own + c)
    after = own - c + (SHARED - y) / (2 * ETA)  # option II
    assert torch.allclose(answer.client.memory["control"], after, atol=1e-6)  # the hand divides by 2 eta
    sent = dense(answer.upload)
    assert len(sent) == 20
    assert torch.allclose(sent[10:], after - own, atol=1e-6)
    server = Scaffold(server_rate=0.5).step(
        ServerState(torch.cat([SHARED, c])), sent, Training(learning_rate=ETA), 0, taken=0.25
    )
    assert close(server.shared[:10], SHARED + 0.5 * (y - SHARED))
    assert torch.allclose(server.shared[10:], c + 0.25 * (after - own), atol=1e-6)  # |S|/N of the clients took part


def test_feddyn_keeps_gradients_on_both_sides() -> None:
    alpha, h_n, h = 0.5, OWN, torch.linspace(0.1, -0.1, 10)
    answer = ask(FedDyn(proximal=alpha), SHARED, ClientState(torch.empty(0), {"own_gradient": h_n}), steps=2)
    w = SHARED - ETA * (g(SHARED) - h_n)
    w = w - ETA * (g(w) - h_n + alpha * (w - SHARED))
    assert close(answer.client.memory["own_gradient"], h_n - alpha * (w - SHARED))
    sent, training = dense(answer.upload), Training(learning_rate=ETA)
    server = FedDyn(proximal=alpha).step(ServerState(SHARED, {"drift": h}), sent, training, 0, taken=0.25)
    drift = h - alpha * 0.25 * (w - SHARED)
    assert close(server.memory["drift"], drift)
    assert close(server.shared, w - drift / alpha)


def test_ditto_trains_a_model_of_its_own_beside_fedavg() -> None:
    answer = ask(Ditto(proximal=2.0), SHARED, ClientState(OWN), steps=2)
    v = OWN - ETA * (g(OWN) + 2.0 * (OWN - SHARED))
    v = v - ETA * (g(v) + 2.0 * (v - SHARED))  # towards the round's model, not the one that is being trained
    assert close(answer.client.private, v)
    assert close(dense(answer.upload), dense(ask(FedAvg(), SHARED, NOTHING, steps=2).upload))
    (model,), _ = Ditto().personal_weights(ServerState(SHARED), v.unsqueeze(0), tiny())
    assert torch.equal(model, v)


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_learns_the_mixture(adaptive: bool) -> None:
    method = Apfl(adaptive=adaptive)
    answer = ask(method, SHARED, ClientState(torch.cat([OWN, torch.tensor([0.25])])), steps=2)
    w, v, a = SHARED, OWN, torch.tensor(0.25)
    for _ in range(2):
        slope = g(a * v + (1 - a) * w)
        step = float(adaptive) * torch.dot(v - w, slope)
        w, v, a = w - ETA * g(w), v - ETA * a * slope, a - ETA * step
    assert close(answer.client.private, torch.cat([v, a.reshape(1)]))
    assert close(SHARED - ETA * dense(answer.upload), w)
    (model,), _ = method.personal_weights(ServerState(SHARED), answer.client.private.unsqueeze(0), tiny())
    assert close(model, a * v + (1 - a) * SHARED)


def test_apfls_share_stays_between_nothing_and_all() -> None:
    far = ClientState(torch.cat([10 * OWN, torch.tensor([0.9])]))
    share = float(ask(Apfl(), SHARED, far, learning_rate=5.0).client.private[-1])
    assert share in (0.0, 1.0)


def test_pfedme_moves_towards_the_personal_models() -> None:
    method = PFedMe(proximal=3.0, inner_steps=2, inner_rate=0.2)
    answer = ask(method, SHARED, ClientState(OWN), steps=2)
    w = SHARED
    for _ in range(2):
        theta = w
        for _ in range(2):
            theta = theta - 0.2 * (g(theta) + 3.0 * (theta - w))
        w = w - ETA * 3.0 * (w - theta)
    assert close(answer.client.private, theta)
    assert close(SHARED - ETA * dense(answer.upload), w)


@pytest.mark.parametrize("form", ["first-order", "hessian-free"])
def test_per_fedavg_descends_on_the_loss_after_a_step(form: str) -> None:
    method = PerFedAvg.model_validate({"inner_rate": 0.5, "form": form, "delta": 0.01})
    answer = ask(method, SHARED, ClientState(torch.empty(0)), steps=2)
    w = SHARED
    for _ in range(2):
        inner = g(w)
        outer = g(w - 0.5 * inner)
        curved = (g(w + 0.01 * outer) - g(w - 0.01 * outer)) / 0.02 if form == "hessian-free" else torch.zeros(10)
        w = w - ETA * (outer - 0.5 * curved)
    assert torch.allclose(SHARED - ETA * dense(answer.upload), w, rtol=1e-4, atol=1e-5)  # a difference over 0.02
    assert method.tuning(Training(learning_rate=ETA)) == (1, 0.5)


def test_the_hessian_free_form_is_the_gradient_of_the_adapted_loss() -> None:
    """(I - alpha H) g(w - alpha g(w)) by autograd through the inner step."""
    w = SHARED.clone().requires_grad_()

    def loss(at: Tensor) -> Tensor:
        hidden = INPUTS @ at[:4].reshape(2, 2).T + at[4:6]
        return functional.cross_entropy(hidden @ at[6:].reshape(2, 2).T, LABELS)

    (inner,) = torch.autograd.grad(loss(w), w, create_graph=True)
    (exact,) = torch.autograd.grad(loss(w - 0.5 * inner), w)
    method = PerFedAvg(inner_rate=0.5, form="hessian-free", delta=0.01)
    sent = dense(ask(method, SHARED, ClientState(torch.empty(0))).upload)
    assert torch.allclose(sent, exact, atol=1e-3)
    first_order = dense(ask(PerFedAvg(inner_rate=0.5), SHARED, ClientState(torch.empty(0))).upload)
    assert not torch.allclose(first_order, exact, atol=1e-3)


def test_fedbabus_base_learns_under_the_initial_head() -> None:
    learner, settings = tiny(), Training(learning_rate=ETA)
    initial = learner.initial[6:].clone()
    batches = [Batch(INPUTS, LABELS).alone()] * 2
    none = torch.empty(1, 0)
    cohort = Cohort((0,), 0, 0, settings, np.ones(1), np.ones(1), none, {}, batches, 2)
    method = FedBabu(tune_steps=3)
    updates = method.client_update(BASE, cohort, learner)
    base = BASE
    for _ in range(2):
        base = base - ETA * gradient_at(base, initial)[:6]
    (upload,) = updates.uploads
    assert close(BASE - ETA * dense(upload), base)
    assert updates.private.numel() == method.private_size(learner.split) == 0
    used = method.personal_weights(ServerState(BASE), none, learner)
    assert close(torch.cat(used.row(0)), torch.cat([BASE, initial]))
    assert method.tuning(settings) == (3, 0.01)


def test_fedala_starts_from_a_learned_mixture_of_the_last_layer() -> None:
    refused = torch.tensor([0.0, 0.2, 0.4, 1.0])
    answer = ask(FedAla(mixing_rate=0.7), SHARED, ClientState(OWN, {"refused": refused}), steps=2)
    a, gap = 1 - refused, SHARED[6:] - OWN[6:]
    slope = g(torch.cat([SHARED[:6], OWN[6:] + a * gap]))[6:]
    a = (a - 0.7 * slope * gap).clamp(0, 1)
    w = torch.cat([SHARED[:6], OWN[6:] + a * gap])
    for _ in range(2):
        w = w - ETA * g(w)
    assert close(answer.client.memory["refused"], 1 - a)
    assert close(answer.client.private, w)
    assert torch.allclose(SHARED - ETA * dense(answer.upload), w, atol=1e-6)  # models are averaged


def spafl_loss(thresholds: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """Straight through the step function, by a surrogate whose value is the mask and whose slope is one."""

    def pruned(rows: Tensor, limits: Tensor) -> Tensor:
        above = rows.abs().mean(1) - limits
        mask = (above > 0).float().detach() + above - above.detach()
        return rows * mask.unsqueeze(1)

    first, last = weights[:4].reshape(2, 2), weights[6:].reshape(2, 2)
    hidden = INPUTS @ pruned(first, thresholds[:2]).T + weights[4:6]
    loss = functional.cross_entropy(hidden @ pruned(last, thresholds[2:]).T, LABELS)
    return loss + penalty * torch.exp(-thresholds).sum()


def test_spafl_trains_thresholds_straight_through_and_sends_them_alone() -> None:
    before, now, penalty = torch.tensor([0.1, 0.0, 0.2, 0.1]), torch.tensor([0.1, 0.3, 0.25, 0.0]), 0.1
    answer = ask(SpaFl(penalty=penalty), now, ClientState(torch.cat([SHARED, before])), steps=2)
    w = SHARED.clone()
    for row, columns in enumerate(([0, 1], [2, 3], [6, 7], [8, 9])):
        w[columns] -= (now[row] - before[row]) * torch.sign(SHARED[columns].sum()) / 2
    tau = now.clone()
    assert w[2:4].abs().mean() < now[1]  # a row that is pruned
    for _ in range(2):
        tau.requires_grad_(), w.requires_grad_()
        to_tau, to_w = torch.autograd.grad(spafl_loss(tau, w, penalty), (tau, w))
        tau, w = (tau - ETA * to_tau).detach(), (w - ETA * to_w).detach()
    assert close(now - ETA * dense(answer.upload), tau)
    assert close(answer.client.private, torch.cat([w, now]))


def test_fedbn_keeps_normalisation_layers() -> None:
    shapes = {
        "conv.weight": (4, 1, 3, 3), "conv.bias": (4,), "norm.weight": (4,), "norm.bias": (4,), "fc.weight": (2, 4),
        "slope.weight": (1,),
    }  # fmt: skip
    split = Split({name: torch.Size(shape) for name, shape in shapes.items()}, {})
    assert set(FedBn().divide(split).private) == {"norm.weight", "norm.bias"}


def test_fedbn_refuses_a_model_without_normalisation() -> None:
    with pytest.raises(SettingsError, match=r"'fedbn' does not fit task\.model = 'lenet5'.*would be 'fedavg'"):
        build_world(Settings.from_values({"algorithm": {"name": "fedbn"}}))


@pytest.mark.parametrize(
    ("method", "work"),
    [
        (FedProx(), Work()),
        (Scaffold(), Work()),
        (Ditto(), Work(passes=2.0)),
        (Apfl(), Work(passes=2.0)),
        (PFedMe(inner_steps=7), Work(passes=7.0)),
        (PerFedAvg(), Work(passes=2.0)),
        (PerFedAvg(form="hessian-free"), Work(passes=4.0)),
        (FedBabu(), Work()),
        (FedAla(mixing_steps=2), Work(passes=1.4)),
    ],
)
def test_what_a_method_says_it_computes_is_what_it_computes(method: Apfl, work: Work) -> None:
    """In a round of five batches the learner is asked for as many gradients as are charged."""
    assert method.work(5.0) == work
    learner, asked = tiny(), {"whole": 0, "head": 0}
    for name, key in (("loss_and_gradient", "whole"), ("head_gradient", "head")):
        inner = getattr(learner, name)

        def counting(*args: object, inner=inner, key=key) -> object:  # type: ignore[no-untyped-def]
            asked[key] += 1
            return inner(*args)

        setattr(learner, name, counting)
    split = method.divide(learner.split)
    memory = {name: torch.zeros(1, size) for name, size in method.holds(split, Training()).items()}
    private = torch.zeros(1, method.private_size(split))
    batches = [Batch(INPUTS, LABELS).alone()] * 5
    cohort = Cohort((0,), 0, 0, Training(), np.ones(1), np.ones(1), private, memory, batches, 5)
    method.client_update(torch.zeros(method.vector_size(split)), cohort, learner)
    assert asked == {"whole": round(5 * float(work.passes)), "head": 5 * work.head_passes}
