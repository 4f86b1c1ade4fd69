"""Flower: a ClientApp and a ServerApp with FedAvg on its simulation engine (Ray, one actor with one processor)."""

from __future__ import annotations

from functools import cache

from benchmarks.peers.lenet import Batches, LeNet5, batches_of, flat_weights, one_thread, started, train
from benchmarks.peers.turns import GivenRound, Turns, given_round
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


@cache
def held() -> tuple[GivenRound, LeNet5]:
    """The data and a model, loaded once by every actor."""
    one_thread()
    return given_round(), LeNet5()


@cache
def held_batches(client: int) -> Batches:
    """A client's batches, assembled once."""
    return batches_of(held()[0], client)


client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    given, model = held()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, held_batches(int(context.node_config["partition-id"])), given.learning_rate)
    metrics = MetricRecord({"num-examples": given.steps * given.batch})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    given, turns = given_round(), Turns("flwr", "ray", "torch", "numpy")

    def after_round(number: int, arrays: ArrayRecord) -> None:
        if number == 0:  # the initial weights
            turns.begin()
        else:
            turns.after_round(lambda: flat_weights(given, arrays.to_torch_state_dict()))

    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=given.clients,
        min_available_nodes=given.clients,
    )
    initial = ArrayRecord(started(given).state_dict())
    strategy.start(grid, initial, num_rounds=turns.rounds, evaluate_fn=after_round)


def main() -> None:
    one_thread()
    run_simulation(
        server_app,
        client_app,
        num_supernodes=given_round().clients,
        backend_config={"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )
