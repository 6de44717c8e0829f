"""A trained model that is none, for tests of what is around it."""

import dataclasses
import time
from collections.abc import Callable
from types import SimpleNamespace

from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import Tokenizer
from transformer.decoding.translation import Translation


class Words(Tokenizer):
    """Words are tokens."""

    model_bytes = b"words"
    pieces = ()
    vocab_size = 4

    def encode_batch(self, texts, num_threads):
        del num_threads
        return [[3] * len(text.split()) for text in texts]

    def sample_batch(self, texts, alpha, seed):
        raise NotImplementedError

    def decode(self, ids):
        raise NotImplementedError


def translation(text: str) -> Translation:
    return Translation(text, 0.0, 0.0, [], [], None)


WORDS = Tokenizers(Words(), Words())


@dataclasses.dataclass(frozen=True)
class Decoding:
    beam_size: int = 4


def trained(
    tokenizers: Tokenizers,
    translate: Callable[[Tokenizer, str], str],
    max_length: int = 1000,
    seconds: float = 0.0,
) -> SimpleNamespace:
    """As runs/restore.py gives it. seconds: how long each line takes."""

    def search(params, extra, requests, *, nbest, alignments, progress):
        del params, extra, alignments, progress
        time.sleep(seconds * len(requests))
        texts = [translate(tokenizers.source, request.source) for request in requests]
        return [[translation(text)] * nbest if text else [] for text in texts]

    task = SimpleNamespace(
        data=SimpleNamespace(max_source_length=max_length, max_target_length=max_length),
        tokenizers=tokenizers,
        translator=SimpleNamespace(config=Decoding(), search=search),
        searched=lambda sentences, prefixes: (sentences, prefixes),
        long_lines="split",
        target_language="",
    )
    config = SimpleNamespace(task=SimpleNamespace(name="seq2seq"))
    return SimpleNamespace(params={}, extra={}, task=task, config=config)
