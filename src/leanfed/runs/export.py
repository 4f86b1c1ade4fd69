"""A client's own model as a file that runs without leanfed, with its size, latency and accuracy beside the original."""

from __future__ import annotations

import importlib
import io
import json
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn

from leanfed.algorithms.contract import PRIVATE, ClientState, ServerState
from leanfed.algorithms.learner import one_thread
from leanfed.errors import InputError, LeanfedError, MissingExtraError, first_line
from leanfed.files import check_parent, make_folder, sha256_of, write_atomically, write_text
from leanfed.results import RunFolder
from leanfed.rounds.broadcast import seen
from leanfed.rounds.evaluation import at_own_width, scored, used_weights
from leanfed.rounds.world import HANDED, World
from leanfed.runs.prepare import build_world
from leanfed.runs.settings import Settings
from leanfed.tasks.split import flatten
from leanfed.tasks.task import Images
from leanfed.tasks.units import Kept, Layer, find_units, narrowed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Format = Literal["torch", "onnx", "executorch"]
TORCHVISION: Final = "torch.onnx._internal.exporter._registration"  # the log of who looks for its operators
ENDINGS: Final[dict[Format, str]] = {"torch": ".pt2", "onnx": ".onnx", "executorch": ".pte"}
INSTALLS: Final = {  # ExecuTorch is in no extra of ours: it brings much that nothing else here needs
    "onnxscript": "'leanfed[export]'",
    "onnxruntime": "'leanfed[export]'",
    "executorch": "executorch",
}
Predict = Callable[[Tensor], Tensor]
REPEATS = 30  # runs of one sample, of which the median counts
CALIBRATION = 200  # a client's own training samples that choose the ranges of 8-bit activations


@dataclass(frozen=True)
class Footprint:
    """What a model takes and gives on this machine: one thread, one sample at a time."""

    bytes: int
    latency_ms: float
    score: float  # on the client's own test set


@dataclass(frozen=True)
class Exported:
    """An exported model; `original` is the same model in PyTorch with all its units."""

    path: Path
    client: int
    format: Format
    int8: bool
    units: Mapping[str, tuple[int, int]]  # layer -> units that it has, and had; empty where none was taken out
    judged_by: str  # what the scores are
    file: Footprint
    original: Footprint

    @property
    def description(self) -> Path:
        """The file beside the model that says how to use it."""
        return self.path.with_name(f"{self.path.name}.json")


def export_model(
    folder: str | Path,
    client: int,
    format: Format,
    out: str | Path,
    *,
    int8: bool = False,
    units: float | None = None,
    data_dir: str | Path | None = None,
) -> Exported:
    """Write a client's model to a file, and a description (JSON) next to it.

    Units of the head that pruning has emptied are left out; `units` keeps only that share of each layer's, those with
    the largest weights.
    """
    if int8 and format != "onnx":
        raise InputError(f"8-bit models are written in ONNX only, not as {format!r}. Choose --format onnx.")
    path = Path(out)
    check_parent(path)
    make_folder(path.parent)
    world, whole = client_model(RunFolder(Path(folder)), client, data_dir)
    model, taken = without_units(world, whole, units)
    sample = world.task.test.batch(world.task.partition.test[client][:1]).inputs
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about their own future
        write_atomically(path, lambda partial: _write(partial, model, sample, format, world if int8 else None, client))
        measured = _footprint(world, client, open_model(path, format), sample, path.stat().st_size)
        held = sum(value.numel() * value.element_size() for value in whole.state_dict().values())
        original = _footprint(world, client, torch.no_grad()(whole), sample, held)
    exported = Exported(path, client, format, int8, taken, world.task.loss.judged_by, measured, original)
    write_text(exported.description, json.dumps(_description(exported, world, sample), indent=2) + "\n")
    return exported


def client_model(folder: RunFolder, client: int, data_dir: str | Path | None = None) -> tuple[World, nn.Module]:
    """The world of a finished run, and the model that one of its clients predicts with, in evaluation mode."""
    if not folder.settings.is_file():
        raise InputError(f"{folder.path} is no run folder. Name one, such as runs/first.")
    if not folder.weights.is_file():
        raise InputError(
            f"{folder.path} has no weights.safetensors: the run has not ended, or had run.keep_weights = false. "
            "Finish it with `leanfed resume`, or run it again with run.keep_weights = true."
        )
    settings = Settings.from_values(folder.read_settings(), str(folder.settings))
    here = settings.run.model_copy(update={"device": "cpu"})  # wherever the run was computed
    world = build_world(settings.model_copy(update={"run": here}), data_dir)
    if not 0 <= client < world.task.clients:
        raise InputError(f"Client {client} is not in {folder.path}, which has clients 0 to {world.task.clients - 1}.")
    server, kept = _states(folder.weights, client)
    world = world.laid_out(len(server.shared))
    state = kept or world.new_clients(server.memory.get(HANDED))[client]  # it never took part, nor was it tested
    world, server, state, learner = at_own_width(world, seen(server), state, world.new_learner(), client)
    with one_thread():
        learner.model.load(used_weights(world, server, state, learner, client))
    model = world.task.new_model("base")
    model.load_state_dict({name: value.clone() for name, value in learner.model.model.state_dict().items()})
    return world, model.eval()


def without_units(world: World, model: nn.Module, share: float | None) -> tuple[nn.Module, dict[str, tuple[int, int]]]:
    """A client's model with fewer units in its head, and how many each layer has and had; the same model if none goes.

    Those whose weights are all zero go if the run prunes units; with a share, all but the largest by the sum of w^2.
    """
    if share is None and world.units is None:
        return model, {}
    units = world.units or find_units(model, world.split)
    private = flatten(model, world.split.private)
    kept: Kept = units.nonzero(private)
    if share is not None:
        kept = {layer.name: _largest(layer, units.entries[layer.name], private, share) for layer in units.layers}
    taken = {layer.name: (len(kept[layer.name]), layer.units) for layer in units.layers}
    if all(left == had for left, had in taken.values()):
        return model, {}
    return narrowed(units, model, kept).eval(), taken


def _largest(layer: Layer, entries: Tensor, private: Tensor, share: float) -> Tensor:
    count = int(share * layer.units + 1e-9) if math.isfinite(share) else 0
    if not 1 <= count <= layer.units:
        raise InputError(
            f"A share of {share:g} leaves {count} of the {layer.units} units of {layer.name!r}. Keep at least one, "
            f"{1 / layer.units:.2g}, and at most all, 1."
        )
    worth = private[entries].double().square().sum(1)
    return torch.argsort(-worth, stable=True)[:count].sort().values


def _states(path: Path, client: int) -> tuple[ServerState, ClientState | None]:
    """The server's and one client's state in a file of weights, None if it is not there; no other's rows are read."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        names = list(file.keys())
        server = {name.removeprefix("server.memory."): file.get_tensor(name) for name in names if ".memory." in name}
        rows = {}
        for name in (name.removesuffix(".clients") for name in names if name.endswith(".clients")):
            places = (file.get_tensor(f"{name}.clients") == client).nonzero().flatten()
            if len(places):
                rows[name.removeprefix("client.")] = file.get_slice(name)[int(places[0])]
        private = rows.pop(PRIVATE, None)
        state = None if private is None else ClientState(private, rows)
        return ServerState(file.get_tensor("server.shared"), server), state


def _write(path: Path, model: nn.Module, sample: Tensor, format: Format, calibrated: World | None, client: int) -> None:
    """Export for any number of samples at a time; in 8 bits where a world to calibrate with is given."""
    for package in {"onnx": ("onnxscript", "onnxruntime"), "executorch": ("executorch",)}.get(format, ()):
        _needed(package)
    try:
        if calibrated is None:
            write_model(path, model, sample, format)
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder, "whole.onnx")
            write_model(whole, model, sample, format)
            _quantise(whole, path, calibrated, client)
    except LeanfedError:
        raise
    except Exception as error:  # of torch's tracer and of converters, which have no common parent
        reason = first_line(error)
        raise InputError(
            f"This model cannot be written as {format!r} ({reason}). Its forward pass must not depend on the values of "
            "its inputs; try the other --format, or leave out --int8."
        ) from error


def write_model(path: Path, model: nn.Module, sample: Tensor, format: Format) -> None:
    """Write a module for any number of samples like this one (1, ...) at a time; ExecuTorch takes one."""
    if format == "executorch":
        path.write_bytes(_lowered(torch.export.export(model, (sample,))))
        return
    example = (torch.cat([sample, sample]),)  # one sample would fix the number at one
    shapes = ({0: torch.export.Dim("batch")},)
    if format == "torch":
        packed = io.BytesIO()  # torch warns of a file whose name does not end as it would have it
        torch.export.save(torch.export.export(model, example, dynamic_shapes=shapes), packed)
        path.write_bytes(packed.getvalue())
        return
    logging.getLogger(TORCHVISION).setLevel(logging.ERROR)  # it tells at length that torchvision is not there
    names: dict[str, Any] = {"input_names": ["input"], "output_names": ["output"]}
    program = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
    assert program is not None
    program.save(str(path), include_initializers=True, external_data=False)


def _lowered(program: Any) -> bytes:
    """A program for ExecuTorch's runtime, with XNNPACK's kernels where they fit."""
    kernels = _needed("executorch.backends.xnnpack.partition.xnnpack_partitioner").XnnpackPartitioner()
    lowered = _needed("executorch.exir").to_edge_transform_and_lower(program, partitioner=[kernels])
    return bytes(lowered.to_executorch().buffer)


def open_model(path: Path, format: Format) -> Predict:
    """The file as another program would run it."""
    if format == "torch":
        module = torch.export.load(path).module()
        return torch.no_grad()(module)
    if format == "executorch":
        method = _needed("executorch.runtime").Runtime.get().load_program(path).load_method("forward")
        return lambda inputs: torch.cat([method.execute([one.unsqueeze(0)])[0].clone() for one in inputs])
    ort = _needed("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"input": inputs.numpy()})[0])


def _quantise(source: Path, target: Path, world: World, client: int) -> None:
    """Weights and activations in 8 bits, with ranges seen on the client's own training samples."""
    from onnxruntime import quantization

    rows = world.task.partition.train[client][:CALIBRATION]
    samples: Iterator[dict[str, NDArray[np.float32]]] = (
        {"input": world.task.train.batch(rows[at : at + 1]).inputs.numpy()} for at in range(len(rows))
    )

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            return next(samples, None)

    quantization.quantize_static(str(source), str(target), Samples(), quant_format=quantization.QuantFormat.QDQ)


def _footprint(world: World, client: int, predict: Predict, sample: Tensor, size: int) -> Footprint:
    result = scored(world, client, predict)
    return Footprint(size, latency_ms(predict, sample), result.scores.get(world.task.loss.judged_by, result.loss))


def latency_ms(predict: Predict, sample: Tensor, repeats: int = REPEATS) -> float:
    """Milliseconds of one sample: the median of the repeats, after three that do not count."""
    spent = []
    for _ in range(repeats + 3):
        began = time.perf_counter()
        predict(sample)
        spent.append(time.perf_counter() - began)
    return 1e3 * median(spent[3:])


def _description(exported: Exported, world: World, sample: Tensor) -> dict[str, Any]:
    """What a stranger needs to run the file."""
    from leanfed import __version__

    task = world.task
    scaled = "as the samples of the task are given"
    if isinstance(task.train, Images):
        mean, deviation = (part.flatten().tolist() for part in (task.train.mean, task.train.deviation))
        scaled = f"(pixel / 255 - mean) / deviation, by channel: mean {mean}, deviation {deviation}"
    return {
        "leanfed": __version__,
        "client": exported.client,
        "model": task.settings.model,
        "dataset": task.settings.dataset,
        "method": world.algorithm.model_dump()["name"],
        "format": exported.format,
        "int8": exported.int8,
        "units": {name: {"has": has, "had": had} for name, (has, had) in exported.units.items()},
        "sha256": sha256_of(exported.path),
        "input": {
            "shape": [1 if exported.format == "executorch" else "batch", *sample.shape[1:]],
            "type": str(sample.dtype).removeprefix("torch."),
            "scaled": scaled,
        },
        "output": {"shape": ["batch", task.outputs], "meaning": "logits" if task.classes else "predictions"},
        "judged_by": exported.judged_by,
        "file": asdict(exported.file),
        "original": asdict(exported.original),
    }


def _needed(name: str) -> Any:
    """A package that is not installed with leanfed itself, or a module of it."""
    root = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        why = f"This format needs the package {root}. Install it: pip install {INSTALLS[root]}."
        raise MissingExtraError(why) from error
