"""A tiny random encoder of the BERT family in a folder, so that tests of text models take seconds and no network."""

from __future__ import annotations

from pathlib import Path

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "road", "and", "not", "quickly", "slowly", "home", "away"]


def tiny_encoder(folder: Path, layers: int = 3, *, family: str = "bert") -> str:
    """Save a random encoder and its tokenizer; the folder is the encoder's name."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    BertWordPieceTokenizer(vocab=vocabulary).save(str(folder / "tokenizer.json"))
    BertTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _random(family, layers, len(vocabulary)).save_pretrained(folder)
    return str(folder)


def _random(family: str, layers: int, words: int):
    from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

    if family == "distilbert":
        return DistilBertModel(DistilBertConfig(vocab_size=words, dim=16, n_layers=layers, n_heads=2, hidden_dim=32))
    return BertModel(
        BertConfig(
            vocab_size=words,
            hidden_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=32,
            initializer_range=0.2,
        )
    )
