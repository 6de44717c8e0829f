"""Scores a trained model on a split, compares it with a recipe, or exports it.

    python evaluate.py --workdir=runs/demo --split=test
    python evaluate.py --workdir=runs/demo --source=news.en --reference=news.de
    python evaluate.py --workdir=runs/base --testset=wmt14/full
    python evaluate.py --workdir=runs/demo --hypotheses=others.de
    python evaluate.py --workdir=runs/demo --compare=runs/other
    python evaluate.py --workdir=runs/base --checkpoint=average --average_last=5
    python evaluate.py --workdir=/models/base --output_dir=scores
    python evaluate.py --workdir=runs/base --explain=big
    python evaluate.py --workdir=runs/base --checkpoint=average --export=models/base

Writes sources.txt, references.txt, hypotheses.txt and scores.json to WORKDIR/eval/<split>/, or to
OUTPUT_DIR/<split>/. Settings that are not default appear in the folder's name: test-step-500,
test-average-5-at-1000, test-beam_size=1. WORKDIR/eval/latest leads to the last folder written. In
several processes (docs/jobs.md) the devices of all share the work. --record and --verify are for
the ledger of results: docs/results.md.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from absl import flags
from sacrebleu.metrics import BLEU

from transformer.data.languages import pair
from transformer.runs import model_flags
from transformer.system import job_flags
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, DEFINE_paths

BLEU_TOKENIZER = flags.DEFINE_enum(
    "bleu_tokenizer", None, [*BLEU.TOKENIZERS], "One of sacreBLEU's tokenizers, for BLEU."
)
restore_model = model_flags.define_flags({"data.bleu_tokenizer": BLEU_TOKENIZER}, directions=True)
flags.adopt_module_key_flags(job_flags)  # for --help
SPLIT = flags.DEFINE_list(
    "split", "test", "train, validation, test, or another split of the run's data set; or several."
)
SOURCE = DEFINE_path(
    "source", None, "A test set of your own: a text file, plain or packed, one sentence a line."
)
REFERENCE = DEFINE_paths(
    "reference", None, "Its translation; of several translations, as many files."
)
TESTSET = flags.DEFINE_string(
    "testset", None, "A test set by sacreBLEU's name, such as wmt14/full; downloaded if new."
)
HYPOTHESES = DEFINE_path(
    "hypotheses", None, "A file of translations to score; nothing is translated."
)
COMPARE = DEFINE_path(
    "compare",
    None,
    "Is the difference chance? Another run, a folder that was written for it, or a file of "
    "translations of the same sentences.",
)
LANGUAGES = flags.DEFINE_string(
    "languages", None, "Of --hypotheses without --workdir, such as en-de."
)
OUTPUT_DIR = DEFINE_path(
    "output_dir", None, "Where to write instead of WORKDIR/eval: a folder, made if need be."
)
RECORD = DEFINE_path(
    "record",
    None,
    "A JSON file of the ledger to write. Without --checkpoint, the best and the average are "
    "tried on validation, and the better one is used.",
)
VERIFY = DEFINE_path(
    "verify",
    None,
    "A JSON file of the ledger to check: the outputs saved beside it, or with --workdir the run.",
)
EXPLAIN = flags.DEFINE_string(
    "explain", None, "A recipe to compare the run with, such as base or big: docs/evaluation.md."
)
EXPORT = DEFINE_path(
    "export", None, "A work directory to make, of the chosen parameters and no others."
)
EXPORT_DTYPE = flags.DEFINE_enum(
    "export_dtype",
    "float32",
    ("float32", "bfloat16"),
    "The precision that exported parameters keep; with bfloat16 they take half the space.",
)
# Flags of what is scored, if it is no split.
OWN = tuple(
    flag.name
    for flag in (SOURCE, REFERENCE, TESTSET, HYPOTHESES, COMPARE, LANGUAGES, BLEU_TOKENIZER)
)
DIRECTION = model_flags.LANGUAGES


def main() -> None:
    from transformer.exports import workdir as workdir_export
    from transformer.reports import ledger, recipes
    from transformer.runs import scoring
    from transformer.system import distributed

    distributed.initialize()
    values = flags.FLAGS
    given = [flag.name for flag in (RECORD, VERIFY, EXPLAIN, EXPORT) if flag.value is not None]
    if len(given) > 1:
        raise UserError(f"--{' and --'.join(given)} are given; give one of them")
    splits = SPLIT.value
    if not all(splits) or not splits:
        raise UserError("--split is empty; name a split, such as test")
    # Each of these modes decides these flags by itself.
    refuse_flags("explain", EXPLAIN, "is for one run", "ensemble", *OWN, *DIRECTION)
    refuse_flags("export", EXPORT, "is for one run", "ensemble")
    refuse_flags(
        *("export", EXPORT, "evaluates nothing", "split", "output_dir", *OWN, *DIRECTION),
        *model_flags.DECODING_FLAGS,
    )
    of_result = "checkpoint", "average_last", *model_flags.DECODING_FLAGS
    refuse_flags(
        "verify", VERIFY, "takes that from the result", "split", *OWN, *DIRECTION, *of_result
    )
    refuse_flags("record", RECORD, "takes that from the run's config", "bleu_tokenizer", *DIRECTION)
    refuse_flags("record", RECORD, "is of the splits of a run", *OWN)
    refuse_flags("hypotheses", HYPOTHESES, "translates nothing", "ensemble", *of_result)
    refuse_flags("explain", EXPLAIN, "writes nothing", "output_dir")
    if EXPORT.value is None and EXPORT_DTYPE.present:
        raise UserError("--export_dtype is given without --export; give both, or neither")
    if not values.workdir:
        refuse_flags("verify", VERIFY, "without --workdir writes nothing", "output_dir")
    output_dir = values.output_dir and Path(values.output_dir).expanduser()

    def restore_here(**instead: Any) -> Any:
        return dataclasses.replace(restore_model(**instead), output_dir=output_dir)

    if EXPLAIN.value is not None:
        recipes.explain_run(EXPLAIN.value, splits, restore_model)
    elif EXPORT.value is not None:
        directory = Path(os.path.normpath(os.path.expanduser(EXPORT.value)))
        workdir_export.export_chosen(directory, restore_model, EXPORT_DTYPE.value)
    elif VERIFY.value is not None:
        if values.ensemble and not values.workdir:
            raise UserError("--ensemble is given without --workdir; give both, or neither")
        restoring = restore_here if values.workdir else None
        if not ledger.verify(
            Path(VERIFY.value).expanduser(), restoring, values.data_dir, values.raw_dir
        ):
            distributed.end(1, "")
    elif RECORD.value is not None:
        path = Path(RECORD.value).expanduser()
        ledger.record(path, splits, restore_here, values.checkpoint, values.average_last)
    else:
        check_what_is_scored(values.workdir)
        scoring.run(values, OWN, restore_here, output_dir)


def refuse_flags(name: str, flag: flags.FlagHolder, reason: str, *others: str) -> None:
    """Raises UserError if one of the other flags is given beside this one."""
    for other in others:
        if flag.value is not None and flags.FLAGS[other].present:
            raise UserError(f"--{other} is given, and --{name} {reason}; leave --{other} out")


def check_what_is_scored(workdir: str | None) -> None:
    """Raises UserError for flags that do not go together."""
    if REFERENCE.present and not (REFERENCE.value and all(REFERENCE.value)):
        raise UserError("--reference names no file; give one, or several with commas between them")
    if SOURCE.present and not REFERENCE.value:
        raise UserError(
            "--source is given without --reference; to translate without scores: "
            f"{script('translate')}"
        )
    if REFERENCE.present and not (SOURCE.value or HYPOTHESES.value):
        raise UserError("--reference is given without --source or --hypotheses; give one of them")
    if TESTSET.present and REFERENCE.present:
        raise UserError("--testset and --reference are given; give one of them")
    if SPLIT.present and (TESTSET.present or REFERENCE.present):
        raise UserError("--split and another test set are given; leave one of them out")
    if LANGUAGES.present and (workdir or not HYPOTHESES.value):
        raise UserError("--languages is for --hypotheses without --workdir; leave it out")
    if HYPOTHESES.value and not workdir:
        refuse_flags("hypotheses", HYPOTHESES, "without --workdir takes --languages", *DIRECTION)
        if not (TESTSET.value or REFERENCE.value):
            raise UserError("--hypotheses needs --reference, --testset or --workdir; give one")
        if not all(pair(LANGUAGES.value or "")):
            raise UserError("--hypotheses without --workdir needs --languages, such as en-de")
    if HYPOTHESES.value and len(SPLIT.value) > 1:
        raise UserError("--hypotheses are of one --split; give one")
