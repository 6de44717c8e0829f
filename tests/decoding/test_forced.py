import numpy as np
import pytest
from small_configs import MODEL, sizes_of

from configs import rnn_bahdanau
from transformer.data.sources import PairSource
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS
from transformer.decoding.forced import ForcedDecoder
from transformer.models.family import build_model
from transformer.models.rnn import RNNConfig
from transformer.system.sharding import MeshConfig, make_mesh

RNN = RNNConfig(**rnn_bahdanau.get_model().to_dict() | {"embedding_size": 6, "hidden_size": 7})
V = 11


class Digits:
    """Numbers for words: token ids as text."""

    def encode_batch(self, texts, num_threads):
        return [[int(word) for word in text.split()] for text in texts]


class Pairs(PairSource):
    def __init__(self, pairs):
        self._pairs = pairs

    def __len__(self):
        return len(self._pairs)

    def chunks(self, size):
        yield self._pairs

    def describe(self):
        return "pairs"


def text(rng, length):
    return " ".join(map(str, rng.integers(3, V, length)))


@pytest.mark.parametrize("config", [MODEL, RNN], ids=["transformer", "rnn"])
def test_hits_are_those_of_the_full_forward_pass(config, random_params):
    model = build_model(config, sizes_of(V))
    params = random_params(model)
    rng = np.random.default_rng(0)
    # Targets shorter and longer than their sources, some beyond the narrowest batch.
    lengths = [(1, 3), (5, 2), (19, 1), (2, 23), (7, 7), (13, 0)]
    pairs = [(text(rng, s), text(rng, t)) for s, t in lengths]
    decoder = ForcedDecoder(model, Tokenizers(Digits(), Digits()), make_mesh(MeshConfig(0, 1, 1)))
    sources, references = zip(*pairs, strict=True)

    src_BS, tgt_out_BT = np.zeros((6, 20), int), np.zeros((6, 24), int)
    for row, (source, reference) in enumerate(pairs):
        src_BS[row, : lengths[row][0] + 1] = [*map(int, source.split()), EOS]
        tgt_out_BT[row, : lengths[row][1] + 1] = [*map(int, reference.split()), EOS]
    tgt_in_BT = np.roll(tgt_out_BT, 1, axis=1) * (tgt_out_BT > 0)
    tgt_in_BT[:, 0] = BOS
    logits_BTV = np.array(model.bind(params)(src_BS, tgt_in_BT))
    logits_BTV[:, :, :EOS] = -np.inf  # PAD and BOS
    hits_BT = logits_BTV.argmax(-1) == tgt_out_BT

    found = decoder.hits((params, {}), sources, references)
    assert 0 < sum(hits.sum() for hits in found) < 24
    for row, hits in enumerate(found):
        np.testing.assert_array_equal(hits, hits_BT[row, : lengths[row][1] + 1])


def test_what_is_compiled_in_advance_is_all_that_is_needed(random_params):
    model = build_model(MODEL, sizes_of(V))
    params = random_params(model)
    pairs = Pairs([("3 4", "5")] * 40 + [(" ".join("3" * 40), "4"), ("3", " ".join("4" * 40))])
    decoder = ForcedDecoder(model, Tokenizers(Digits(), Digits()), make_mesh(MeshConfig(0, 1, 1)))
    programs = decoder.prepare((params, {}), pairs)
    assert list(programs) == ["forced decoding, 32 x 64 tokens", "forced decoding, 32 x 16 tokens"]
    decoder.hits((params, {}), *zip(*pairs.pairs(), strict=True))
    assert len(decoder.prepare((params, {}), pairs)) == 2
