"""FedJAX: its own federated averaging on the compiled `for_each_client` backend; images have their channel last."""

from __future__ import annotations

from collections.abc import Mapping

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.peers.turns import Flat, GivenRound, Turns, given_round
from fedjax.algorithms import fed_avg
from jax import lax

Weights = Mapping[str, jax.Array]


def pooled(images: jax.Array) -> jax.Array:
    """The largest of every 2x2 pixels; faster on a processor than `lax.reduce_window`, whose gradient scatters."""
    count, height, width, channels = images.shape
    return images.reshape(count, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def logits(weights: Weights, images: jax.Array) -> jax.Array:
    """(batch, 32, 32, 1) -> (batch, 10)."""

    def convolved(name: str, x: jax.Array) -> jax.Array:
        kernel = weights[f"{name}.weight"]
        y = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(y + weights[f"{name}.bias"])

    x = pooled(convolved("conv1", images))
    x = pooled(convolved("conv2", x))
    x = convolved("conv3", x).reshape(len(x), -1)
    x = jax.nn.relu(x @ weights["fc1.weight"] + weights["fc1.bias"])
    return x @ weights["fc2.weight"] + weights["fc2.bias"]


def loss(weights: Weights, batch: Mapping[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross-entropy; the key is not needed."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(weights, batch["x"])), batch["y"][:, None], axis=1)
    return -chosen.mean()


def to_jax(weights: Mapping[str, Flat]) -> dict[str, jax.Array]:
    """Kernels (out, in, y, x) -> (y, x, in, out), matrices (out, in) -> (in, out): transposed both."""
    orders = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
    return {name: jnp.asarray(np.transpose(value, orders[value.ndim])) for name, value in weights.items()}


def from_jax(weights: Weights) -> dict[str, Flat]:
    """The inverse of `to_jax`."""
    orders = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}
    return {name: np.transpose(np.asarray(value), orders[value.ndim]) for name, value in weights.items()}


def data_of(given: GivenRound, client: int) -> fedjax.ClientDataset:
    """A client's samples as FedJAX takes them."""
    inputs, labels = given.samples(client)
    return fedjax.ClientDataset({"x": np.ascontiguousarray(inputs.transpose(0, 2, 3, 1)), "y": labels.astype(np.int32)})


def main() -> None:
    given, turns = given_round(), Turns("fedjax", "jax", "numpy")
    fedjax.set_for_each_client_backend("jit")
    algorithm = fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(given.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=given.batch, num_epochs=1, skip_shuffle=True),
    )
    keys = jax.random.split(jax.random.PRNGKey(0), given.clients)
    clients = [(client, data_of(given, client), keys[client]) for client in range(given.clients)]
    state = algorithm.init(to_jax(given.weights))
    turns.begin()
    for _ in range(turns.rounds):
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        turns.after_round(lambda: given.flat(from_jax(state.params)))  # noqa: B023  (called at once)
