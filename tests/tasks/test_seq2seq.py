import dataclasses
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from configs import base
from transformer.data.sources import Corpus, DataConfig
from transformer.system.errors import UserError
from transformer.tasks import seq2seq
from transformer.tasks.pair_training import Texts, check_positions

DATA = DataConfig(**base.get_config().data)


@pytest.fixture
def data(tmp_path):
    """A test split of three pairs."""
    for side, lines in {
        "en": ["a", "b", "c"],
        "de": ["Eine Katze.", "a b c d:e. f:g.", ""],
    }.items():
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    return dataclasses.replace(
        DATA, test_source=str(tmp_path / "en"), test_target=str(tmp_path / "de")
    )


def test_saved_hypotheses_are_scored_as_they_are(data):
    whole = seq2seq.TASK.rescore(data, "test", ["Eine Katze.", "a b c d:e. f:g.", ""])
    assert whole["bleu"]["score"] == pytest.approx(100)
    other = seq2seq.TASK.rescore(data, "test", ["Eine Katze.", "a b c d:e. f:h.", ""])
    assert other["bleu"]["score"] < 100
    # Text that is tokenised already is scored by its tokens, of which fewer are right.
    tokens = dataclasses.replace(data, is_tokenized=True)
    of_tokens = seq2seq.TASK.rescore(tokens, "test", ["Eine Katze.", "a b c d:e. f:h.", ""])
    assert of_tokens["bleu"]["score"] < other["bleu"]["score"]
    assert "tok:none" in of_tokens["bleu"]["signature"]
    assert list(of_tokens) == ["bleu", "chrf", "ter"]
    # BLEU has the tokenizer that the config names, in training too.
    char = dataclasses.replace(data, bleu_tokenizer="char")
    hypotheses = ["Eine Katze.", "a b c d:e. f:h.", ""]
    found = seq2seq.TASK.rescore(char, "test", hypotheses)["bleu"]
    assert "|tok:char|" in found["signature"]
    texts = Texts("validation", [], ["Eine Katze.", "a b c d:e. f:g.", ""], hypotheses)
    in_training = seq2seq.Seq2Seq.validation_scores(SimpleNamespace(data=char), None, texts)
    assert in_training == {"bleu": found["score"]}


def test_what_cannot_be_scored_is_not_translated_first(data):
    thai = dataclasses.replace(data, target_language="tha")
    task = SimpleNamespace(data=thai, open_source=seq2seq.open_source)
    task.check_data, task.translate = seq2seq.Seq2Seq.check_data, None
    for check in (
        lambda: seq2seq.Seq2Seq.check_data(thai),
        lambda: seq2seq.Seq2Seq.evaluate(task, None, None, "test", None),
    ):
        with pytest.raises(UserError, match=r"tha has no spaces between words.*data\.bleu_tokeniz"):
            check()
    seq2seq.Seq2Seq.check_data(dataclasses.replace(thai, bleu_tokenizer="char"))


def test_the_hash_of_a_split_is_of_all_that_training_sees(tmp_path):
    def hash_of(text):
        return hashlib.sha256(text.encode()).hexdigest()

    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}\n")
    a, b, c = (str(tmp_path / name) for name in ("a", "b", "c"))
    files = {"train_source": a, "train_target": b, "validation_source": a, "validation_target": c}
    data = dataclasses.replace(DATA, **files)
    extra = dataclasses.replace(data, corpora={"extra": Corpus(source=b, target=a)})
    assert seq2seq.content_sha256(data, "train") == hash_of("a\nb\n")
    assert seq2seq.content_sha256(extra, "train") == hash_of("a\nb\nb\na\n")
    assert seq2seq.content_sha256(extra, "validation") == hash_of("a\nc\n")


def test_a_family_that_cannot_pack_is_told_so():
    sections, family = base.get_config(), SimpleNamespace(packs=False)
    parts = {name: sections[name] for name in ("data", "training", "model")}
    config = SimpleNamespace(**parts, family=family)
    with pytest.raises(UserError, match=r"cannot keep the pairs of a packed row apart; set data\."):
        seq2seq.prepare(config, None, None, None)


def test_a_position_never_has_words_of_two_sources():
    pairs = SimpleNamespace(source_lengths=np.array([3, 6, 5]))
    check_positions(1, pairs, pairs)
    with pytest.raises(UserError, match=r"but 2 sources have no multiple of so many"):
        check_positions(3, pairs, pairs)
