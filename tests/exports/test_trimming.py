import json

import jax
import numpy as np
import pytest
from small_m2m import Reference, many_languages
from small_models import trained_model

from transformer.data.vocabulary import BOS, EOS, UNK
from transformer.exports.trimming import table, trimmed
from transformer.system.errors import UserError

load_file = pytest.importorskip("safetensors.numpy", reason=".[exports]").load_file


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    return many_languages(tmp_path_factory.mktemp("nllb"))


def write_lines(folder, **files):
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return [str(folder / name) for name in files]


def test_trimming(hub, tmp_path):
    """On the text that it was trimmed for, a model is as it was."""
    files = write_lines(tmp_path, source=["one two", "two"], target=["zwei eins", "eins"])
    small = trimmed(hub, ["en", "deu_Latn"], files)
    assert small.config.tokenizer.vocab_size == small.task.tokenizers.source.vocab_size
    old, new = (x.task.tokenizers.source.pieces for x in (hub, small))
    assert {*old} - {*new} >= {"zho_Hans", "▁three", "▁drei"}
    kept = [old.index(piece) for piece in new]
    table_VD = hub.params["target_embedding"]["table_VD"]
    np.testing.assert_array_equal(small.params["target_embedding"]["table_VD"], table_VD[kept, :])
    sides, theirs = [], []
    for side, text in zip(small.task.tokenizers, ("one two", "zwei eins"), strict=True):
        sides.append([*side.encode(text), EOS])
        full = hub.task.tokenizers[len(theirs)].encode(text)
        assert [kept[i] for i in sides[-1]] == [*full, EOS]
        theirs.append(full)
    source, target = theirs
    folder = hub.workdir
    weights = load_file(folder / "model.safetensors")
    reference = Reference(json.loads((folder / "config.json").read_text()), weights)
    # Ids there differ only for <s> and <pad>; a target begins with </s>.
    expected = reference.logits([*source, EOS], [EOS, *target])
    inputs = np.array([sides[0]]), np.array([[BOS, *sides[1][:-1]]])
    found = jax.jit(lambda params: small.task.model.bind(params)(*inputs))(small.params)[0]
    np.testing.assert_allclose(found[:, UNK:], expected[:, kept[UNK:]], atol=1e-4)
    rows = [row.split() for row in table(hub, small).splitlines()[1:]]
    assert [row[:2] for row in rows] == [["before", str(len(old))], ["after", str(len(new))]]
    counts = [int(row[2].replace(",", "")) for row in rows]
    assert counts[0] - counts[1] == 15 * (len(old) - len(new))
    assert float(rows[0][3]) >= float(rows[1][3])


def test_what_cannot_be_trimmed(hub, tmp_path, random_params):
    (file,) = write_lines(tmp_path, source=["one"])
    for languages, message in (
        (
            ["eng_Latn"],
            r"--languages has no de, which data.target_language names; add it, or",
        ),
        (["eng_Latn", "deu_Lat"], r"--languages is 'deu_Lat', which .* did you mean 'deu_Latn'"),
    ):
        with pytest.raises(UserError, match=message):
            trimmed(hub, languages, [file])
    with pytest.raises(UserError, match=r"are for models with the vocabulary of M2M100 or NLLB"):
        trimmed(trained_model(random_params), ["en", "de"], [file])
