"""Wrong arguments of the Python API: one sentence each, which names them as Python does."""

import re

import echo_model
import pytest

import transformer
from transformer.decoding.config import DecodingConfig
from transformer.inference import model as model_module
from transformer.inference.model import Model
from transformer.runs import restore
from transformer.system.errors import UserError


def model() -> Model:
    return Model(echo_model.trained(echo_model.WORDS, lambda _, line: line.upper()))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.translate(None), "sentences is None; give a list of texts"),
        (lambda m: m.translate(b"one"), "sentences is b'one'; give a list of texts"),
        (lambda m: m.translate({"a": 1}), "sentences is {'a': 1}; give a list of texts"),
        (lambda m: m.translate(["one", None]), "sentences[1] is None; give a text"),
        (lambda m: m.translate([("a", "b")]), "sentences[0] is ('a', 'b'); give a text"),
        (lambda m: m.translate(["a"], prefixes=3), "prefixes is 3; give a list of texts"),
        (lambda m: m.translate(["a"], prefixes=[3]), "prefixes[0] is 3; give a text"),
        (lambda m: m.translate(["x"], prefixes="a"), "prefixes are 'a' for 1 sentences; give a "),
        (
            lambda m: m.translate(["x"], prefixes=["a", "b"]),
            "prefixes are ['a', 'b'] for 1 sentences",
        ),
        (
            lambda m: m.translate(["x"], constraints=["a"]),
            "constraints hold a text; give each sentence a list of phrases",
        ),
        (lambda m: m.translate(["a"], constraints=3), "constraints is 3; give a list of lists of"),
        (lambda m: m.translate(["a"], constraints=[3]), "constraints[0] is 3; give a list of"),
        (lambda m: m.translate(["a"], constraints=[[3]]), "constraints[0][0] is 3; give a text"),
        (lambda m: m.search(["a"], nbest="2"), "nbest is '2'; give a whole number"),
        (lambda m: m.search(["a"], nbest=True), "nbest is True; give a whole number"),
        (lambda m: m.search(["a"], nbest=0), "nbest is 0; it must be at least 1"),
        (lambda m: m.search(["a"], progress=3), "progress is 3; give a function of one number"),
        (lambda m: m.score(("a", "b")), "pairs[0] is 'a'; give a list of pairs of two texts"),
        (lambda m: m.score(["ab"]), "pairs[0] is 'ab'; give a list of pairs of two texts"),
        (lambda m: m.score(None), "pairs is None; give a list of pairs of two texts"),
        (lambda m: m.score([("a", "b", "c")]), "pairs[0] is ('a', 'b', 'c'); give two texts"),
        (lambda m: m.score([("a", None)]), "pairs[0][1] is None; give a text"),
        (lambda m: m.score([3]), "pairs[0] is 3; give a list of pairs of two texts"),
        (lambda m: m.attention(["a"]), "source is ['a']; give a text"),
        (lambda m: m.attention("a", 3), "target is 3; give a text"),
        (lambda m: m.is_long(None), "source is None; give a text"),
        (lambda m: m.is_long_target(3), "target is 3; give a text"),
        (lambda m: Model(m.restored, max_tokens="7"), "max_tokens is '7'; give a whole number"),
    ],
)
def test_what_methods_refuse(call, said):
    with pytest.raises(UserError) as error:
        call(model())
    assert str(error.value).startswith(said)
    assert len(str(error.value)) < 120


def test_what_methods_take():
    assert model().translate(line for line in ("a", "b")) == ["A", "B"]
    assert model().translate("a b") == ["A B"]
    assert model().translate([]) == model().search(()) == []
    assert model().translate(["a"], prefixes=iter([""]), constraints=iter([["A"]])) == ["A"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beam": 3}, "load has no option beam; did you mean 'beam_size'?"),
        ({"chekpoint": 3}, "load has no option chekpoint; did you mean 'checkpoint'?"),
        ({"zzz": 3}, "load has no option zzz; choose one of checkpoint, average_last,"),
        ({"beam_size": "3"}, "beam_size is '3'; it must be of type int"),
        ({"beam_size": 0}, "beam_size is 0; it must be at least 1 and below 1025"),
        ({"average_last": "3"}, "average_last is '3'; give a whole number"),
        ({"average_last": 3}, "average_last=3 is for checkpoint=average, and this is checkpoint=b"),
        ({"checkpoint": 2.5}, "checkpoint=2.5: it must be last, best, average, ema, or a step"),
        ({"ensemble": "runs/b"}, "ensemble is 'runs/b'; give a list of work directories"),
        ({"ensemble": [3]}, "ensemble[0] is 3; give the path of a work directory"),
        ({"ensemble": None}, "ensemble is None; give a list of work directories"),
        ({"workdir": None}, "workdir is None; give the path of a work directory"),
        (
            {"workdir": "gone"},
            "gone is not a work directory: it has no config.json (looked up in ",
        ),
    ],
)
def test_what_load_refuses(options, said, tmp_path, monkeypatch):
    def restored(workdir, checkpoint, average_last, overrides):
        """Says what its like would say, of flags and fields."""
        if str(workdir) == "gone" or (checkpoint and not checkpoint.isdecimal()):
            return restore.restore(workdir, checkpoint, average_last, overrides)
        if average_last:
            raise UserError(
                f"--average_last={average_last} is for --checkpoint=average, and this is "
                "--checkpoint=best; give both or neither"
            )
        DecodingConfig(**DECODING | {k.partition(".")[2]: v for k, v in overrides.items()})

    monkeypatch.setattr(model_module, "restore", restored)
    with pytest.raises(UserError) as error:
        transformer.load(**{"workdir": tmp_path, **options})
    assert str(error.value).startswith(said)
    assert not re.search(r"--|decoding\.", str(error.value))


DECODING = {"beam_size": 4, "length_penalty": 0.6, "max_extra_length": 50}
