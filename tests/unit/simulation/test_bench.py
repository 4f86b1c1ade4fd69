"""The benchmark measures what it says."""

import torch

from leanfed.simulation.bench import LinearLeNet5, bench_world, centralised, engine_bench
from leanfed.tasks.models import LeNet5
from leanfed.tasks.split import flatten


def test_the_benchmark_reports_its_ratios():
    figures = engine_bench(clients=3, threads=1, batch=4, repeats=1, grown=6)
    assert figures["grown"] == 6
    assert figures["growth"] > 0
    assert figures["ratio_one_batch"] == figures["round_s"] / figures["one_batch_s"]
    assert figures["ratio_chunked"] == figures["round_s"] / figures["chunked_s"]
    assert (figures["clients"], figures["batch"], figures["threads"]) == (3, 4, 1)
    assert figures["engine"] == "batched"


def test_the_benchmark_leaves_torch_threads_alone():
    before = torch.get_num_threads()
    engine_bench(clients=1, threads=1, batch=1, repeats=1)
    assert torch.get_num_threads() == before


def test_both_yardsticks_compute_the_same_gradient():
    stock, linear = LeNet5(10), LinearLeNet5(10)
    weights = torch.cat([p.detach().reshape(-1) for p in stock.parameters()])
    torch.nn.utils.vector_to_parameters(weights, linear.parameters())
    inputs, labels = torch.randn(6, 1, 32, 32), torch.randint(10, (6,))
    centralised(stock, inputs, labels, 6)
    centralised(linear, inputs, labels, 2)
    sums = [torch.cat([p.grad.reshape(-1) for p in model.parameters()]) for model in (stock, linear)]
    assert torch.allclose(sums[0], sums[1] / 3, atol=1e-6)  # three means of two samples each


def test_every_client_of_the_benchmark_fills_its_batch():
    world = bench_world(5, "lenet5", 100)
    assert min(len(rows) for rows in world.task.partition.train) >= 100
    assert world.algorithm.k == 0.1
    assert len(flatten(world.task.new_model("base"), world.split.shared)) == world.split.shared_size


def test_a_model_without_kernels_is_streamed_over_noise():
    figures = engine_bench(clients=2, model="resnet18-imagenet", threads=1, batch=2, repeats=1)
    assert (figures["engine"], figures["clients"], figures["repeats"]) == ("streamed", 2, 1)
    assert figures["cpu_ratio_chunked"] > 0
    assert figures["cpu_ratio_one_batch"] > 0
