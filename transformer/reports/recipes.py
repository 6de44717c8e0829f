"""Why a score differs from a published one: a run beside a recipe, difference by difference.

    python evaluate.py --workdir=runs/mine --explain=base

A recipe is a config of configs/, or one with changes, and the score that was published for it.
A fact is a field of a config by its name, such as model.norm, or one of DERIVED. EFFECTS says
what is known of each; its figures are BLEU of the texts that its sources name.
"""

import importlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer.data.sources import SPLITS
from transformer.runs.experiment import Experiment, flat
from transformer.system.errors import UserError

WIDTH = 100  # characters of a line for a terminal
UNKNOWN = "not known to us in isolation"
SOURCES = (
    "Sections and tables are the paper's (arXiv 1706.03762). Table 3 is about newstest2013 without "
    "averaging: BLEU, and perplexity in brackets. T2T is tensorflow/tensor2tensor."
)

# --- The recipes --------------------------------------------------------------------------


class Recipe(NamedTuple):
    """What a published score was made with.

    config: the file of configs/ with its fields; changes: those that it has otherwise.
    averaged: how many checkpoints were averaged: any of these numbers.
    unstated: facts that the publication does not give, between spaces; they are not compared.
    published: the score, its metric, its test set and its source.
    comparable: which scores of scores.json are of the same kind.
    beyond: what no field of a config holds.
    """

    config: str
    changes: Mapping[str, Any]
    averaged: tuple[int, ...]
    unstated: str
    published: str
    comparable: str
    beyond: str

    def fields(self) -> dict[str, Any]:
        """All fields by name: those of the config, with the changes."""
        config = importlib.import_module(f"configs.{self.config}").get_config()
        return flat(Experiment.from_dict(config.to_dict()).to_dict()) | dict(self.changes)


