"""How fast a model translates: this project, CTranslate2 and Hugging Face, in turns.

    pip install -c constraints.txt -e ".[exports,bert-test]"
    python benchmarks/decoding_speed.py
    python benchmarks/decoding_speed.py --engines=ours_float32,ours_int8
    python benchmarks/decoding_speed.py --workdir=runs/demo --input=news.en

All have the same weights. Without --workdir they are random, and every output has --tokens tokens;
with it, the sentences of a file are translated. Each engine is a process of its own, on all cores,
and only one works at a time. Token ids go in and come out. CTranslate2 and Hugging Face sort by
length and take --batch sentences at once; here the project decides. ours_int8 is the float32 model
with decoding.int8.
"""

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import timing
from benchmarks.synthetic import IDS
from transformer.data.text_files import read_lines
from transformer.data.vocabulary import BOS, EOS, PAD, UNK
from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import Request
from transformer.decoding.translation import Translator
from transformer.exports import ctranslate2 as ct2
from transformer.exports import marian
from transformer.models.family import Sizes, build_model, find_family
from transformer.models.transformer import TransformerConfig
from transformer.runs import cli
from transformer.runs.provenance import conditions
from transformer.runs.restore import restore
from transformer.runs.run_config import Config
from transformer.system.cpu import available_cores
from transformer.system.errors import UserError
from transformer.system.packages import optional_module
from transformer.system.paths import DEFINE_path
from transformer.system.sharding import data_mesh
from transformer.system.startup import use_huge_pages
from transformer.tasks.seq2seq import sizes_of

BASE = Path(__file__).parents[1] / "configs" / "base.py"
ENGINES = (
    *("ours_float32", "ours_bfloat16", "ours_int8", "ctranslate2_float32", "ctranslate2_int8"),
    "huggingface_float32",
)
SHORT = 15  # source tokens of the sentence that is timed alone

CONFIG = config_flags.DEFINE_config_file("config", None, "Of a random model; configs/base.py")
VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 32_000, "Of a random model", lower_bound=8)
SENTENCES = flags.DEFINE_integer("sentences", 96, "Random ones, of 8 to 40 tokens", lower_bound=1)
TOKENS = flags.DEFINE_integer("tokens", 27, "Of each output of a random model", lower_bound=2)
WORKDIR = DEFINE_path("workdir", None, "A trained model, in place of a random one")
INPUT = DEFINE_path("input", None, "Its sentences, one a line")
BEAM_SIZE = flags.DEFINE_integer("beam_size", 4, "Hypotheses of each sentence", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 32, "Sentences of a batch of the others", lower_bound=1)
ENGINES_FLAG = flags.DEFINE_list("engines", list(ENGINES), "Which of them")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result")
WORKER = flags.DEFINE_string("worker", None, "Used by this script itself")
FOLDER = DEFINE_path("folder", None, "Used by this script itself")


def main() -> None:
    if WORKER.value:
        timing.serve(lambda: prepare(WORKER.value, Path(FOLDER.value)))
        return
    for engine in ENGINES_FLAG.value:
        if engine not in ENGINES:
            raise UserError(f"--engines has {engine!r}; give some of: {', '.join(ENGINES)}")
        if not engine.startswith("ours"):
            name = "ctranslate2" if "ctranslate2" in engine else "transformers"
            optional_module(name, "exports")
    with tempfile.TemporaryDirectory() as folder:
        write_task(Path(folder))
        results, failed = timing.race(ENGINES_FLAG.value, ROUNDS.value, [f"--folder={folder}"])
    first = ENGINES_FLAG.value[0]
    reference = results[first]["replies"][0]["outputs"]
    table = {}
    for engine, result in results.items():
        rounds = result["replies"]
        outputs = rounds[0]["outputs"]
        same = sum(a == b for a, b in zip(outputs, reference, strict=True)) / len(outputs)
        tokens, median = sum(map(len, outputs)), result["seconds"]["median"]
        table[engine] = {
            "tokens_per_second": tokens / median,
            "sentences_per_second": len(outputs) / median,
            "seconds": result["seconds"],
            "latency": timing.summary([x["latency"] for x in rounds]),
            "peak_memory_GB": max(x["peak_memory_GB"] for x in rounds),
            f"share_equal_to_{first}": same,
        }
        print(
            f"{engine:20}  {tokens / median:7.0f} tokens/s  {len(outputs) / median:6.2f} "
            f"sentences/s  one sentence {1e3 * table[engine]['latency']['median']:6.0f} ms  "
            f"{table[engine]['peak_memory_GB']:5.2f} GB  {same:6.1%} as {first}"
        )
    if OUTPUT.value:
        timing.write(OUTPUT.value, {"engines": table, "failed": failed, "conditions": conditions()})


def write_task(folder: Path) -> None:
    """What the workers read: the config, the parameters and the sentences."""
    if WORKDIR.value:
        if not INPUT.value:
            raise UserError("--workdir is given without --input; name a file of sentences")
        model = restore(Path(WORKDIR.value))
        config, params = model.config, model.params
        lines = list(read_lines(INPUT.value))
        ids = model.task.tokenizers.source.encode_batch(lines, num_threads=-1)
        sentences = [list(map(int, tokens)) for tokens in ids if len(tokens)]
        decoding = {"max_extra_length": config.decoding.max_extra_length}
    else:
        config = Config.from_dict(cli.config_of(CONFIG))
        random = np.random.default_rng(0)
        lengths = random.integers(8, 41, SENTENCES.value)
        sentences = [random.integers(UNK + 1, VOCAB_SIZE.value, n).tolist() for n in lengths]
        decoding = {"min_length": TOKENS.value, "max_length": TOKENS.value}
        params = None
    others = [engine for engine in ENGINES_FLAG.value if not engine.startswith("ours")]
    if others and not isinstance(config.model, TransformerConfig):
        raise UserError(
            f"--engines has {others[0]!r}, which has no model.family={config.model.family}; "
            "give --engines=ours_float32,ours_bfloat16,ours_int8"
        )
    if params is None:
        V = VOCAB_SIZE.value
        sizes = Sizes(V, V, True, 256, 256)
        params = build_model(config.model, sizes).init(jax.random.key(0))
    else:
        sizes = sizes_of(config, model.task.tokenizers)
    decoding |= {"beam_size": BEAM_SIZE.value, "length_penalty": 0.0}
    timing.write(
        folder / "task.json",
        {
            "model": dataclasses.asdict(config.model),
            "sizes": sizes,
            "decoding": decoding,
            "sentences": sentences,
        },
    )
    np.savez(folder / "params.npz", *map(np.asarray, jax.tree.leaves(params)))


def prepare(engine: str, folder: Path):
    """The engine's model, warmed up."""
    task = json.loads((folder / "task.json").read_text())
    sentences, decoding = task["sentences"], task["decoding"]
    arrays = list(np.load(folder / "params.npz").values())
    name, dtype = engine.rsplit("_", 1)
    activations = dtype if name == "ours" and dtype != "int8" else "float32"
    settings = task["model"] | {"dtype": activations}
    config = find_family(settings["family"]).config(**settings)
    model = build_model(config, Sizes(*task["sizes"]))
    params = jax.tree.unflatten(jax.tree.structure(model.abstract_params()), arrays)
    make = {
        "ours": ours,
        "ctranslate2": of_ctranslate2,
        "huggingface": of_huggingface,
    }[name]
    translate = make(model if name == "ours" else config, params, decoding, dtype, folder)
    short = [(sentences[0] * SHORT)[:SHORT]]
    translate(sentences)
    translate(short)

    def measure() -> dict[str, Any]:
        start = time.perf_counter()
        outputs = translate(sentences)
        seconds = time.perf_counter() - start
        latency = min(timing.seconds_of(lambda: translate(short), 3))
        memory = timing.peak_memory() / 1e9
        found = {"seconds": seconds, "latency": latency, "peak_memory_GB": memory}
        return found | {"outputs": outputs}

    return {"engine": engine}, measure


def ours(model, params, decoding, dtype, folder):
    decoding = {"max_extra_length": 50, "int8": dtype == "int8"} | decoding
    settings = DecodingConfig(**decoding)
    translator = Translator(model, IDS, settings, data_mesh())
    params = jax.tree.map(jax.numpy.asarray, params)

    def translate(sentences):
        found = translator.search((params, {}), [Request(" ".join(map(str, x))) for x in sentences])
        return [best.tokens for (best,) in found]

    return translate


def of_ctranslate2(config, params, decoding, dtype, folder):
    import ctranslate2

    sides = [params.get("source_embedding", params["target_embedding"]), params["target_embedding"]]
    pieces = [["<pad>", "<s>", "</s>", "<unk>"] for _ in sides]
    for names, side in zip(pieces, sides, strict=True):
        names += [f"p{i}" for i in range(UNK + 1, len(side["table_VD"]))]
    if not (path := folder / "ctranslate2").exists():
        path.mkdir()
        ct2.write_model(params, config, *pieces, path, "float32")
    translator = ctranslate2.Translator(
        str(path), compute_type=dtype, intra_threads=available_cores(), inter_threads=1
    )
    ids = {piece: i for i, piece in enumerate(pieces[1])}
    # EOS does not count there.
    lengths = {
        "min_decoding_length": max(1, decoding.get("min_length", 2) - 1),
        "max_decoding_length": decoding.get("max_length", 306) - 1,
    }

    def translate(sentences):
        results = translator.translate_batch(
            [[pieces[0][i] for i in tokens] for tokens in sentences],
            beam_size=decoding["beam_size"],
            max_batch_size=BATCH.value,
            length_penalty=0,
            **lengths,
        )
        return [[*map(ids.__getitem__, result.hypotheses[0]), EOS] for result in results]

    return translate


def of_huggingface(config, params, decoding, dtype, folder):
    import torch
    import transformers

    torch.set_num_threads(available_cores())
    weights = marian.weights(params, config)
    source = params.get("source_embedding", params["target_embedding"])["table_VD"]
    target = params["target_embedding"]["table_VD"]
    content = marian.config_of(config, (len(source), len(target)))
    model = transformers.MarianMTModel(transformers.MarianConfig(**content)).eval()
    tensors = {key: torch.from_numpy(x.copy()) for key, x in weights.items()}
    unknown = model.load_state_dict(tensors, strict=False).unexpected_keys
    assert not unknown, unknown
    model.tie_weights()

    @torch.no_grad()
    def translate(sentences):
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        outputs = [None] * len(sentences)
        for begin in range(0, len(order), BATCH.value):
            members = order[begin : begin + BATCH.value]
            width = max(len(sentences[i]) for i in members) + 1
            src = torch.full((len(members), width), PAD)
            for row, i in enumerate(members):
                src[row, : len(sentences[i]) + 1] = torch.tensor([*sentences[i], EOS])
            extra = decoding.get("max_extra_length", 0)
            found = model.generate(
                input_ids=src,
                attention_mask=(src != PAD).long(),
                num_beams=decoding["beam_size"],
                length_penalty=0.0,
                min_new_tokens=max(1, decoding.get("min_length", 2) - 1),
                max_new_tokens=decoding.get("max_length", width - 1 + extra),
                bad_words_ids=[[PAD], [BOS]],
                early_stopping="never",
            )
            for i, tokens in zip(members, found.tolist(), strict=True):
                tokens = tokens[1:]
                end = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
                outputs[i] = tokens[:end]
        return outputs

    return translate


if __name__ == "__main__":
    use_huge_pages()
    cli.run(main, default_config=BASE)
