"""The exported programs run in a process that has nothing of this project."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import MODEL, PAPER, model_config
from small_models import LINES, trained_model

from configs import rnn_bahdanau
from transformer.data.vocabulary import EOS, PAD
from transformer.decoding.inputs import Request
from transformer.exports import stablehlo
from transformer.exports.folder import new_folder
from transformer.models.rnn.rnn import RNNConfig

pytest.importorskip("flatbuffers", reason=".[exports]")
PAGE = Path(__file__).parents[2] / "docs" / "exporting.md"
MODELS = {
    "transformer": MODEL,
    "rnn": model_config(RNNConfig, rnn_bahdanau, embedding_size=6, hidden_size=7),
}


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(config, id=name, marks=[pytest.mark.slow] * (config != MODEL))
        for name, config in MODELS.items()
    ],
)
def test_the_program_of_the_page_translates_as_we_do(random_params, tmp_path, base):
    asked = {"min_length_ratio": 0.5, "length_penalty": 0.6, "max_extra_length": 7}
    asked |= {"no_repeat_ngram": 3, "repetition_penalty": 1.2}
    if base == MODEL:
        asked |= {"beam_groups": 3, "diversity": 0.5}  # which the greedy program has not
    model = trained_model(random_params, beam_size=3, base=base, search=asked)
    # What was asked for is that of flags; the config of the work directory says otherwise.
    model = dataclasses.replace(
        model, config=dataclasses.replace(model.config, decoding=PAPER.decoding)
    )
    with new_folder(tmp_path / "exported") as folder:
        stablehlo.write(model, folder, [16])
    about = json.loads((tmp_path / "exported" / "about.json").read_text())
    assert about["beam_size"] == 3
    assert {path.name for path in (tmp_path / "exported").iterdir()} == {
        *("greedy-16.bin", "beam-16.bin", "parameters.npz", "about.json", "tokenizer.model")
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "alone.py").write_text(next(x for x in blocks if "deserialize" in x))
    encode = model.task.tokenizers.source.encode
    lines = [line for line in LINES if len(encode(line)) < 16]
    text = "".join(" ".join(map(str, [*encode(x), EOS])) + "\n" for x in lines)
    result = subprocess.run(
        [sys.executable, "-I", "alone.py", "exported"],
        cwd=tmp_path,
        input=text,
        text=True,
        capture_output=True,
        env={
            **{name: os.environ[name] for name in ("PATH", "XLA_FLAGS")},
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # it compiles in half the time
        },
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    found = [[int(token) for token in line.split()] for line in result.stdout.splitlines()]
    expected = model.task.search(model.params, model.extra, list(map(Request, lines)))
    assert found == [translation.tokens for (translation,) in expected]
    assert PAD not in np.concatenate(found)
    assert len({tuple(tokens) for tokens in found}) > 1


def test_lengths_are_those_of_a_search():
    config = dataclasses.replace(
        PAPER.decoding, max_length_ratio=1.4, min_length_ratio=1.1, max_extra_length=0
    )
    length_B = np.arange(64)
    src_BS = jnp.array(np.where(np.arange(64) <= length_B[:, None], EOS, PAD))
    found = jax.jit(lambda src_BS: stablehlo.lengths_of_outputs(config, src_BS))(src_BS)
    assert found.max_length_B[45] == 63
    assert found.min_length_B[50] == 55
    assert found.max_length_B.tolist() == list(map(config.longest, length_B.tolist()))
    assert found.min_length_B.tolist() == list(map(config.shortest, length_B.tolist()))