_PAPER = Recipe(
    config="base",
    changes={},
    averaged=(5,),
    unstated="",
    published="27.3 BLEU, tokenised, compounds split, cased, on newstest2014 (paper, Table 2)",
    comparable="bleu_tokenized_compound_split is of the published kind, but for the quotation "
    "marks, which the authors made alike in the reference. bleu (sacreBLEU) is not: on WMT14 it "
    "reads 0.6 to 1.5 lower for the same translations.",
    beyond="docs/fidelity.md lists what was chosen where the paper is silent.",
)
_T2T = Recipe(
    config="base",
    changes={
        "data.dataset": "wmt_t2t_translate/de-en",
        "tokenizer.vocab_size": 2**15,
        "model.norm": "pre",
        "model.attention_dropout": 0.1,
        "model.activation_dropout": 0.1,
        "optimizer.beta2": 0.997,
        "optimizer.learning_rate_scale": 2.0,
        "optimizer.warmup_steps": 8000,
        "training.steps": 300_000,
        "training.tokens_per_update": 8 * 4096,  # 8 GPUs
        "decoding.max_extra_length": 100,
    },
    averaged=(),
    unstated="averaged_checkpoints training.checkpoint_every tokenizer.model_type",
    published="about 28 BLEU, of a kind not said, on English-German (T2T README.md, of "
    "transformer_base)",
    comparable="which kind was published is not said. bleu_tokenized_compound_split is the nearest "
    "to the authors' script: by it, with a reference of its own, their released base model has "
    "29.02, and 27.52 sacreBLEU, which is bleu here (T2T issue #317).",
    beyond="T2T has subwords of its own, a zero vector for BOS, an embedding of the target's kind "
    f"added to the source, and smoothing over V - 1 tokens. The effect of each is {UNKNOWN}.",
)
RECIPES = {
    "base": _PAPER,
    "big": _PAPER._replace(
        config="big",
        averaged=(20,),
        published="28.4 BLEU, tokenised, compounds split, cased, on newstest2014 (paper, Table 2)",
    ),
    "t2t_base": _T2T,
    "t2t_big": _T2T._replace(
        config="big",
        changes=_T2T.changes | {"training.tokens_per_update": 8 * 2048},
        published="no score (T2T models/transformer.py, transformer_big); the paper's big has 28.4",
    ),
    "multi30k_tiny": Recipe(
        config="multi30k_tiny",
        changes={},
        averaged=(10, 1),
        unstated="",
        published="41.02 BLEU, tokenised, lower-cased, on test_2016_flickr (Transformer-Tiny "
        'of "Good for Misconceived Reasons", ACL 2021)',
        comparable="bleu is of the published kind if data.is_tokenized is True. If not, "
        "bleu_tokenized_compound_split_lowercase is the nearest, and not the same.",
        beyond="fairseq divides scores by length^1, this code by (5 + length) / 6; and it smooths "
        f"labels over V - 1 tokens. The effect of each is {UNKNOWN}. docs/fidelity.md has more.",
    ),
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; raises UserError if there is none."""
    if name not in RECIPES:
        raise UserError(f"there is no recipe {name!r}; give one of: {', '.join(RECIPES)}")
    return RECIPES[name]


# --- What is known to matter --------------------------------------------------------------

# Facts that follow from several, or from the evaluation; the rest are fields of a config.
# tokens_seen: as tokens_per_update counts them. peak_learning_rate: of Equation 3.
DERIVED = ("averaged_checkpoints", "tokens_seen", "peak_learning_rate", "length_penalty_formula")


class Effect(NamedTuple):
    """What is known of facts that belong together, their names between spaces."""

    facts: str
    effect: str
    source: str


# The order is that of importance: evaluation, data, amount of training, optimisation, model,
# decoding.
EFFECTS = (
    Effect(
        "data.is_tokenized",
        "tokenised text gets BLEU of its own tokens alone. One model's translations of "
        "newstest2014: sacreBLEU 27.52, with its intl tokenizer 28.33, lower-cased 28.85; by the "
        "authors' script and reference 29.02. Splitting compounds adds 0.7 to 1.0",
        "T2T issue #317",
    ),
    Effect(
        "data.test_split data.test_source data.test_target",
        "scores of two test sets do not compare: one model has 26.25 sacreBLEU on newstest2013 "
        "and 27.52 on newstest2014",
        "T2T issue #317",
    ),
    Effect(
        "averaged_checkpoints training.checkpoint_every",
        "averaging adds up to 1.0, after long training about 0.3; one user saw 0.1, another none. "
        "Multi30k here, on validation: the best 38.0, the mean of the last five 39.1",
        "T2T issues #317 and #473; facebookresearch/fairseq issue #732; RESULTS.md",
    ),
    Effect(
        "data.source_language data.target_language",
        "scores of two pairs do not compare: WMT14 English-German 24.38, German-English 30.51",
        "joeynmt/joeynmt README.md",
    ),
    Effect(
        "data.dataset data.train_split data.train_source data.train_target data.extra_source "
        "data.extra_target data.both_directions",
        "scores of two data sets seldom compare. Paracrawl added to WMT: 29.3 becomes 29.8; other "
        "models' translations of the training text, either way: 1.0 to 2.0 more (IWSLT)",
        "Ott et al. 2018, Scaling Neural Machine Translation, abstract; Data Diversification "
        "(NeurIPS 2020), conclusion",
    ),
    Effect(
        "data.max_source_length data.max_target_length",
        "none seen of 100 or 150 in place of 256; a loss where much text, or what is as long as "
        "the test sentences, is left out",
        "T2T issue #545",
    ),
    Effect(
        "tokenizer.model_type tokenizer.vocab_size tokenizer.joint tokenizer.sample_size "
        "tokenizer.source_model tokenizer.target_model",
        f"{UNKNOWN}; for WMT14 English-German the paper has 37,000 tokens, T2T 32,768",
        "Section 5.1; T2T translate_ende_wmt32k",
    ),
    Effect(
        "tokenizer.sampling_alpha tokenizer.num_samples",
        "alpha 0.1: up to 2.3 BLEU more, with another segmentation each time (here num_samples)",
        "BPE-dropout (ACL 2020), abstract",
    ),
    Effect(
        "training.steps tokens_seen",
        "none where training.patience ended the run. A big model from German to English on one "
        "TPU v3-8: 25.55 in 24 minutes, 32.87 in 13 hours",
        "google/flax examples/wmt/README.md",
    ),
    Effect(
        "training.tokens_per_update",
        "fewer are worse, however long one trains: 1.0 less with 3 GPUs of 4,096 in place of 4 "
        "(base, English-French, approximate BLEU). Many more, with other changes: big has 29.3 in "
        "place of 28.4",
        "T2T issue #444; Ott et al. 2018, abstract",
    ),
    Effect(
        "peak_learning_rate optimizer.learning_rate_scale optimizer.warmup_steps",
        f"{UNKNOWN}; T2T doubled scale and warm-up when it went over to pre-LN",
        "T2T models/transformer.py, transformer_base_v2",
    ),
    Effect(
        "optimizer.beta2",
        f"{UNKNOWN}; the paper has 0.98, T2T 0.997",
        "Section 5.3; T2T models/transformer.py, transformer_base_v3",
    ),
    Effect(
        "optimizer.beta1 optimizer.epsilon optimizer.max_grad_norm",
        f"{UNKNOWN}; the paper and T2T have 0.9, 1e-9 and no clipping",
        "Section 5.3; T2T models/transformer.py",
    ),
    Effect(
        "training.label_smoothing",
        "0.0: 25.3 (4.67), 0.1: 25.8 (4.92), 0.2: 25.7 (5.47)",
        "Table 3, base and row D",
    ),
    Effect(
        "training.r_drop",
        "WMT14 English-German, big, alpha 5: 30.91, without 29.1",
        "R-Drop (NeurIPS 2021), abstract; alpha and 29.1 from memory",
    ),
    Effect(
        "training.init_from",
        f"{UNKNOWN}; 15 tasks came out better when training began with both directions",
        "Bidirectional Training (EMNLP 2021), abstract",
    ),
    Effect(
        "training.seed",
        "IWSLT14 German-English: ±0.23 post-LN, ±0.04 pre-LN. The seed of the published run is "
        "another one, whatever its number",
        "LiyuanLucasLiu/Transformer-Clinic issue #12",
    ),
    Effect(
        "model.num_encoder_layers model.num_decoder_layers",
        "2: 23.7 (6.11), 4: 25.3 (5.19), 6: 25.8 (4.92), 8: 25.5 (4.88), of each",
        "Table 3, base and row C",
    ),
    Effect(
        "model.d_model",
        "256: 24.5 (5.75), 512: 25.8 (4.92), 1024: 26.0 (4.66), with 8 heads; all that makes the "
        "big model: 26.4 (4.33)",
        "Table 3, base, row C and big",
    ),
    Effect(
        "model.d_ff",
        "1024: 25.4 (5.12), 2048: 25.8 (4.92), 4096: 26.2 (4.75)",
        "Table 3, base and row C",
    ),
    Effect(
        "model.num_heads model.d_k model.d_v",
        "1 head: 24.9 (5.29), 4: 25.5 (5.00), 8: 25.8 (4.92), 16: 25.8 (4.91), 32: 25.4 (5.01), of "
        "512 together; 8 heads with d_k 16: 25.1 (5.16), 32: 25.4 (5.01)",
        "Table 3, base and rows A and B",
    ),
    Effect(
        "model.dropout",
        "0.0: 24.6 (5.77), 0.1: 25.8 (4.92), 0.2: 25.5 (4.95)",
        "Table 3, base and row D",
    ),
    Effect(
        "model.attention_dropout model.activation_dropout",
        f"{UNKNOWN}; the paper names neither, T2T has 0.1 of both",
        "Section 5.4; T2T models/transformer.py, transformer_base_v2",
    ),
    Effect(
        "model.norm",
        "IWSLT14 German-English: post 35.64 ±0.23, pre 35.50 ±0.04",
        "LiyuanLucasLiu/Transformer-Clinic issue #12",
    ),
    Effect(
        "model.positions model.max_positions",
        "sinusoidal: 25.8 (4.92), learned: 25.7 (4.92)",
        "Table 3, base and row E",
    ),
    Effect(
        "model.share_embeddings model.activation",
        f"{UNKNOWN}; the paper shares all, and has relu",
        "Sections 3.3 and 3.4",
    ),
    Effect(
        "model.dtype",
        "none known. Of float16, big, lower-cased sacreBLEU: 27.76, with TF32 27.92; 27.82, with "
        "float32 27.66",
        "NVIDIA/DeepLearningExamples PyTorch/Translation/Transformer/README.md",
    ),
    Effect(
        "decoding.beam_size",
        f"mean of 77 OPUS-MT models: 4: 22.5, 6: 22.4. Of greedy search {UNKNOWN}",
        "huggingface/transformers issue #8427",
    ),
    Effect(
        "decoding.length_penalty length_penalty_formula",
        "0.6: 30.36, 0.7: 30.35, 0.8: 30.27, of length^alpha, WMT English-German, beam 15. One "
        "alpha is not the same in the formulas gnmt and length_power",
        "huggingface/transformers issue #7049; facebookresearch/fairseq issue #500",
    ),
    Effect(
        "decoding.max_extra_length",
        f"{UNKNOWN}; only translations that reach it change. The paper has 50, T2T 100",
        "Section 6.1; T2T utils/decoding.py",
    ),
)

# What stops training early is seen from the steps done; the rest leaves a score as it is.
IRRELEVANT = (
    "data.data_dir data.raw_dir data.validation_split data.validation_source "
    "data.validation_target training.max_tokens_per_device training.log_every training.bleu_every "
    "training.keep_last training.best_metric training.patience training.rollback_after "
    "training.max_loss_rise training.max_rollbacks mesh.data mesh.fsdp mesh.tensor"
)

# --- The comparison -----------------------------------------------------------------------


class Difference(NamedTuple):
    """Facts of one row of EFFECTS that differ, with their values in the same order."""

    what: str
    run: str
    recipe: str
    effect: str
    source: str


def explain(
    experiment: Experiment, recipe_name: str, *, evaluation: Mapping[str, Any]
) -> list[Difference]:
    """In what an evaluated run differs from a recipe, the most important first.

    `evaluation` has what TrainedModel.provenance() says of checkpoints and search, and `split`,
    as in scores.json. The updates of the checkpoint count in place of the config's. Raises
    UserError for an unknown recipe.
    """
    recipe = find_recipe(recipe_name)
    averaged = len(evaluation["checkpoint_steps"])
    run = flat(experiment.to_dict()) | {
        "training.steps": max(evaluation["checkpoint_steps"]),
        "averaged_checkpoints": averaged,
        "decoding.beam_size": evaluation["beam_size"],
        "decoding.length_penalty": evaluation["length_penalty"]["alpha"],
        "length_penalty_formula": evaluation["length_penalty"]["name"],
        "decoding.max_extra_length": evaluation["max_extra_length"],
    }
    any_of = " or ".join(map(str, recipe.averaged))
    published = recipe.fields() | {
        "averaged_checkpoints": averaged if averaged in recipe.averaged else any_of,
        "length_penalty_formula": "gnmt",
    }
    unstated = recipe.unstated.split()
    if averaged == 1:  # how far apart checkpoints are matters to their mean alone
        unstated.append("training.checkpoint_every")
    stated = {k: v for k, v in _facts(published, "test").items() if k not in unstated}
    return compare(_facts(run, evaluation["split"]), stated)


def compare(run: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[Difference]:
    """The rows of EFFECTS in which two sets of facts differ, of the facts that a recipe has."""
    differences = []
    for facts, effect, source in EFFECTS:
        if names := [f for f in facts.split() if f in recipe and run[f] != recipe[f]]:
            values = (", ".join(str(side[name]) for name in names) for side in (run, recipe))
            differences.append(Difference(", ".join(names), *values, effect, source))
    return differences


def shown(differences: Sequence[Difference], recipe_name: str) -> str:
    """Differences as text for a terminal, after what was published and what compares with it."""
    recipe = find_recipe(recipe_name)
    parts = [
        _filled(f"Recipe {recipe_name}: ", recipe.published),
        _filled("Metric, of those in scores.json: ", recipe.comparable),
    ]
    parts.append(
        "Differences of this run, the most important first:"
        if differences
        else "This run differs in nothing that is known to matter, but for the seed."
    )
    for number, (what, *rest) in enumerate(differences, 1):
        lines = [_filled(f"{number:2}. ", what)]
        names = Difference._fields[1:]
        lines += [_filled(f"    {n:8}", text) for n, text in zip(names, rest, strict=True)]
        parts.append("\n".join(lines))
    if differences:
        parts.append(_filled("", SOURCES))
    parts.append(_filled("Outside of configs: ", recipe.beyond))
    return "\n\n".join(parts)


def _facts(fields: Mapping[str, Any], split: str) -> dict[str, Any]:
    """With the facts that follow from fields, and without the fields that are not used."""
    uses_text_files = any(
        fields[f"data.{s}_{side}"] for s in SPLITS for side in ("source", "target")
    )
    not_used = ["data.dataset", "data.train_split", "data.test_split"] if uses_text_files else []
    if fields["model.positions"] != "learned":
        not_used.append("model.max_positions")
    named = split in SPLITS  # another one is of the data set
    steps, warmup = fields["training.steps"], fields["optimizer.warmup_steps"]
    peak = fields["model.d_model"] ** -0.5 * min(steps, warmup) * warmup**-1.5  # Equation 3
    head = fields["model.d_model"] // fields["model.num_heads"]
    return {
        **fields,
        "data.test_split": fields[f"data.{split}_split"] if named else split,
        "data.test_source": fields[f"data.{split}_source"] if named else None,
        "data.test_target": fields[f"data.{split}_target"] if named else None,
        "tokens_seen": f"{steps * fields['training.tokens_per_update'] / 1e6:,.1f} M",
        "peak_learning_rate": f"{fields['optimizer.learning_rate_scale'] * peak:.2e}",
        "model.d_k": fields["model.d_k"] or head,
        "model.d_v": fields["model.d_v"] or head,
        **dict.fromkeys(not_used),
    }


def _filled(start: str, text: str) -> str:
    """Text in lines of at most WIDTH characters, all but the first indented below its start."""
    indent = " " * len(start)
    return textwrap.fill(
        text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )
