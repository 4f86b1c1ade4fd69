"""Local steps of stochastic gradient descent, shared by every method that trains weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanfed.algorithms.base import ClientState, ClientUpdate, Job, Upload
from leanfed.errors import InputError
from leanfed.tasks.split import FlatModel


class DivergedError(InputError):
    """Training left the finite numbers."""


@dataclass(frozen=True)
class LocalRun:
    """Where a client's steps ended."""

    gradient: Tensor  # (d,) sum of the steps' gradients: (start - end) / eta of the shared part
    private: Tensor  # (d_P,) private weights after the steps
    velocity: Tensor | None  # (d_P,) momentum of the private part
    loss: float
    samples: int


def local_steps(
    model: FlatModel,
    shared: Tensor,
    private: Tensor,
    job: Job,
    *,
    mask: Tensor | None = None,
    discard: bool = False,
    masked_gradient: bool = False,
    velocity: Tensor | None = None,
    head_steps: int = 1,
) -> LocalRun:
    """Train [shared | private] on the job's batches.

    On each batch the private part takes `head_steps` steps, the first together with the shared part and all on the
    features that the shared part had before it.

    `mask` (d,) rules every step's computation: gradients are taken at weights x mask. With `discard` the masked
    weights are the weights, as in Algorithm 1; otherwise the dense ones survive below the mask. With
    `masked_gradient` the entries outside the mask are not updated. Momentum is for the private part; the shared part
    has its own at the server.
    """
    cut, rate, training = len(shared), job.learning_rate, job.training
    weights = torch.cat([shared, private])
    total = torch.zeros_like(weights)
    losses, samples = [], 0
    for batch in job.batches:
        for turn in range(head_steps):
            start = cut if turn else 0  # further steps are the private part's alone
            part, kept = weights[start:], None if mask is None else mask[start:]
            if kept is not None and discard:
                part.mul_(kept)
            used = part if kept is None or discard else part * kept
            if turn:
                gradient = model.head_gradient(used, batch.labels)
            else:
                loss, gradient = model.loss_and_gradient(used, batch.inputs, batch.labels)
                refuse_divergence(loss, job)
                losses.append(loss)
                samples += len(batch.labels)
            if training.weight_decay:
                gradient.add_(used, alpha=training.weight_decay)
            if kept is not None and masked_gradient:
                gradient.mul_(kept)
            total[start:].add_(gradient)
            if training.momentum and len(private):
                own = gradient[cut - start :]
                velocity = own.add(torch.zeros_like(private) if velocity is None else velocity, alpha=training.momentum)
                own.copy_(velocity)
            part.sub_(gradient, alpha=rate)
    return LocalRun(total, weights[cut:].clone(), velocity, math.fsum(losses) / len(losses), samples)


def decoupled_update(shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
    """Train both parts, upload the shared gradient whole, keep the private part."""
    run = local_steps(model, shared, client.private, job, velocity=client.memory.get("velocity"))
    memory = {} if run.velocity is None else {"velocity": run.velocity}
    upload = Upload(len(shared), run.gradient[: len(shared)].clone())
    return ClientUpdate(upload, ClientState(run.private, memory), run.loss, run.samples)


def refuse_divergence(loss: float, job: Job) -> None:
    """Stop with the client, the round and what to change when a loss is not finite."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"Client {job.client} diverged in round {job.round} while training: its loss is {loss} at learning rate "
            f"{job.learning_rate:g}. Lower training.learning_rate and start again."
        )
